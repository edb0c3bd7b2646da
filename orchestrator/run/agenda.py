"""The points of one worker start: which wait, which is under way, how each ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec.structs

from orchestrator.definition.inputs import Prompt
from orchestrator.events import PointEnded, PointStarted
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import SweepPoint
from orchestrator.run.recording import Book
from orchestrator.run.tally import Earlier, PointState
from orchestrator.schedule import Queue


@dataclass
class Agenda:
    """
    earlier  what former lives of the run left of each point
    skipped  points that nobody needs any more; the end of each point may add some
    """

    points: Sequence[SweepPoint]
    prompts: Mapping[str, Prompt]
    book: Book
    clock: Callable[[], float]
    earlier: Mapping[str, Earlier]
    skipped: Collection[str]

    def __post_init__(self) -> None:
        self._left = deque(self.points)
        self._tried = False
        self._counted = -1, 0
        self.now: PointState | None = None

    def _head(self) -> SweepPoint | None:
        """The next that waits, which stays; those that nobody needs fall away. There may be very many."""
        while self._left and self._left[0].id in self.skipped:
            self._left.popleft()
        return self._left[0] if self._left else None

    @property
    def unfinished(self) -> bool:
        return self.now is not None or self._head() is not None

    @property
    def batches_total(self) -> int:
        """Of this life, as first cut; halves of a lost batch are not counted. Counted anew when more was skipped."""
        if self._counted[0] != len(self.skipped):
            needed = (point for point in self.points if point.id not in self.skipped)
            total = sum(-(-self._lacking(point) // point.config.batch_size) for point in needed)
            self._counted = len(self.skipped), total
        return self._counted[1]

    def catch_up(self) -> None:
        """Ends the points that lack nothing but their end, which an earlier life did not come to. No load for that."""
        waiting = [point for point in self._left if point.id not in self.skipped]
        done = {point.id: point for point in waiting if self._earlier(point).done >= self.prompts.keys()}
        self._left = deque(point for point in waiting if point.id not in done)
        for point in done.values():
            self.finish(self._state(point))

    def open(self, incarnation: str) -> PointState:
        """The next that waits is under way."""
        self._head()
        point = self._left.popleft()
        self.now = self._state(point)
        started = PointStarted(at=self.clock(), point=point.id, incarnation=incarnation, prompts=len(self.prompts))
        self.book.emit(started)
        return self.now

    def _state(self, point: SweepPoint) -> PointState:
        done, bad = self._earlier(point)
        queue = Queue(point.id, tuple(self.prompts), point.config.batch_size, done, bad.keys())
        first = next(iter(bad.values()), None)
        return PointState(point, queue, good=len(done) - len(bad), errors=len(bad), cause=first)

    def _earlier(self, point: SweepPoint) -> Earlier:
        return self.earlier.get(point.id, Earlier())

    def _lacking(self, point: SweepPoint) -> int:
        return max(0, len(self.prompts) - len(self._earlier(point).done))

    def finish(self, state: PointState) -> None:
        """Every prompt has its record."""
        if state.crash and not state.good:
            self.fail(state, state.crash)
        else:
            outcome: OutcomeKind = "ok" if not state.errors else "partial" if state.good else "failed"
            self._end(state, outcome, state.cause)

    def fail(self, state: PointState, cause: Cause) -> None:
        """It is given up; and if nothing came of it, so is all that waits. Not where memory ran out: what needs less
        may fit, and the book skips what does not."""
        if state is not self.now:
            return
        hopeless = state.good == 0 and "oom" not in (cause.cls, cause.root)
        self._end(state, "failed", cause)
        if hopeless:
            self.give_up(cause)

    def give_up(self, cause: Cause) -> None:
        """Every point that has not ended fails for this cause."""
        if self.now:
            self._end(self.now, "failed", cause)
        while self._head():
            self._emit_end(self._left.popleft(), "failed", untried(cause) if self._tried else cause)

    def _end(self, state: PointState, outcome: OutcomeKind, cause: Cause | None = None) -> None:
        self.now, self._tried = None, True
        self._emit_end(state.point, outcome, cause)

    def _emit_end(self, point: SweepPoint, outcome: OutcomeKind, cause: Cause | None) -> None:
        self.book.emit(PointEnded(at=self.clock(), point=point.id, outcome=outcome, cause=cause))


def untried(cause: Cause) -> Cause:
    """Of a point that never ran, for what another did to the engine: its evidence stands there."""
    message = f"not tried, as another point of the same load ended so: {cause.message}"
    return msgspec.structs.replace(cause, message=message, error=None, log_tail="", first_traceback="", stacks="")
