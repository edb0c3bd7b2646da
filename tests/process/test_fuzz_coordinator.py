"""A hundred thousand frames, most of them damaged, through a real socket into incarnations in every state."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator

import pytest
import zmq

from orchestrator.run.incarnation import Incarnation
from orchestrator.run.life import State, StopRequested
from protocol.channel import DealerChannel
from protocol.messages import Beat, Imported, Ready
from tests.process.launching import Launching
from tests.process.wire_floor import IPC, TCP, Floor, hello, open_channel
from tests.process.worker_peer import batch, scripted
from tests.unit.frames import mutations, resident_bytes
from tests.unit.samples import METADATA

FRAMES = 50_000  # of each transport
FRAMES_PER_WORKER = 500
WORKERS_OF_WARM_UP = 20
SEED = 7
MAX_GROWTH_BYTES = 16 * 1024 * 1024
MAX_TURN_S = 1.0
#: One frame in so many is sent in pieces, as no honest worker would.
ONE_IN_PIECES = 10
STATES = ("unproven", "importing", "standby", "loading", "ready", "busy", "draining")


@pytest.fixture(params=[IPC, TCP])
def floor(launching: Launching, request: pytest.FixtureRequest) -> Iterator[Floor]:
    with open_channel(request.param) as channel:
        yield Floor(launching, channel)


def bring(floor: Floor, worker: Incarnation, wire: DealerChannel, state: str) -> None:
    """By the messages that lead there."""
    steps = STATES.index(state)
    for message in (hello(worker), Imported(0.0, "1"))[:steps]:
        wire.send(message)
        floor.hear()
    if steps > STATES.index("standby"):
        worker.grant(worker.processes.alive())
    if steps > STATES.index("loading"):
        wire.send(Ready(METADATA))
        floor.hear()
    if state == "busy":
        worker.dispatch(batch(scripted(), "asked"))
    if state == "draining":
        worker.feed(StopRequested("done"))
    assert worker.life.state == (State.LAUNCHING if state == "unproven" else state)


def pieces(rng: random.Random, frame: bytes) -> list[bytes]:
    if rng.randrange(ONE_IN_PIECES):
        return [frame]
    cuts = sorted(rng.randrange(len(frame) + 1) for _ in range(rng.randrange(1, 30)))
    return [frame[a:b] for a, b in itertools.pairwise([0, *cuts, len(frame)])]


def pelt(floor: Floor, wire: DealerChannel, frames: Iterator[bytes], rng: random.Random) -> None:
    """Sends them as fast as they go; all of them must come out at the other end."""
    wanted = floor.received + FRAMES_PER_WORKER
    for frame in itertools.islice(frames, FRAMES_PER_WORKER):
        parts = pieces(rng, frame)
        while True:
            try:
                wire.socket.send_multipart(parts, zmq.NOBLOCK)
                break
            except zmq.Again:
                floor.turn(wait_ms=1)
    floor.hear(wanted - floor.received)


def test_a_flood_of_damaged_frames(floor: Floor) -> None:
    frames, rng = mutations(SEED), random.Random(SEED)
    sane, sane_wire = floor.hire("w0-sane")
    bring(floor, sane, sane_wire, "standby")
    before = 0
    for number in range(FRAMES // FRAMES_PER_WORKER):
        if number == WORKERS_OF_WARM_UP:
            gc.collect()
            before = resident_bytes()
        state = STATES[number % len(STATES)]
        worker, wire = floor.hire(f"w{number + 1}-fuzz")
        bring(floor, worker, wire, state)
        answers = len(floor.answers)
        pelt(floor, wire, frames, rng)
        if state == "unproven":
            assert worker.life.state is State.LAUNCHING
            assert worker.metadata is None
            assert 0 < sum(worker.hearing.dropped.values()) <= FRAMES_PER_WORKER
        else:
            assert worker.life.state in (State.TERMINATING, State.DRAINING)
            assert (worker.life.cause is None) == (state == "draining")
        assert len(floor.answers) == answers
        sane_wire.send(Beat("standby", number))
        floor.hear()
        assert sane.last_beat is not None
        assert sane.last_beat.progress == number
        wire.close()
        floor.fire(worker.name)
    gc.collect()
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    assert floor.slowest_turn_s < MAX_TURN_S
    assert sane.life.state is State.STANDBY
