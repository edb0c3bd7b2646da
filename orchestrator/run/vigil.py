"""The one place where a run sleeps: until a frame, news of a worker, a signal, a shared segment, or a deadline."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType

import zmq

from orchestrator.run.occupant import Occupant
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

    def sleep(self, occupants: Sequence[Occupant], more: Sequence[int] = ()) -> bool:
        """At most until one of them wants to be looked at. Whether there is news of one. `more`: other descriptors
        that end it."""
        watched = {fd for one in occupants for fd in one.fds()}
        poller = self._poller([*watched, *more])
        began = self.clock()
        wanted_s = max(0.0, min([self.view_s, *(one.wake_in_s(began) for one in occupants)]))
        self._awake_at = began
        ready = dict(poller.poll(int(wanted_s * 1000)))
        if not self._stopped_s and (late_s := self.clock() - began - wanted_s) >= SUSPENDED_S:
            self._stopped_s = late_s  # a frozen control group tells nobody
        self.stop.drain()
        made = self.shm.read() if self.shm.fileno() in ready else ()
        for one in occupants if made else ():
            one.find_segments(made)
        return not watched.isdisjoint(ready)

    def pop_suspension(self) -> float:
        """Seconds that we were stopped, at most, since this was last asked. Who stops a job for good sends SIGCONT
        too, beside the rest: that is none."""
        stopped_s, self._stopped_s, self._awake_at = self._stopped_s, 0.0, self.clock()
        return 0.0 if self.stop.requested else stopped_s

    def _poller(self, fds: Iterable[int]) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self.channel.socket, zmq.POLLIN)
        for fd in fds:
            poller.register(fd, zmq.POLLIN)
        poller.register(self.stop.fileno(), zmq.POLLIN)
        if (made := self.shm.fileno()) is not None:
            poller.register(made, zmq.POLLIN)
        return poller

    def close(self) -> None:
        signal.signal(signal.SIGCONT, self._before)
        self.shm.close()
