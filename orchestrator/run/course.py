"""The course of one worker start: which batch comes next, what became of it, when to give up.

Holds no process and no socket. What happens leaves through the Book, which
journals and shows it.

What follows a failure is its class's policy. A batch that fails and leaves its
worker alive is first doubted: the engine is asked another prompt (a probe). If
that fails too, the process is of no more use, and the batch counts as one that
killed it. Under "halve" a batch comes back as two halves until one prompt
stands convicted. A worker that dies costs its point one of `times`, except
while such a search goes on; a good record gives them all back, up to
MOST_DEATHS in one point. A point that has spent them ends as failed; if it had
not one good record, the whole start is given up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec.structs

from orchestrator.config import Policies
from orchestrator.definition.inputs import Prompt
from orchestrator.events import BatchLost, Cause, OutcomeKind, PointEnded, PointStarted, Probed, Record, WarmupDone
from orchestrator.plan import SweepPoint, WorkerStart
from orchestrator.run.causes import from_error, is_fatal
from orchestrator.run.joining import join
from orchestrator.run.recording import Book, error_record, record_of
from orchestrator.run.tally import Doubt, Earlier, Flight, PointState, Prober
from orchestrator.schedule import BatchPlan, Queue
from protocol.messages import BatchDone, BatchFailed
from protocol.records import FLAG_SPLIT_BATCH, FLAG_SURPLUS_RESULTS, BatchStats
from protocol.specs import CallParams, PromptBatch, PromptInput

FLAG_NO_WARMUP = "no_warmup"
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
    ended: Iterable[str] = ()
    clock: Callable[[], float] = time.time
    explain: Callable[[Cause], Cause] = lambda cause: cause

    def __post_init__(self) -> None:
        self.digests = {p.id: p.digest for p in self.prompts.values()}
        ended = frozenset(self.ended)
        self._waiting = [p for p in self.start.points if p.id not in ended]
        # Over all points of this start, as first cut; halves of a lost batch are not counted.
        self.batches_total = sum(-(-len(self.prompts) // p.config.batch_size) for p in self.start.points)
        self._now: PointState | None = None
        self._flight: Flight | None = None
        self._doubt: Doubt | None = None
        self._prober = Prober(self.prompts)
        self._failed_loads: Counter[str] = Counter()
        self._marks: list[str] = []
        self._worked = False  # this worker has had a batch
        self._engine_works = False  # it has answered something: only then can a prompt be what is wrong
        self._lost_device = ""
        self._tried = False
        self.wants_fresh = False
        self.batches_done = 0
        self.tokens_per_s: float | None = None
        self.measured_s = 0.0

    @property
    def unfinished(self) -> bool:
        return self._now is not None or bool(self._waiting)

    @property
    def point(self) -> SweepPoint | None:
        return self._now.point if self._now else None

    def catch_up(self) -> None:
        """Ends the points that lack nothing but their end, which an earlier life did not come to. No load for that."""
        for point in [p for p in self._waiting if self._earlier(p).done >= self.prompts.keys()]:
            self._waiting.remove(point)
            self._finish(self._state(point))

    def mark(self, flag: str) -> None:
        """A flag for the batch that is out, if one is."""
        if self._flight and flag not in self._marks:
            self._marks.append(flag)

    # --- what comes next --------------------------------------------------------

    def next_batch(self, incarnation: str) -> PromptBatch | None:
        """The next batch for this worker; None when every point has ended, or when it
        `wants_fresh`: this process is of no more use."""
        while self.unfinished and not self.wants_fresh:
            state = self._now or self._open(self._waiting.pop(0), incarnation)
            if self._doubt:
                return self._probe(state, self._doubt)
            self._warm(state, incarnation)
            planned = state.queue.warmup_batch() if state.warmups_left else state.queue.next_batch()
            if planned is not None:
                return self._fly(state, planned, warmup=state.warmups_left > 0)
            self._finish(state)
        return None

    def _state(self, point: SweepPoint) -> PointState:
        done, bad = self._earlier(point)
        queue = Queue(point.id, tuple(self.prompts), point.config.batch_size, done, bad.keys())
        first = next(iter(bad.values()), None)
        return PointState(point, queue, good=len(done) - len(bad), errors=len(bad), cause=first)

    def _earlier(self, point: SweepPoint) -> Earlier:
        return self.earlier.get(point.id, Earlier())

    def _open(self, point: SweepPoint, incarnation: str) -> PointState:
        self._now = self._state(point)
        started = PointStarted(at=self.clock(), point=point.id, incarnation=incarnation, prompts=len(self.prompts))
        self.book.emit(started)
        return self._now

    def _warm(self, state: PointState, incarnation: str) -> None:
        """A fresh process is cold: the warm-up runs again in each, unless it is what failed."""
        if state.warm_in != incarnation:
            state.warm_in = incarnation
            state.warmups_left = 0 if state.warmup_failed else self.warmup

    def _fly(
        self, state: PointState, planned: BatchPlan, *, warmup: bool, most_tokens: int | None = None
    ) -> PromptBatch:
        inputs = [PromptInput(i, self.prompts[i].token_ids) for i in planned.prompt_ids]
        call = CallParams.of(state.point.config)
        if most_tokens is not None:
            call = msgspec.structs.replace(call, max_new_tokens=min(most_tokens, call.max_new_tokens))
        batch = PromptBatch(planned.batch_id, inputs, call, warmup)
        self._flight, self._marks, self._worked = Flight(batch, planned), [], True
        return batch

    def _probe(self, state: PointState, doubt: Doubt) -> PromptBatch | None:
        chosen = self._prober.choose(state.queue, doubt.flight.planned.prompt_ids)
        if chosen is None:  # nobody to ask: a fresh process is the only way to tell
            self._condemn(state, "")
            return None
        return self._fly(state, state.queue.probe_batch(chosen), warmup=True, most_tokens=PROBE_TOKENS)

    # --- what became of it ------------------------------------------------------

    def answered(self, incarnation: str, answer: BatchDone | BatchFailed) -> None:
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
            self._commit(self._now, incarnation, flight, answer)

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

    def _commit(self, state: PointState, incarnation: str, flight: Flight, answer: BatchDone) -> None:
        batch, planned = flight
        joined = join(batch, answer.generations, self.digests)
        flags = [FLAG_SPLIT_BATCH] if planned.split else []
        flags += [FLAG_NO_WARMUP] if state.warmup_failed else []
        flags += self._marks
        records = [record_of(state.point, planned, incarnation, g, flags) for g in joined.good]
        for prompt_id, fault in joined.bad.items():
            cause = Cause(cls="engine_error", message=fault, phase="busy", policy="record")
            records.append(error_record(state.point, planned, incarnation, self.prompts[prompt_id], cause))
        if joined.surplus:
            flags.append(FLAG_SURPLUS_RESULTS)
        self._write(state, incarnation, batch.batch_id, records, answer.stats, flags)
        state.queue.done(batch.batch_id)
        self._prober.answered(g.prompt_id for g in joined.good)
        self._engine_works = self._engine_works or bool(joined.good)
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
            self._finish(self._now)
        if worked:
            self._failed_loads.clear()
        if cause is None:
            return
        if not worked:  # even if it was ready: as good as not loaded
            self._failed_load(cause)
        elif self._now and doubt:  # it died of the probe
            self._died_of(self._now, incarnation, doubt.flight, doubt.cause)
        elif self._now:
            self._died_of(self._now, incarnation, flight, self._stamped(cause))

    def _failed_load(self, cause: Cause) -> None:
        self._failed_loads[cause.cls] += 1
        self._note_device(cause)
        policy = self.policies.of(cause.cls)
        if self._failed_loads[cause.cls] > policy.loads:
            self.give_up(msgspec.structs.replace(cause, policy=policy.of_loads))

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
            self._give_up_point(state, cause)

    def _lost(self, state: PointState, incarnation: str, flight: Flight, cause: Cause, *, crash: bool) -> None:
        batch, planned = flight
        ids = [p.id for p in batch.prompts]
        lost = BatchLost(
            at=self.clock(),
            point=state.point.id,
            batch=batch.batch_id,
            incarnation=incarnation,
            prompts=ids,
            cause=cause,
        )
        self.book.emit(lost)
        self._note_device(cause)
        policy = self.policies.of(cause.cls)
        if policy.do == "give_up" or (batch.warmup and crash and not policy.times):
            self._give_up_point(state, cause)
        elif batch.warmup:  # one worker that it kills is free, as those of a search are
            # Alive, the process is not proved to work: what fails in it next is the first failure of its prompts.
            (state.queue.failed if crash else state.queue.again)(batch.batch_id)
            state.warmup_failed, state.warmups_left = True, 0
        elif policy.do == "halve":
            self._halve(state, incarnation, planned, cause, crash=crash)
        else:
            state.queue.again(batch.batch_id)
            state.spent[cause.cls] += 1
            if not crash:  # it costs a load all the same
                state.deaths += 1
                self.wants_fresh = True

    def _halve(self, state: PointState, incarnation: str, planned: BatchPlan, cause: Cause, *, crash: bool) -> None:
        works = self._engine_works or state.good > 0
        if crash and not planned.again and (planned.depth == 0 or (planned.depth > 1 and not works)):
            state.spent[cause.cls] += 1  # else it is part of a search, which is free once the engine is known to work
        for prompt_id in state.queue.failed(planned.batch_id, engine_works=works):
            if not works:
                state.queue.later(planned)
                state.spent[cause.cls] += 1
                continue
            state.convict(planned.batch_id, cause, crash=crash)
            self._record_bad(state, incarnation, planned, prompt_id, cause)

    def _record_bad(
        self, state: PointState, incarnation: str, planned: BatchPlan, prompt_id: str, cause: Cause
    ) -> None:
        verdict = msgspec.structs.replace(cause, cls="bad_prompt", root=cause.cls)
        verdict = msgspec.structs.replace(verdict, policy=f"{cause.policy}; {self.policies.bad_prompt}")
        record = error_record(state.point, planned, incarnation, self.prompts[prompt_id], verdict)
        self._write(state, incarnation, planned.batch_id, [record], None, [])
        if self.policies.bad_prompt.do == "give_up":
            self._give_up_point(state, verdict)

    def _stamped(self, cause: Cause) -> Cause:
        """With what its policy says, so that the record shows it."""
        return msgspec.structs.replace(cause, policy=str(self.policies.of(cause.cls)))

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
        state.note(records)

    # --- giving up ----------------------------------------------------------------

    def _finish(self, state: PointState) -> None:
        """Every prompt has its record."""
        if state.crash and not state.good:
            self._give_up_point(state, state.crash)
        else:
            outcome: OutcomeKind = "ok" if not state.errors else "partial" if state.good else "failed"
            self._end(state, outcome, state.cause)

    def _give_up_point(self, state: PointState, cause: Cause) -> None:
        if state is not self._now:
            return
        hopeless = state.good == 0
        self._end(state, "failed", cause)
        if hopeless:
            self.give_up(cause)

    def give_up(self, cause: Cause) -> None:
        """Every point that has not ended fails for this cause."""
        cause = cause if cause.policy else self._stamped(cause)
        if self._now:
            self._end(self._now, "failed", cause)
        while self._waiting:
            self._emit_end(self._waiting.pop(0), "failed", _untried(cause) if self._tried else cause)

    def _end(self, state: PointState, outcome: OutcomeKind, cause: Cause | None = None) -> None:
        self._now, self._tried = None, True
        self._emit_end(state.point, outcome, cause)

    def _emit_end(self, point: SweepPoint, outcome: OutcomeKind, cause: Cause | None) -> None:
        self.book.emit(PointEnded(at=self.clock(), point=point.id, outcome=outcome, cause=cause))


def _untried(cause: Cause) -> Cause:
    """Of a point that never ran, for what another did to the engine: its evidence stands there."""
    message = f"not tried, as another point of the same load ended so: {cause.message}"
    return msgspec.structs.replace(cause, message=message, error=None, log_tail="", first_traceback="", stacks="")
