"""One worker on its slot, from launch to release, working off what its job has left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec.structs

from orchestrator.errors import LaunchFailed
from orchestrator.events import STANDBY, DevicesUsed, Early
from orchestrator.outcomes import Cause, CauseClass
from orchestrator.progress import WorkerProgress
from orchestrator.reaper import ProcessRef
from orchestrator.record.output import FLAG_SUSPENDED
from orchestrator.run import notices
from orchestrator.run.autopsy import not_launched
from orchestrator.run.docket import Job
from orchestrator.run.dominated import shared
from orchestrator.run.incarnation import Answer, Incarnation
from orchestrator.run.life import WORKING, KillRequested, Life, Postponed, State, StopRequested
from orchestrator.run.reclaim import SAMPLE_INTERVAL_S, MemoryWatch
from orchestrator.run.recording import Beside
from orchestrator.run.slots import Slot
from orchestrator.run.standby import crowded_out
from orchestrator.run.surroundings import Surroundings
from orchestrator.run.telemetry import Telemetry
from protocol.messages import BatchDone
from protocol.specs import PromptBatch


@dataclass
class Stint:
    """`early`: it was started while its slot was another's, and is to be called once that is free. `_finished`: why it
    has nothing left to do. `_loaded`: from the files that the run began with."""

    job: Job
    slot: Slot
    around: Surroundings
    early: Early = ""
    called: bool = True
    _beside: set[str] = field(default_factory=set)
    _unwanted: str = ""
    _finished: str = ""
    _loaded: bool = False

    def launch(self, number: int) -> bool:
        """False where no process can be made; the job is given up, but not beside another's worker."""
        around, services = self.around, self.around.services
        self.called = not self.early
        self.telemetry = Telemetry(around.reader)
        watch = MemoryWatch(self.slot, around.gate.reader, services.clock, early=bool(self.early))
        self.worker = Incarnation(
            name=f"w{number}-{secrets.token_hex(4)}",
            start=self.job.start,
            env=self.job.env,
            watch=watch,
            services=services,
            on_state=self._state_changed,
            on_answer=self._answered,
            early=self.early,
        )
        try:
            self.worker.launch()
        except LaunchFailed as exc:
            self._not_launched(exc)
            return False
        self._launched()
        return True

    def _not_launched(self, exc: LaunchFailed) -> None:
        if self.early:
            self.job.alone = True
            self.around.ledger.console.say(f"{self.label} could not be started and waits for its slot: {exc}")
        else:
            self.job.course.give_up(not_launched(exc))
        self.around.services.channel.dismiss(self.worker.name)
        self.around.services.workplace.clear(self.worker.name)

    def _launched(self) -> None:
        try:
            self.around.ledger.emit(notices.launched(self.worker, self.around.run_dir))
            self.around.keeper.launched(self.worker)
        except BaseException:
            self.worker.close()
            raise

    @property
    def label(self) -> str:
        """As its neighbours know it."""
        method = self.job.start.config.method.name
        return f"{self.slot.name}: {method}" if self.called else f"{STANDBY}{method}"

    @property
    def host(self) -> str:
        return ""

    @property
    def state(self) -> State:
        return self.worker.life.state

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def over(self) -> bool:
        return self.worker.life.over

    def wake_in_s(self, now: float) -> float:
        if self.over or (self._finished and self.state is State.READY):
            return 0.0
        left_s = self.worker.life.deadline - now
        return min(left_s, SAMPLE_INTERVAL_S) if self.state is State.REAPED else left_s

    def fds(self) -> Sequence[int]:
        if self.state is State.REAPED:  # a closed pipe stays readable for ever
            return ()
        return self.worker.handle.fileno_status(), self.worker.handle.fileno_pidfd()

    def find_segments(self, names: Iterable[str]) -> None:
        self.worker.find_segments(names)

    def progress(self) -> WorkerProgress:
        return notices.progress(self.worker, self.job.course, at_work=self.called)

    def close(self) -> None:
        self.worker.close()

    # --- while it lives -----------------------------------------------------------

    def take_frames(self, parts: list[bytes]) -> None:
        self.worker.take_frames(parts)

    def take_news(self) -> None:
        self.worker.take_news()

    def check_clock(self) -> None:
        self.worker.check_clock()

    def call(self) -> None:
        """The slot is its own from now on."""
        self.called = True
        self.worker.call()

    def send_away(self, reason: str) -> None:
        self._unwanted = reason

    def meet(self, others: Iterable[str]) -> None:
        if self.state in (State.LOADING, State.BUSY):
            self._beside.update(others)

    def suspended(self, for_s: float) -> None:
        """No hang of the worker's, but what was measured then is flagged."""
        self.worker.feed(Postponed(for_s))
        self.job.course.mark(FLAG_SUSPENDED)

    def advance(self) -> None:
        worker, stop = self.worker, self.around.stop
        if stop.count > 1:
            if not worker.life.over:
                worker.feed(KillRequested("interrupted twice"))
        elif stop.requested and self.state in WORKING:
            worker.feed(StopRequested("interrupted"))
        elif self.state in WORKING and self.state is not State.BUSY and (reason := self.around.time_up()):
            worker.feed(StopRequested(reason))
        elif self.state is State.STANDBY:
            self._stand_by()
        elif self.state is State.READY:
            self._work()
        elif self.state is State.BUSY:
            self.telemetry.sample()

    def _stand_by(self) -> None:
        if not self.job.course.unfinished:
            self.worker.feed(StopRequested("its points are not needed any more"))
        elif not self.called and self.around.gate.slots.is_out(self.slot):
            self.worker.feed(StopRequested("its slot is out of use"))
        elif not self.called and (reason := self._unwanted or self.around.closed()):
            self.worker.feed(StopRequested(reason))
        elif self.called:
            tree = self.worker.processes.alive()
            match self.around.gate.admits(self.slot, [ref.pid for ref in tree]):
                case "yes" if self.around.model.settled(self.job.course) and self.job.course.unfinished:
                    self.worker.grant(tree)
                case "no":
                    self.worker.feed(StopRequested("its slot is not free"))

    def _work(self) -> None:
        course, worker = self.job.course, self.worker
        if self._finished:
            worker.feed(StopRequested(self._finished))
            return
        if not (self._loaded or self.around.model.settled(course)):  # its files may have changed while it read them
            return
        self._loaded = True
        course.explain = self._explain
        batch = course.next_batch(worker.name)
        if batch is None:
            # Told in the next turn: its memory is read once more before, for as long as its processes are many, and
            # the next one can begin meanwhile.
            self._finished = "a fresh process is needed" if course.wants_fresh else "all points are done"
        else:
            self._watch(batch)
            worker.dispatch(batch)

    def _explain(self, cause: Cause) -> Cause:
        return self._excuse(cause, self.worker.processes.alive())

    def _excuse(self, cause: Cause, ours: Iterable[ProcessRef]) -> Cause:
        excused = self.around.gate.excuse(cause, self.slot, [ref.pid for ref in ours])
        return shared(excused, self.job.start.config.device, self._beside)

    def _watch(self, batch: PromptBatch) -> None:
        self._beside.clear()
        if batch.warmup:
            self.telemetry.forget()
        else:
            uuids = [one.uuid for one in self.slot.devices]
            self.telemetry.begin(uuids, self.worker.handle.warden_pid, self.slot.cpus)

    def _state_changed(self, worker: Incarnation, before: Life, after: Life) -> None:
        if {before.state, after.state} == {State.READY, State.BUSY}:
            return  # told by the batches' own events
        self.around.ledger.emit(notices.state_changed(worker, before, after, self.around.services.clock()))
        if after.state is State.READY and worker.metadata is not None:
            worker.processes.look()
            worker.autopsy.known = worker.processes.alive()
            self.around.ledger.emit(notices.ready(worker, worker.metadata))

    def _answered(self, worker: Incarnation, answer: Answer) -> None:
        beside = Beside(self.telemetry.end_host(), tuple(sorted(self._beside)))
        if used := self.telemetry.end_devices():
            now = time.time()
            event = DevicesUsed(at=now, batch=answer.batch_id, incarnation=worker.name, devices=used)
            self.around.ledger.emit(event)
        if isinstance(answer, BatchDone):
            worker.watch.note_peak(answer.stats.peak_memory_bytes)
        if self.around.keeper.heard(worker, answer):
            self.job.course.answered(worker.name, answer, beside)

    # --- its end --------------------------------------------------------------------

    def end(self) -> None:
        worker, course, around = self.worker, self.job.course, self.around
        try:
            cause = self._cause()  # before its folder is removed, which may be what filled a disk
            if not course.wants_fresh:
                around.keeper.ended(worker)
        finally:
            worker.close()
        if self.called:
            around.gate.leave(self.slot)
        if excused := around.keeper.excuse(worker, cause) or (self.early and crowded_out(self.job, cause)):
            self._release(excused)
            course.excuse()
            return
        self._release(cause)
        course.worker_ended(worker.name, None if around.stop.requested else cause)
        if said := course.pop_lost_device():
            around.gate.distrust(self.slot, said, worker.name)

    def _cause(self) -> Cause | None:
        """Whoever stops us may have stopped the worker first, as a batch system does: nobody is to blame then."""
        worker, gate, stop = self.worker, self.around.gate, self.around.stop
        if stop.requested:
            phase = (worker.life.exited_in or worker.life.state).value
            return Cause(cls="interrupted", message=stop.name, phase=phase, incarnation=worker.name)
        cause = worker.settle_cause(device_lost=gate.lost(self.slot), short=self.around.full())
        return cause and self._excuse(msgspec.structs.replace(cause, incarnation=worker.name), worker.processes.left)

    def _release(self, cause: Cause | None) -> None:
        self.around.ledger.emit(notices.released(self.worker, cause))
        watch, gate = self.worker.watch, self.around.gate
        if self.state is not State.RELEASED:
            cls: CauseClass = "device_lost" if watch.poll() == "lost" else "busy_device"
            reason = self.worker.stuck or "processes of an earlier worker did not go away"
            guilty = () if self.worker.processes.left else watch.not_back()
            slot = gate.slots.part(self.slot, guilty)
            gate.quarantine(slot, cls, reason, incarnation=self.worker.name, holders=watch.holders())
