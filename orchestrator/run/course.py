"""The course of one worker start: which batch comes next, what became of it, when to give up.

Holds no process and no socket. What happens leaves through the Book, which
journals and shows it.

A worker that dies costs its point one of `limits.restarts`, except while the
crash is being narrowed down to one prompt by halves: that search is free, and
so is the first prompt it finds in each batch. A good record gives them all back, up to
MOST_DEATHS in one point. A point that has spent them ends as failed; if it had
not one good record, the whole start is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.config import Limits
from orchestrator.definition.inputs import Prompt
from orchestrator.events import BatchLost, Cause, Event, OutcomeKind, PointEnded, PointStarted, Record, WarmupDone
from orchestrator.plan import SweepPoint, WorkerStart
from orchestrator.run.causes import from_error
from orchestrator.run.joining import join
from orchestrator.run.recording import error_record, record_of
from orchestrator.schedule import BatchPlan, Queue
from protocol.messages import BatchDone, BatchFailed
from protocol.records import FLAG_SPLIT_BATCH, BatchStats
from protocol.specs import CallParams, PromptBatch, PromptInput

FLAG_NO_WARMUP = "no_warmup"
#: However much a point measures in between: each death costs a load.
MOST_DEATHS = 20
FLAG_SURPLUS_RESULTS = "surplus_results"


class Book(Protocol):
    """Where what happens is written down."""

    def emit(self, event: Event) -> None: ...

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
    ) -> None: ...


@dataclass
class PointState:
    """One point under way. `warm_in` is the incarnation that has run its warm-up; `cause`
    the first that cost a prompt; `crash` the last that cost a worker."""

    point: SweepPoint
    queue: Queue
    good: int = 0
    errors: int = 0
    restarts: int = 0
    deaths: int = 0
    poisoned_chunk: str = ""
    warmups_left: int = 0
    warm_in: str = ""
    warmup_failed: bool = False
    cause: Cause | None = None
    crash: Cause | None = None


@dataclass
class Course:
    start: WorkerStart
    prompts: Mapping[str, Prompt]
    warmup: int
    limits: Limits
    book: Book
    done: Mapping[str, frozenset[str]] = field(default_factory=dict)
    done_errors: Mapping[str, int] = field(default_factory=dict)
    ended: Iterable[str] = ()
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.digests = {p.id: p.digest for p in self.prompts.values()}
        ended = frozenset(self.ended)
        self._waiting = [p for p in self.start.points if p.id not in ended]
        # Over all points of this start, as first cut; halves of a lost batch are not counted.
        self.batches_total = sum(-(-len(self.prompts) // p.config.batch_size) for p in self.start.points)
        self._now: PointState | None = None
        self._flight: tuple[PromptBatch, BatchPlan] | None = None
        self.batches_done = 0
        self.tokens_per_s: float | None = None
        self.measured_s = 0.0

    @property
    def unfinished(self) -> bool:
        return self._now is not None or bool(self._waiting)

    @property
    def point(self) -> SweepPoint | None:
        return self._now.point if self._now else None

    # --- what comes next --------------------------------------------------------

    def next_batch(self, incarnation: str) -> PromptBatch | None:
        """The next batch for this worker, or None when every point has ended."""
        while self.unfinished:
            state = self._now or self._open(self._waiting.pop(0), incarnation)
            self._warm(state, incarnation)
            planned = state.queue.warmup_batch() if state.warmups_left else state.queue.next_batch()
            if planned is not None:
                return self._fly(state, planned, warmup=state.warmups_left > 0)
            self._finish(state)
        return None

    def _open(self, point: SweepPoint, incarnation: str) -> PointState:
        done = self.done.get(point.id, frozenset())
        queue = Queue(point.id, tuple(self.prompts), point.config.batch_size, done)
        errors = self.done_errors.get(point.id, 0)
        self._now = PointState(point, queue, good=len(done) - errors, errors=errors)
        started = PointStarted(at=self.clock(), point=point.id, incarnation=incarnation, prompts=len(self.prompts))
        self.book.emit(started)
        return self._now

    def _warm(self, state: PointState, incarnation: str) -> None:
        """A fresh process is cold: the warm-up runs again in each, unless it is what failed."""
        if state.warm_in != incarnation:
            state.warm_in = incarnation
            state.warmups_left = 0 if state.warmup_failed else self.warmup

    def _fly(self, state: PointState, planned: BatchPlan, *, warmup: bool) -> PromptBatch:
        inputs = [PromptInput(i, self.prompts[i].token_ids) for i in planned.prompt_ids]
        batch = PromptBatch(planned.batch_id, inputs, CallParams.of(state.point.config), warmup)
        self._flight = (batch, planned)
        return batch

    # --- what became of it ------------------------------------------------------

    def answered(self, incarnation: str, answer: BatchDone | BatchFailed) -> None:
        assert self._now is not None
        assert self._flight is not None
        (batch, planned), self._flight = self._flight, None
        if isinstance(answer, BatchFailed):
            self._lost(self._now, incarnation, batch, from_error("busy", answer.error), crash=False)
        elif batch.warmup:
            self._now.warmups_left -= 1
            self.book.emit(
                WarmupDone(at=self.clock(), point=self._now.point.id, batch=batch.batch_id, stats=answer.stats)
            )
        else:
            self._commit(self._now, incarnation, batch, planned, answer)

    def _commit(
        self, state: PointState, incarnation: str, batch: PromptBatch, planned: BatchPlan, answer: BatchDone
    ) -> None:
        joined = join(batch, answer.generations, self.digests)
        flags = [FLAG_SPLIT_BATCH] if planned.split else []
        flags += [FLAG_NO_WARMUP] if state.warmup_failed else []
        records = [record_of(state.point, planned, incarnation, g, flags) for g in joined.good]
        for prompt_id, fault in joined.bad.items():
            cause = Cause(cls="engine_error", message=fault)
            records.append(error_record(state.point, planned, incarnation, self.prompts[prompt_id], cause))
        if joined.surplus:
            flags.append(FLAG_SURPLUS_RESULTS)
        self._write(state, incarnation, batch.batch_id, records, answer.stats, flags)
        state.queue.done(batch.batch_id)
        self.batches_done += 1
        self.measured_s += answer.stats.wall_s
        if answer.stats.wall_s > 0:
            self.tokens_per_s = answer.stats.generated_tokens / answer.stats.wall_s

    def worker_ended(self, incarnation: str, cause: Cause | None, *, was_ready: bool) -> None:
        """The worker is gone. Without a cause it had nothing left to do, or we stopped it."""
        flight, self._flight = self._flight, None
        if cause is None:
            return
        if not was_ready:
            self.give_up(cause)
            return
        state = self._now
        if state is None:
            return
        state.crash = cause
        state.deaths += 1
        if flight is None:
            state.restarts += 1
        else:
            self._lost(state, incarnation, flight[0], cause, crash=True)
        if state.restarts > self.limits.restarts or state.deaths > MOST_DEATHS:
            self._give_up_point(state, cause)

    def _lost(self, state: PointState, incarnation: str, batch: PromptBatch, cause: Cause, *, crash: bool) -> None:
        ids = [p.id for p in batch.prompts]
        self.book.emit(
            BatchLost(
                at=self.clock(),
                point=state.point.id,
                batch=batch.batch_id,
                incarnation=incarnation,
                prompts=ids,
                cause=cause,
            )
        )
        if batch.warmup:
            state.warmup_failed, state.warmups_left = True, 0
            return
        planned = state.queue.planned(batch.batch_id)
        if crash and not planned.split:
            state.restarts += 1
        for prompt_id in state.queue.failed(batch.batch_id):
            self._poison(state, planned, incarnation, prompt_id, cause, crash=crash)

    def _poison(
        self, state: PointState, planned: BatchPlan, incarnation: str, prompt_id: str, cause: Cause, *, crash: bool
    ) -> None:
        if crash:
            chunk, _, _ = planned.batch_id.partition(".")
            state.restarts += chunk == state.poisoned_chunk
            state.poisoned_chunk = chunk
        record = error_record(state.point, planned, incarnation, self.prompts[prompt_id], cause)
        self._write(state, incarnation, planned.batch_id, [record], None, [])

    def _write(
        self,
        state: PointState,
        incarnation: str,
        batch_id: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
    ) -> None:
        self.book.commit(
            point=state.point.id, batch=batch_id, incarnation=incarnation, records=records, stats=stats, flags=flags
        )
        bad = [record.error for record in records if record.error is not None]
        state.cause = state.cause or (bad[0] if bad else None)
        state.errors += len(bad)
        state.good += len(records) - len(bad)
        if len(records) > len(bad):
            state.restarts = 0

    # --- giving up ----------------------------------------------------------------

    def _finish(self, state: PointState) -> None:
        """Every prompt has its record."""
        if state.crash and not state.good:
            self._give_up_point(state, state.crash)
        else:
            outcome: OutcomeKind = "ok" if not state.errors else "partial" if state.good else "failed"
            self._end(state, outcome, state.cause)

    def _give_up_point(self, state: PointState, cause: Cause) -> None:
        hopeless = state.good == 0
        self._end(state, "failed", cause)
        if hopeless:
            self.give_up(cause)

    def give_up(self, cause: Cause) -> None:
        """Every point that has not ended fails for this cause."""
        if self._now:
            self._end(self._now, "failed", cause)
        while self._waiting:
            self._emit_end(self._waiting.pop(0), "failed", cause)

    def _end(self, state: PointState, outcome: OutcomeKind, cause: Cause | None = None) -> None:
        self._now = None
        self._emit_end(state.point, outcome, cause)

    def _emit_end(self, point: SweepPoint, outcome: OutcomeKind, cause: Cause | None) -> None:
        self.book.emit(PointEnded(at=self.clock(), point=point.id, outcome=outcome, cause=cause))
