"""The coordinator's side of the wire as it is in a run, on a real socket; the workers are the test's."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import lifecycle
from orchestrator.config import Limits
from orchestrator.definition.inputs import SCRIPTED
from orchestrator.envs import EngineEnv, Fingerprint
from orchestrator.launcher import Handle, Started
from orchestrator.plan import WorkerStart
from orchestrator.reaper import Reaper
from orchestrator.run.incarnation import Answer, Incarnation, Services
from orchestrator.run.lending import Lending
from orchestrator.run.reclaim import MemoryWatch
from orchestrator.run.slots import Slot
from orchestrator.run.workplace import Workplace
from orchestrator.stores.artefacts import ArtefactStore
from protocol import PROTOCOL_VERSION
from protocol.channel import DealerChannel, RouterChannel
from protocol.keys import Keys
from protocol.messages import Hello, Up
from tests.process.launching import PATIENCE_S, Launching, until
from tests.process.worker_peer import scripted

#: A process that takes every end it is told to make for a suggestion.
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
START = WorkerStart("s", "scripted", scripted(), ())
ENV = EngineEnv("scripted", "scripted", "python", Fingerprint("3.11", {}, "", ""), "own")

IPC, TCP, TCP6 = "ipc", "tcp://127.0.0.1:*", "tcp://[::1]:*"
ENDPOINTS = (IPC, TCP, TCP6)


@contextmanager
def open_channel(endpoint: str) -> Iterator[RouterChannel]:
    """`IPC` gets a short private folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="al-"))
    channel = RouterChannel(f"ipc://{folder}/s" if endpoint == IPC else endpoint)
    try:
        yield channel
    finally:
        channel.close()
        shutil.rmtree(folder)


class Floor:
    """Incarnations on one channel that share one process, so that thousands of them cost nothing."""

    def __init__(self, launching: Launching, channel: RouterChannel) -> None:
        self.channel = channel
        self._stack = launching.stack
        self.handle: Handle = launching.launch(launching.python(DEAF))
        until(self.handle, lambda event: isinstance(event, Started))
        self.answers: list[Answer] = []
        self.workers: dict[bytes, Incarnation] = {}
        self.received = 0
        self.slowest_turn_s = 0.0
        self.limits = Limits()
        self.later_s = 0.0
        reaper = Reaper(launching.run_tag, launching.launcher.owned)
        workplace = Workplace(launching.folder, launching.run_tag)
        lending = Lending(ArtefactStore.under(launching.folder), SCRIPTED, "", 0)
        self._services = Services(
            launching.launcher, reaper, channel, workplace, self.limits, self.clock, launching.folder, lending
        )

    def clock(self) -> float:
        """`later_s` moves it on."""
        return time.monotonic() + self.later_s

    def hire(self, name: str) -> tuple[Incarnation, DealerChannel]:
        """One that is launching, and its worker's end of the wire, which has said nothing yet."""
        watch = MemoryWatch(Slot("slot0", ()), None, self.clock)
        worker = Incarnation(name, START, ENV, watch, self._services, lambda *_: None, self._answered)
        worker.life = lifecycle.begin(self.clock(), self.limits)
        worker.handle = self.handle
        self.workers[name.encode()] = worker
        wire = dial(self.channel, name, worker.hearing.token)
        self._stack.callback(wire.close)
        return worker, wire

    def fire(self, name: str) -> None:
        self.channel.dismiss(name)
        del self.workers[name.encode()]

    def _answered(self, _worker: Incarnation, answer: Answer) -> None:
        self.answers.append(answer)

    def turn(self, wait_ms: int = 0) -> None:
        """What the supervisor does with frames, once round its loop."""
        self.channel.socket.poll(wait_ms)
        began = time.monotonic()
        for name, parts in self.channel.turn():
            self.received += 1
            self.workers[name].take_frames(parts)
        self.slowest_turn_s = max(self.slowest_turn_s, time.monotonic() - began)

    def hear(self, count: int = 1) -> None:
        """Turns until so many more messages were taken."""
        wanted, deadline = self.received + count, time.monotonic() + PATIENCE_S
        while self.received < wanted:
            assert time.monotonic() < deadline, f"{wanted - self.received} messages did not come"
            self.turn(wait_ms=100)


def dial(channel: RouterChannel, incarnation: str, token: str, keys: Keys | None = None) -> DealerChannel:
    return DealerChannel(channel.endpoint, incarnation, token, keys or channel.admit(incarnation, token))


def hello(worker: Incarnation, protocol: int = PROTOCOL_VERSION) -> Up:
    return Hello(protocol, worker.name, worker.hearing.token, 1, "3")
