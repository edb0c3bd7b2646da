"""The one place where a run sleeps: until a frame, news of a worker, a signal, a shared segment, or a deadline."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import zmq

from orchestrator.run.incarnation import Incarnation
from orchestrator.run.life import State
from orchestrator.run.reclaim import SAMPLE_INTERVAL_S
from orchestrator.run.segments import ShmWatch
from orchestrator.run.signals import StopFlag
from protocol.channel import RouterChannel

#: How often the live view moves while a batch runs.
VIEW_INTERVAL_S = 1.0
#: A sleep that lasts this much longer than asked for was no sleep: we were stopped, and perhaps the worker with us.
SUSPENDED_S = 3.0


@dataclass
class Vigil:
    channel: RouterChannel
    stop: StopFlag
    clock: Callable[[], float]
    shm: ShmWatch = field(default_factory=ShmWatch)
    view_s: float = VIEW_INTERVAL_S
    _awake_at: float = field(default=0.0, init=False)
    _stopped_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._awake_at = self.clock()
        self._before = signal.signal(signal.SIGCONT, self._go_on)

    def _go_on(self, _signum: int, _frame: FrameType | None) -> None:
        """Whoever goes on after ^Z or a batch system's pause gets SIGCONT, in the middle of a sleep or of work."""
        now = self.clock()
        self._stopped_s += now - self._awake_at
        self._awake_at = now

    def sleep(self, worker: Incarnation) -> bool:
        """At most to the worker's deadline. Whether its warden has news."""
        poller = self._poller(worker)
        left_s = worker.life.deadline - self.clock()
        tick_s = SAMPLE_INTERVAL_S if worker.life.state is State.REAPED else self.view_s
        wanted_s, began = max(0.0, min(left_s, tick_s)), self.clock()
        self._awake_at = began
        ready = dict(poller.poll(int(wanted_s * 1000)))
        if not self._stopped_s and (late_s := self.clock() - began - wanted_s) >= SUSPENDED_S:
            self._stopped_s = late_s  # a frozen control group tells nobody
        self.stop.drain()
        worker.find_segments(self.shm.read() if self.shm.fileno() in ready else ())
        return worker.handle.fileno_status() in ready

    def pop_suspension(self) -> float:
        """Seconds that we were stopped, at most, since this was last asked. Who stops a job for good sends SIGCONT
        too, beside the rest: that is none."""
        stopped_s, self._stopped_s, self._awake_at = self._stopped_s, 0.0, self.clock()
        return 0.0 if self.stop.requested else stopped_s

    def _poller(self, worker: Incarnation) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self.channel.socket, zmq.POLLIN)
        if worker.life.state is not State.REAPED:  # a closed pipe stays readable for ever
            poller.register(worker.handle.fileno_status(), zmq.POLLIN)
            poller.register(worker.handle.fileno_pidfd(), zmq.POLLIN)
        poller.register(self.stop.fileno(), zmq.POLLIN)
        if (made := self.shm.fileno()) is not None:
            poller.register(made, zmq.POLLIN)
        return poller

    def close(self) -> None:
        signal.signal(signal.SIGCONT, self._before)
        self.shm.close()
