"""The course of one worker start: which batch comes next, what became of it, when to give up.

The points themselves are on its agenda; what a lost batch costs stands in `aftermath`. Holds no process and no
socket. What happens leaves through the Book, which journals and shows it.

What follows a failure is its class's policy. A batch that fails and leaves its worker alive is first doubted: the
engine is asked another prompt (a probe). If that fails too, the process is of no more use, and the batch counts as
one that killed it. Under "halve" a batch comes back as two halves until one prompt stands convicted. A worker that
dies costs its point one of `times`, except while such a search goes on; a good record gives them all back, up to
MOST_DEATHS in one point. A point that has spent them ends as failed; if it had not one good record, the whole start
is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec.structs

from orchestrator.config import Policies
from orchestrator.definition.inputs import Prompt
from orchestrator.events import BatchLost, Probed, WarmupDone
from orchestrator.outcomes import Cause
from orchestrator.plan import SweepPoint, WorkerStart
from orchestrator.record.output import FLAG_NO_WARMUP
from orchestrator.run.aftermath import follow
from orchestrator.run.agenda import Agenda
from orchestrator.run.causes import from_error, is_fatal
from orchestrator.run.recording import NOTHING, Beside, Book, Kept, error_record, kept
from orchestrator.run.tally import Doubt, Earlier, Flight, Loads, PointState, Prober
from orchestrator.schedule import BatchPlan
from protocol.messages import BatchDone, BatchFailed
from protocol.records import BatchStats
from protocol.specs import PromptBatch

#: A probe asks whether the engine answers, not what.
PROBE_TOKENS = 8


@dataclass
class Course:
    start: WorkerStart
    prompts: Mapping[str, Prompt]
    warmup: int
    policies: Policies
    book: Book
    earlier: Mapping[str, Earlier] = field(default_factory=dict)
    ended: Collection[str] = ()
    skipped: Collection[str] = ()
    clock: Callable[[], float] = time.time
    explain: Callable[[Cause], Cause] = lambda cause: cause

    def __post_init__(self) -> None:
        points = [point for point in self.start.points if point.id not in self.ended]
        self._agenda = Agenda(points, self.prompts, self.book, self.clock, self.earlier, self.skipped)
        self._flight: Flight | None = None
        self._doubt: Doubt | None = None
        self._prober = Prober(self.prompts)
        self.loads = Loads(self.policies)
        self._marks: list[str] = []
        self._worked = False  # this worker has had a batch
        self._engine_works = False  # it has answered something: only then can a prompt be what is wrong
        self._lost_device = ""
        self.wants_fresh = False
        self.batches_done = 0
        self.tokens_per_s: float | None = None
        self.measured_s = 0.0

    @property
    def unfinished(self) -> bool:
        return self._agenda.unfinished

    @property
    def batches_total(self) -> int:
        return self._agenda.batches_total

    @property
    def batches_left(self) -> int:
        return max(0, self.batches_total - self.batches_done)

    @property
    def point(self) -> SweepPoint | None:
        return self._now.point if self._now else None

    @property
    def _now(self) -> PointState | None:
        return self._agenda.now

    def catch_up(self) -> None:
        self._agenda.catch_up()

    def mark(self, flag: str) -> None:
        """A flag for the batch that is out, if one is."""
        if self._flight and flag not in self._marks:
            self._marks.append(flag)

    # --- what comes next --------------------------------------------------------

    def next_batch(self, incarnation: str) -> PromptBatch | None:
        """The next batch for this worker; None when every point has ended, or when it
        `wants_fresh`: this process is of no more use."""
        while self.unfinished and not self.wants_fresh:
            state = self._now or self._agenda.open(incarnation)
            if self._doubt:
                return self._probe(state, self._doubt)
            self._warm(state, incarnation)
            planned = state.queue.warmup_batch() if state.warmups_left else state.queue.next_batch()
            if planned is not None:
                return self._fly(state, planned, warmup=state.warmups_left > 0)
            self._agenda.finish(state)
            self.tokens_per_s = None  # what is shown beside a point is its own
        return None

    def _warm(self, state: PointState, incarnation: str) -> None:
        """A fresh process is cold: the warm-up runs again in each, unless it is what failed."""
        if state.warm_in != incarnation:
            state.warm_in = incarnation
            state.warmups_left = 0 if state.warmup_failed else self.warmup

    def _fly(
        self, state: PointState, planned: BatchPlan, *, warmup: bool, most_tokens: int | None = None
    ) -> PromptBatch:
        flight = Flight.of(state.point, planned, self.prompts, warmup=warmup, most_tokens=most_tokens)
        self._flight, self._marks, self._worked = flight, [], True
        return flight.batch

    def _probe(self, state: PointState, doubt: Doubt) -> PromptBatch | None:
        chosen = self._prober.choose(state.queue, doubt.flight.planned.prompt_ids)
        if chosen is None:  # nobody to ask: a fresh process is the only way to tell
            self._condemn(state, "")
            return None
        return self._fly(state, state.queue.probe_batch(chosen), warmup=True, most_tokens=PROBE_TOKENS)

    # --- what became of it ------------------------------------------------------

    def answered(self, incarnation: str, answer: BatchDone | BatchFailed, beside: Beside = NOTHING) -> None:
        """`beside`: what else ran while a measured batch did."""
        assert self._now is not None
        assert self._flight is not None
        flight, self._flight = self._flight, None
        if self._doubt:
            self._judge(self._now, incarnation, flight, ok=isinstance(answer, BatchDone))
        elif isinstance(answer, BatchFailed):
            self._failed(self._now, incarnation, flight, answer)
        elif flight.batch.warmup:
            self._now.warmups_left -= 1
            self.book.emit(
                WarmupDone(at=self.clock(), point=self._now.point.id, batch=answer.batch_id, stats=answer.stats)
            )
        else:
            self._commit(self._now, incarnation, flight, answer, beside)

    def _failed(self, state: PointState, incarnation: str, flight: Flight, answer: BatchFailed) -> None:
        cause = msgspec.structs.replace(from_error("busy", answer.error), incarnation=incarnation)
        self._doubt = Doubt(flight, self._stamped(self.explain(cause)))
        if is_fatal(answer.error):
            self._condemn(state, incarnation)
        elif flight.batch.warmup:
            self._acquit(state, incarnation)

    def _judge(self, state: PointState, incarnation: str, probe: Flight, *, ok: bool) -> None:
        point, batch = state.point.id, probe.planned.batch_id
        self.book.emit(Probed(at=self.clock(), point=point, batch=batch, incarnation=incarnation, ok=ok))
        if ok:
            self._engine_works = True
            self._acquit(state, incarnation)
        else:
            self._prober.bad.update(set(probe.planned.prompt_ids) - self._prober.good)
            self._condemn(state, incarnation)

    def _acquit(self, state: PointState, incarnation: str) -> None:
        """The process works: the batch alone is to blame."""
        assert self._doubt is not None
        (flight, cause), self._doubt = self._doubt, None
        self._lost(state, incarnation, flight, cause, crash=False)
        self._check_spent(state, cause)

    def _condemn(self, state: PointState, incarnation: str) -> None:
        """The process is of no more use: as if it had died of the batch."""
        assert self._doubt is not None
        (flight, cause), self._doubt = self._doubt, None
        self.wants_fresh = True
        self._died_of(state, incarnation or state.warm_in, flight, cause)

    def _commit(self, state: PointState, incarnation: str, flight: Flight, answer: BatchDone, beside: Beside) -> None:
        flags = [*([FLAG_NO_WARMUP] if state.warmup_failed else []), *self._marks]
        found = kept(state.point, flight, incarnation, answer.generations, self.prompts, flags)
        self._write(state, incarnation, flight.batch.batch_id, found, answer.stats, beside)
        state.queue.done(flight.batch.batch_id)
        self._prober.answered(found.good)
        self._engine_works = self._engine_works or bool(found.good)
        self.batches_done += 1
        self.measured_s += answer.stats.wall_s
        if answer.stats.wall_s > 0:
            self.tokens_per_s = answer.stats.generated_tokens / answer.stats.wall_s

    def worker_ended(self, incarnation: str, cause: Cause | None) -> None:
        """The worker is gone. Without a cause it had nothing left to do, or we stopped it."""
        flight, self._flight = self._flight, None
        doubt, self._doubt = self._doubt, None
        self.wants_fresh = False
        worked, self._worked = self._worked, False
        if self._now and self._now.queue.finished:  # its last answer came before its end
            self._agenda.finish(self._now)
        if worked:
            self.loads.failures.clear()
        if cause is None:
            return
        if not worked:  # even if it was ready: as good as not loaded
            self._failed_load(cause)
        elif self._now and doubt:  # it died of the probe
            self._died_of(self._now, incarnation, doubt.flight, doubt.cause)
        elif self._now:
            self._died_of(self._now, incarnation, flight, self._stamped(cause))

    def _failed_load(self, cause: Cause) -> None:
        self._note_device(cause)
        if spent := self.loads.failed(cause):
            self.give_up(spent)

    def _note_device(self, cause: Cause) -> None:
        if cause.cls == "device_lost":
            self._lost_device = cause.message

    def pop_lost_device(self) -> str:
        """What the last worker said of a device of its slot that is lost, "" if nothing. Once."""
        said, self._lost_device = self._lost_device, ""
        return said

    def _died_of(self, state: PointState, incarnation: str, flight: Flight | None, cause: Cause) -> None:
        state.died(cause)
        if flight is None:
            state.spent[cause.cls] += 1
        else:
            self._lost(state, incarnation, flight, cause, crash=True)
        self._check_spent(state, cause)

    def _check_spent(self, state: PointState, cause: Cause) -> None:
        if state.is_spent(cause, self.policies):
            self._agenda.fail(state, cause)

    def _lost(self, state: PointState, incarnation: str, flight: Flight, cause: Cause, *, crash: bool) -> None:
        batch, planned = flight
        ids = [p.id for p in batch.prompts]
        at, point = self.clock(), state.point.id
        self.book.emit(
            BatchLost(at=at, point=point, batch=batch.batch_id, incarnation=incarnation, prompts=ids, cause=cause)
        )
        self._note_device(cause)
        works = self._engine_works or state.good > 0
        found = follow(state, flight, cause, self.policies.of(cause.cls), crash=crash, engine_works=works)
        self.wants_fresh = self.wants_fresh or found.fresh
        if found.give_up:
            self._agenda.fail(state, cause)
        for prompt_id in found.convicted:
            self._record_bad(state, incarnation, planned, prompt_id, cause)

    def _record_bad(
        self, state: PointState, incarnation: str, planned: BatchPlan, prompt_id: str, cause: Cause
    ) -> None:
        verdict = msgspec.structs.replace(cause, cls="bad_prompt", root=cause.cls)
        verdict = msgspec.structs.replace(verdict, policy=f"{cause.policy}; {self.policies.bad_prompt}")
        record = error_record(state.point, planned, incarnation, self.prompts[prompt_id], verdict)
        self._write(state, incarnation, planned.batch_id, Kept([record], []), None, NOTHING)
        if self.policies.bad_prompt.do == "give_up":
            self._agenda.fail(state, verdict)

    def _stamped(self, cause: Cause) -> Cause:
        """With what its policy says, so that the record shows it."""
        return msgspec.structs.replace(cause, policy=str(self.policies.of(cause.cls)))

    def _write(
        self, state: PointState, incarnation: str, batch: str, found: Kept, stats: BatchStats | None, beside: Beside
    ) -> None:
        self.book.commit(
            point=state.point.id,
            batch=batch,
            incarnation=incarnation,
            records=found.records,
            stats=stats,
            flags=found.flags,
            beside=beside,
        )
        state.note(found.records)

    def excuse(self) -> None:
        """The worker is gone for a reason that is charged to nobody: what was out goes again."""
        flight, self._flight = self._flight, None
        self._worked = self.wants_fresh = False
        if flight and self._now:
            self._now.queue.again(flight.batch.batch_id)

    def give_up(self, cause: Cause) -> None:
        """Every point that has not ended fails for this cause."""
        self._agenda.give_up(cause if cause.policy else self._stamped(cause))
