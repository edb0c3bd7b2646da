"""Back ends are asked in a thread of their own, in order, and again where they could not be reached."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.clusters.allocations import SlotAsked, SlotLeft
from orchestrator.clusters.base import Errand, Sighting, Unheard
from orchestrator.errors import ClusterError
from orchestrator.events import Event
from orchestrator.remote.clerk import Clerk
from orchestrator.remote.steward import STOP_AGAIN_S, Steward, Unreachable

pytestmark = pytest.mark.usefixtures("nothing_leaked")
PATIENCE_S = 10.0
ERRAND = Errand("one", ("true",), {}, Path("/"), Path("/log"))


@pytest.fixture
def clerk() -> Iterator[Clerk]:
    made = Clerk()
    yield made
    made.close(PATIENCE_S)


def ignore(_exc: ClusterError) -> None: ...


def refuse(words: str) -> str:
    raise ClusterError(words)


def refuse_sighting() -> Sighting:
    raise ClusterError("no answer")


def test_answers_come_in_order_in_the_callers_thread(clerk: Clerk) -> None:
    heard: list[object] = []
    asked_in: list[int] = []

    def answer(word: str) -> str:
        asked_in.append(threading.get_ident())
        return word

    def then(word: str) -> None:
        heard.append((word, threading.get_ident()))

    for word in "abc":
        clerk.ask(lambda word=word: answer(word), then, heard.append)  # type: ignore[misc]
    assert select.select([clerk], [], [], PATIENCE_S)[0]
    assert clerk.settle(PATIENCE_S)
    assert heard == [(word, threading.get_ident()) for word in "abc"]
    assert threading.get_ident() not in asked_in


def test_a_refusal_is_handed_over(clerk: Clerk) -> None:
    heard: list[str] = []
    clerk.ask(lambda: refuse("no"), heard.append, lambda exc: heard.append(f"refused: {exc}"))
    assert clerk.settle(PATIENCE_S)
    assert heard == ["refused: no"]


def test_what_nobody_foresaw_is_a_refusal_and_the_next_is_asked_all_the_same(clerk: Clerk) -> None:
    """Where TMPDIR is full no command can be run; a thread that ended would leave the run waiting for ever."""
    heard: list[str] = []

    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    clerk.ask(full, heard.append, lambda exc: heard.append(f"{type(exc).__name__}: {exc}"))
    clerk.ask(lambda: "next", heard.append, ignore)
    assert clerk.settle(PATIENCE_S)
    assert heard == ["ClusterError: OSError: [Errno 28] No space left on device", "next"]


def test_what_an_answer_leads_to_is_done_before_it_closes() -> None:
    heard: list[str] = []
    clerk = Clerk()

    def first(word: str) -> None:
        clerk.ask(lambda: "second", heard.append, ignore)
        heard.append(word)

    clerk.ask(lambda: "first", first, ignore)
    clerk.close(PATIENCE_S)
    assert heard == ["first", "second"]


def test_one_that_hangs_is_not_waited_for() -> None:
    gate = threading.Event()
    clerk = Clerk()
    clerk.ask(lambda: gate.wait(PATIENCE_S), lambda _true: None, ignore)
    assert not clerk.settle(0.01)
    gate.set()
    clerk.close(PATIENCE_S)


# --- the steward ----------------------------------------------------------------------


@dataclass
class Scripted:
    """`down`: it can't be reached; `against`: what it has against every errand; `busy`: what it says where it has no
    ear for any; `notes`: what it remarks on others."""

    name: str = "scripted"
    down: bool = False
    against: str = ""
    busy: str = ""
    stopped: list[str] = field(default_factory=list)
    sighted: list[str] = field(default_factory=list)
    closed: bool = False
    notes: list[str] = field(default_factory=list)

    def check(self) -> list[str]:
        return ["down"] if self.down else []

    def objections(self, _errand: Errand) -> list[str]:
        return []

    def submit(self, _errand: Errand) -> str:
        if self.busy:
            raise Unheard(self.busy)
        return "7" if not (self.down or self.against) else refuse(self.against or "no answer")

    def state(self, job: str) -> Sighting:
        self.sighted.append(job)
        return refuse_sighting() if self.down else Sighting("running")

    def stop(self, job: str) -> None:
        if self.down:
            refuse("no answer")
        self.stopped.append(job)

    def close(self) -> None:
        self.closed = True


@dataclass
class Desk:
    cluster: Scripted = field(default_factory=Scripted)
    told: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.steward = Steward(self.cluster, self.told.append, self.said.append, lambda: self.now)

    def settle(self) -> None:
        assert self.steward._clerk.settle(PATIENCE_S)


@pytest.mark.parametrize(
    ("cluster", "heard"),
    [
        (Scripted(), "7"),
        (Scripted(down=True), "Unreachable: no answer"),
        (Scripted(against="no such partition"), "ClusterError: no such partition"),
        (Scripted(busy="temporarily unable to accept job"), "Unreachable: temporarily unable to accept job"),
    ],
)
def test_an_errand_that_is_refused_is_told_from_a_back_end_that_is_away(cluster: Scripted, heard: str) -> None:
    desk = Desk(cluster)
    found: list[str] = []
    desk.steward.submit(ERRAND, "slurm0", 2, found.append, lambda exc: found.append(f"{type(exc).__name__}: {exc}"))
    desk.settle()
    assert found == [heard]
    assert [(e.job, e.slot, e.attempt) for e in desk.told if isinstance(e, SlotAsked)] == [("7", "slurm0", 2)] * (
        heard == "7"
    )
    assert issubclass(Unreachable, ClusterError)
    desk.steward.close()
    assert cluster.closed


def test_what_a_back_end_remarks_on_an_errand_that_it_takes_is_said_once() -> None:
    desk = Desk(Scripted(notes=["not handed on to jobs: SBATCH_ACCOUNT"]))
    for said in (["scripted: not handed on to jobs: SBATCH_ACCOUNT"], [], ["scripted: maintenance on Friday"]):
        desk.said.clear()
        desk.steward.submit(ERRAND, "slurm0", 1, lambda _job: None, lambda exc: pytest.fail(str(exc)))
        desk.settle()
        assert desk.said == said
        if not said:
            desk.cluster.notes.append("maintenance on Friday")
    desk.steward.close()


def test_nobody_is_asked_of_a_job_again_before_the_answer() -> None:
    """Where a back end takes seconds for each, and there are many slots, what matters would wait behind it."""
    desk = Desk()
    seen: list[Sighting] = []
    for _ in range(3):
        desk.steward.sight("7", seen.append)
    desk.steward.sight("8", seen.append)
    desk.settle()
    assert desk.cluster.sighted == ["7", "8"]
    desk.steward.sight("7", seen.append)
    desk.settle()
    assert desk.cluster.sighted == ["7", "8", "7"]
    assert len(seen) == 3
    desk.steward.close()


def test_that_a_back_end_is_away_is_said_once_until_it_answers() -> None:
    desk = Desk()
    for down, said in ((True, ["no answer"]), (True, []), (False, []), (True, ["no answer"])):
        desk.cluster.down = down
        desk.said.clear()
        for job in ("7", "8"):
            desk.steward.sight(job, lambda _found: None)
            desk.settle()
        assert desk.said == said
    desk.steward.close()


def test_a_job_is_stopped_again_until_that_is_heard() -> None:
    desk = Desk(Scripted(down=True))
    desk.steward.end("slurm0", "7", 1, "over")
    desk.settle()
    assert (desk.told, desk.said) == ([], ["7 could not be ended yet: no answer"])
    desk.cluster.down = False
    desk.steward.turn()
    desk.settle()
    assert desk.told == [], "it is given some time"
    desk.now += STOP_AGAIN_S
    desk.steward.turn()
    desk.settle()
    (left,) = desk.told
    assert isinstance(left, SlotLeft)
    assert (left.job, left.reason, desk.cluster.stopped) == ("7", "over", ["7"])
    desk.steward.close()
    assert len(desk.said) == 1


def test_the_last_thing_is_one_more_try_and_a_word_if_that_fails() -> None:
    desk = Desk(Scripted(down=True))
    for job in ("7", "8"):
        desk.steward.end("slurm0", job, 1, "over")
    desk.steward.close()
    assert [line for line in desk.said if "may be there still" in line] == [
        "7 of scripted may be there still; it ends by itself",
        "8 of scripted may be there still; it ends by itself",
    ]
