"""How long the rest of this run takes, as far as its own and earlier runs' times tell.

It is asked at every turn of the loop, so it is reckoned anew only now and then: it may cost a hundredth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.events import BatchCommitted, Event, PointEnded, PointSkipped, PointStarted
from orchestrator.plan import Plan, WorkerStart
from orchestrator.run.forecast import Estimate, Forecast, Remaining, cells_of, remaining
from orchestrator.run.history import Past

MOST_SHARE: Final = 0.01
LEAST_S: Final = 1.0


@dataclass
class Outlook:
    """
    most  workers at once
    done  prompts that have their record, by point that has not ended; of earlier lives to begin with
    over  points that have ended or are not needed
    """

    plan: Plan
    most: int
    done: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._cells = cells_of(self.plan)
        self._forecast = Forecast(self._cells)
        self._starts = {start.key: start for start in self.plan.starts}
        self._key_of = {point.id: start.key for start in self.plan.starts for point in start.points}
        self._left: dict[str, Remaining | None] = dict.fromkeys(self._starts)
        self._stale = set(self._starts)
        self._next_at = float("-inf")
        self._last: Estimate | None = None

    def recall(self, runs: Iterable[Past]) -> None:
        for past in runs:
            self._forecast.recall(past.cells, past.events)

    def relive(self, events: Iterable[Event]) -> None:
        """Of earlier lives of this run: only what they took."""
        for event in events:
            self._forecast.heed(event)

    def heed(self, event: Event) -> None:
        self._forecast.heed(event)
        match event:
            case BatchCommitted():
                self.done[event.point] = self.done.get(event.point, 0) + len(event.prompts)
            case PointStarted():  # of one that had ended: a retry, in the journal of a later life
                self.over.discard(event.point)
            case PointEnded() | PointSkipped():
                self.over.add(event.point)
                self.done.pop(event.point, None)
            case _:
                return
        self._stale.add(self._key_of[event.point])

    def estimate(self, loaded: Collection[str]) -> Estimate | None:
        """Of all that is left. `loaded`: the keys of the starts that have a worker at work."""
        now = self.clock()
        if now >= self._next_at:
            began = time.perf_counter()
            self._last = self._estimate(loaded)
            self._next_at = now + max(LEAST_S, (time.perf_counter() - began) / MOST_SHARE)
        return self._last

    @property
    def last(self) -> Estimate | None:
        """The last estimate, without a new one."""
        return self._last

    def _estimate(self, loaded: Collection[str]) -> Estimate | None:
        self._freshen()
        begun = (self._of(key, begun=True) for key in loaded)
        rest = (one for key, one in self._left.items() if key not in loaded)
        return self._forecast.eta_s([one for one in (*begun, *rest) if one], self.most)

    def would_fit(self, start: WorkerStart, left_s: float) -> bool | None:
        """Whether a worker that begins now is likely to have measured a batch within `left_s`; None: nobody knows."""
        self._freshen()
        one = self._left[start.key]
        return self._forecast.would_fit(one, left_s) if one else True

    def _freshen(self) -> None:
        while self._stale:
            key = self._stale.pop()
            self._left[key] = self._of(key)

    def _of(self, key: str, *, begun: bool = False) -> Remaining | None:
        start, whole = self._starts[key], len(self.plan.prompt_ids)
        left = {p.id: 0 if p.id in self.over else max(0, whole - self.done.get(p.id, 0)) for p in start.points}
        return remaining(start, self._cells, prompts=whole, warmup=self.plan.warmup, left=left, begun=begun)
