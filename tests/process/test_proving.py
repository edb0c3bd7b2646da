"""Nothing counts that comes before a valid Hello, and nothing that is no message after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.run.incarnation import Incarnation
from orchestrator.run.life import State
from protocol.codec import encode
from protocol.messages import BatchDone, Beat, Fatal, Goodbye, Hello, Imported, Ready
from protocol.parts import PART_BYTES
from protocol.records import BatchStats, ErrorInfo
from tests.process.launching import Launching
from tests.process.wire_floor import IPC, Floor, hello, open_channel
from tests.unit.samples import METADATA

NAME = "w1-0badcafe"
WRONG_TOKEN = "0" * 32

STRANGE = {
    "nothing": [b""],
    "garbage": [b"\xc1 not msgpack"],
    "two parts": [b"a", b"b"],
    "a large message": [bytes(PART_BYTES)] * 16,
    "a fatal error": [encode(Fatal("importing", ErrorInfo(type="X", message="planted")))],
    "imported": [encode(Imported(0.0, "planted"))],
    "ready": [encode(Ready(METADATA))],
    "a result": [encode(BatchDone("b", [], BatchStats(wall_s=0.0, generated_tokens=0)))],
    "a farewell": [encode(Goodbye(METADATA))],
    "a wrong token": [encode(Hello(1, NAME, WRONG_TOKEN, 1, "3"))],
    "a wrong token and protocol": [encode(Hello(99, NAME, WRONG_TOKEN, 1, "3"))],
    "another incarnation": [encode(Hello(1, "w0-0badcafe", WRONG_TOKEN, 1, "3"))],
}


def state(worker: Incarnation) -> State:
    return worker.life.state


@pytest.fixture
def floor(launching: Launching) -> Iterator[Floor]:
    with open_channel(IPC) as channel:
        yield Floor(launching, channel)


@pytest.mark.parametrize("what", STRANGE)
def test_a_stranger_changes_nothing(floor: Floor, what: str) -> None:
    worker, wire = floor.hire(NAME)
    wire.socket.send_multipart(STRANGE[what])
    floor.hear()
    assert state(worker) is State.LAUNCHING
    assert (worker.life.cause, worker.metadata, worker.last_beat, floor.answers) == (None, None, None, [])
    assert sum(worker.hearing.dropped.values()) == 1
    wire.send(hello(worker))
    floor.hear()
    assert state(worker) is State.IMPORTING


def test_beats_before_the_hello_mean_nothing(floor: Floor) -> None:
    """A worker that hangs before its Hello beats all the same."""
    worker, wire = floor.hire(NAME)
    wire.send(Beat("busy", 1))
    floor.hear()
    assert (worker.last_beat, worker.hearing.dropped) == (None, {})


def test_all_that_was_dropped_is_named_at_the_deadline(floor: Floor) -> None:
    worker, wire = floor.hire(NAME)
    for parts in STRANGE.values():
        wire.socket.send_multipart(parts)
    floor.hear(len(STRANGE))
    worker.check_clock()
    assert state(worker) is State.LAUNCHING
    floor.later_s = floor.limits.launch_s + 1
    worker.check_clock()
    cause = worker.life.cause
    assert cause is not None
    assert (cause.cls, cause.phase) == ("protocol", "launching")
    for told in ("3 × a Hello with a wrong token", "1 × Fatal before a valid Hello", "3 × a malformed message"):
        assert told in cause.message
    assert "planted" not in cause.message


def test_another_protocol_number_with_the_right_token_fails_at_once(floor: Floor) -> None:
    worker, wire = floor.hire(NAME)
    wire.send(hello(worker, protocol=99))
    floor.hear()
    assert state(worker) is State.TERMINATING
    assert worker.life.cause is not None
    assert (worker.life.cause.cls, "99" in worker.life.cause.message) == ("protocol", True)


def test_a_message_that_was_cut_off_is_a_failure(floor: Floor) -> None:
    worker, wire = floor.hire(NAME)
    wire.send(hello(worker))
    floor.hear()
    worker.take_frames([])
    assert worker.life.cause is not None
    assert "more parts than memory can hold" in worker.life.cause.message


@pytest.mark.parametrize("what", ["nothing", "garbage", "two parts", "a large message"])
def test_what_is_no_message_after_the_hello_is_a_failure(floor: Floor, what: str) -> None:
    worker, wire = floor.hire(NAME)
    wire.send(hello(worker))
    wire.socket.send_multipart(STRANGE[what])
    floor.hear(2)
    assert state(worker) is State.TERMINATING
    assert worker.life.cause is not None
    assert (worker.life.cause.cls, worker.hearing.dropped) == ("protocol", {})


def test_a_hello_with_a_wrong_token_after_the_right_one_is_dropped(floor: Floor) -> None:
    worker, wire = floor.hire(NAME)
    wire.send(hello(worker))
    wire.socket.send_multipart(STRANGE["a wrong token"])
    floor.hear(2)
    assert state(worker) is State.IMPORTING
    assert worker.hearing.dropped == {"a Hello with a wrong token": 1}


def test_a_flood_of_beats_costs_no_look_each(floor: Floor) -> None:
    """A look at the worker's memory takes milliseconds, and while it loads a beat asks for one."""
    worker, wire = floor.hire(NAME)
    for message in (hello(worker), Imported(0.0, "1")):
        wire.send(message)
    floor.hear(2)
    worker.grant(worker.processes.alive())
    for _ in range(2000):
        while not wire.offer(encode(Beat("loading", 1))):
            floor.turn(wait_ms=1)
    assert state(worker) is State.LOADING
    assert floor.slowest_turn_s < 1.0
