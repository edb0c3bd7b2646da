"""What an outpost and its coordinator tell each other comes back as it was told, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.allocations import Node
from orchestrator.outcomes import Cause
from orchestrator.remote import messages, outpost
from orchestrator.remote.messages import Finished, Joined, Logged, Pulse, Tick, Told, Up, Wrote
from protocol.errors import Malformed, Oversized

TEXT = st.text()
NODE = Node(host="n1", job="12", pid=7, devices=["GPU-1"], kinds=["H"], memory_bytes=[None], cpu="c", cpus="0-3")
CAUSE = Cause(cls="model", message="no such file: b\udcff", phase="preparing")


@given(TEXT, st.binary(), st.integers(1, 1 << 40), st.lists(TEXT))
def test_a_round_trip(text: str, data: bytes, number: int, flags: list[str]) -> None:
    told: list[Up] = [
        Joined(version=1, airlock=text, token=text, node=NODE),
        Told(number=number, event=data),
        Wrote(number=number, point=text, batch=text, incarnation="", records=[data], stats=None, flags=flags),
        Logged(number=number, name=text, text=data),
        Finished(number=number, assignment=1, trouble=text),
        Tick(assignment=number, briefed=True, leaving=text),
    ]
    assert [messages.decode_up(messages.encode(one)) for one in told] == told
    pulse = Pulse(heard=number, assignment=2, leave=text, kill=True)
    assert messages.decode_down(messages.encode(pulse)) == pulse


@given(st.text(st.characters(categories=["L", "Cs"])))
def test_text_that_is_no_unicode_costs_no_message(text: str) -> None:
    cause = Cause(cls="model", message=text, phase="preparing")
    sent = Wrote(number=1, point="p", batch=text, incarnation="", records=[b"\xff"], stats=None, flags=[text])
    for message in (sent, Finished(number=1, assignment=1, trouble=text, cause=cause)):
        back = messages.decode_up(messages.encode(message))
        assert isinstance(back, Wrote | Finished)
        told = back.flags[0] if isinstance(back, Wrote) else back.trouble
        assert len(told) == len(text)
        assert not any("\ud800" <= char <= "\udfff" for char in told)


def test_bytes_stay_bytes_beside_such_text() -> None:
    sent = Wrote(number=1, point="p", batch="\udcff", incarnation="", records=[b"\xff\x00"], stats=None, flags=[])
    back = messages.decode_up(messages.encode(sent))
    assert isinstance(back, Wrote)
    assert (back.records, back.batch) == ([b"\xff\x00"], "\ufffd")


@given(st.binary())
def test_noise_is_refused_or_a_message(data: bytes) -> None:
    for decode in (messages.decode_up, messages.decode_down):
        try:
            decode(data)
        except Malformed:
            continue


def test_what_goes_one_way_is_no_message_the_other_way() -> None:
    with pytest.raises(Malformed):
        messages.decode_down(messages.encode(Tick(assignment=0, briefed=False)))
    with pytest.raises(Malformed):
        messages.decode_up(messages.encode(Pulse(heard=0, assignment=0)))


def test_too_much_is_refused_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(Oversized):
        messages.encode(Logged(number=1, name="w1.log", text=b"x" * 101))


def test_a_batch_that_is_too_much_to_tell_fails_its_points_and_takes_no_allocation_along() -> None:
    """Or every allocation in turn would end of it, and the run with the last."""

    def work() -> str:
        raise Oversized(3 << 20, 2 << 20)

    trouble, cause = outpost._try(work)
    assert trouble == ""
    assert cause is not None
    assert (cause.cls, cause.phase) == ("protocol", "busy")
    assert cause.message.startswith("a batch's records come to 3.0 MiB, and at most 2.0 MiB travel")
