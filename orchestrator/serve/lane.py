"""Work that must not be done on the event loop, and what comes of it, shared by all who ask.

A lane is one thread. It is a daemon: a report that is being made does not delay the end of the server.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import PriorityQueue
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: A run is looked at no more often than this.
LEAST_S: Final = 2.0
#: Of a core, what is made again and again of one run.
MOST_SHARE: Final = 0.02
#: Who has an older value is not kept waiting longer for a newer one.
PATIENCE_S: Final = 1.0


class Lane:
    """Does one job after another, the most urgent (lowest) first, and `prepare` before all."""

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._prepare = prepare
        self._jobs: PriorityQueue[tuple[int, int, Callable[[], None]]] = PriorityQueue()
        self._numbers = itertools.count()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Callable[[], T], urgency: int = 0) -> T:
        """What `job` gives; raises what it raises."""
        future: Future[T] = Future()
        self._jobs.put((urgency, next(self._numbers), partial(_perform, job, future)))
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        self._prepare()
        while True:
            self._jobs.get()[2]()


def _perform(job: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as exc:
        future.set_exception(exc)


class Shared(Generic[T]):
    """One value that many ask for. It is made when somebody asks, at most every LEAST_S and for at most MOST_SHARE of
    the time.

    make   the value anew, given the last one, which it may give back if nothing has changed
    grows  the first time pays for what later ones build on, and tells nothing of what they cost
    """

    def __init__(
        self,
        lane: Lane,
        make: Callable[[T | None], T],
        *,
        urgency: int = 0,
        grows: bool = False,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._lane, self._make, self._urgency, self._grows, self._clock = lane, make, urgency, grows, clock
        self._cpu_clock = cpu_clock
        self._value: T | None = None
        self._due_at = float("-inf")
        self._making: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def get(self) -> T:
        """The newest there is: waits for the first one, and PATIENCE_S for a newer one. Raises what `make` raised."""
        while (found := await self.glance(PATIENCE_S)) is None:
            pass
        return found

    async def glance(self, patience_s: float) -> T | None:
        """The same; None if there is none yet after `patience_s`."""
        if self._making is None and self._clock() >= self._due_at:
            self._making = asyncio.create_task(self._renew())
        if self._making is not None:
            await asyncio.wait({self._making}, timeout=patience_s)
        if self._failure is not None:
            raise self._failure
        return self._value

    def forget(self) -> None:
        """To save memory; who asks again waits again."""
        if self._making is None:
            self._value, self._due_at = None, float("-inf")

    async def _renew(self) -> None:
        cost_s, last = 0.0, self._value
        try:
            self._value, cost_s = await self._lane.run(partial(self._timed, last), self._urgency)
            self._failure = None
        except Exception as exc:
            self._failure = exc
        finally:
            counted_s = 0.0 if self._grows and last is None else cost_s
            self._due_at = self._clock() + max(LEAST_S, counted_s / MOST_SHARE)
            self._making = None

    def _timed(self, last: T | None) -> tuple[T, float]:
        """And the CPU seconds that it took."""
        began = self._cpu_clock()
        value = self._make(last)
        return value, self._cpu_clock() - began
