"""The points of one worker start: which wait, which is under way, how each ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec.structs

from orchestrator.definition.inputs import Prompt
from orchestrator.events import Cause, OutcomeKind, PointEnded, PointStarted
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
        self._left = list(self.points)
        self._tried = False
        self.now: PointState | None = None

    @property
    def waiting(self) -> list[SweepPoint]:
        return [point for point in self._left if point.id not in self.skipped]

    @property
    def unfinished(self) -> bool:
        return self.now is not None or bool(self.waiting)

    @property
    def batches_total(self) -> int:
        """As first cut; halves of a lost batch are not counted."""
        needed = (point for point in self.points if point.id not in self.skipped)
        return sum(-(-len(self.prompts) // point.config.batch_size) for point in needed)

    def catch_up(self) -> None:
        """Ends the points that lack nothing but their end, which an earlier life did not come to. No load for that."""
        for point in self.waiting:
            if self._earlier(point).done >= self.prompts.keys():
                self._left.remove(point)
                self.finish(self._state(point))

    def open(self, incarnation: str) -> PointState:
        """The next that waits is under way."""
        point = self.waiting[0]
        self._left.remove(point)
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

    def finish(self, state: PointState) -> None:
        """Every prompt has its record."""
        if state.crash and not state.good:
            self.fail(state, state.crash)
        else:
            outcome: OutcomeKind = "ok" if not state.errors else "partial" if state.good else "failed"
            self._end(state, outcome, state.cause)

    def fail(self, state: PointState, cause: Cause) -> None:
        """It is given up; and if nothing came of it, so is all that waits."""
        if state is not self.now:
            return
        hopeless = state.good == 0
        self._end(state, "failed", cause)
        if hopeless:
            self.give_up(cause)

    def give_up(self, cause: Cause) -> None:
        """Every point that has not ended fails for this cause."""
        if self.now:
            self._end(self.now, "failed", cause)
        for point in self.waiting:
            self._left.remove(point)
            self._emit_end(point, "failed", untried(cause) if self._tried else cause)

    def _end(self, state: PointState, outcome: OutcomeKind, cause: Cause | None = None) -> None:
        self.now, self._tried = None, True
        self._emit_end(state.point, outcome, cause)

    def _emit_end(self, point: SweepPoint, outcome: OutcomeKind, cause: Cause | None) -> None:
        self.book.emit(PointEnded(at=self.clock(), point=point.id, outcome=outcome, cause=cause))


def untried(cause: Cause) -> Cause:
    """Of a point that never ran, for what another did to the engine: its evidence stands there."""
    message = f"not tried, as another point of the same load ended so: {cause.message}"
    return msgspec.structs.replace(cause, message=message, error=None, log_tail="", first_traceback="", stacks="")
