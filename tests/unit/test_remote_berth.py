"""Who may come for a slot of a cluster, and who counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.allocations import Node
from orchestrator.remote.allegiance import alias
from orchestrator.remote.berth import MOST_RESTARTS, Berth
from orchestrator.remote.messages import Joined
from orchestrator.run.slots import Slot


def berth() -> Berth:
    made = Berth(Slot("slurm0"))
    made.renew(1.0)
    return made


def joined(token: str) -> Joined:
    return Joined(version=1, airlock="0", token=token, node=Node(host="n1"))


def test_each_attempt_has_names_and_a_token_of_its_own() -> None:
    one = berth()
    names, token = set(one.aliases), one.token
    one.renew(2.0)
    assert not names & set(one.aliases)
    assert len(names) == MOST_RESTARTS
    assert one.token != token


@given(st.text())
def test_nobody_is_known_without_the_token(text: str) -> None:
    one = berth()
    assert one.knows(joined(one.token))
    assert one.knows(joined(text)) == (text == one.token)


def test_it_is_here_while_a_node_has_joined() -> None:
    one = berth()
    assert one.here == ""
    one.restarts, one.node = 2, Node(host="n1")
    assert one.here == alias(one.name, 2) in one.aliases
    one.heard, one.assignment, one.leaving = 7, 3, "SIGTERM"
    one.forget(5.0)
    assert (one.here, one.heard, one.assignment, one.leaving, one.heard_at) == ("", 0, 0, "", 5.0)
    assert one.restarts == 2, "an earlier start of the job can't come back"


def test_a_renewed_one_waits_for_its_first_start() -> None:
    one = berth()
    one.restarts, one.node, one.job, one.ask_at = 2, Node(host="n1"), "12", 7.0
    one.renew(9.0)
    assert (one.restarts, one.here, one.job, one.ask_at) == (-1, "", "", float("inf"))
