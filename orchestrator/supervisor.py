"""The loop: one synchronous poll over the ROUTER, each worker's warden and the wish to stop.

It sleeps when nothing happens. Frames are read before exit news, so that what
a worker managed to say before it died still counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec.structs

from orchestrator.console import Console
from orchestrator.definition.inputs import PromptSet
from orchestrator.definition.limits import with_patience
from orchestrator.envs import EngineEnv
from orchestrator.errors import EnvironmentFailed, LaunchFailed
from orchestrator.events import EXIT_STOPPED_EARLY, FLAG_SUSPENDED, Cause, CauseClass, DevicesUsed, RunEnded, Waited
from orchestrator.launcher import Launcher
from orchestrator.plan import Plan, WorkerStart
from orchestrator.reaper import Reaper
from orchestrator.run import notices
from orchestrator.run.agenda import untried
from orchestrator.run.causes import classify
from orchestrator.run.course import Course
from orchestrator.run.gate import Gate
from orchestrator.run.incarnation import Answer, Incarnation, Services
from orchestrator.run.keeping import Keeper
from orchestrator.run.ledger import Ledger
from orchestrator.run.lending import Lending
from orchestrator.run.life import WORKING, KillRequested, Life, Postponed, State, StopRequested
from orchestrator.run.reclaim import MemoryWatch
from orchestrator.run.signals import StopFlag
from orchestrator.run.slots import Slot
from orchestrator.run.telemetry import Telemetry
from orchestrator.run.vigil import Vigil
from orchestrator.run.workplace import Workplace
from orchestrator.stores.artefacts import ArtefactStore
from orchestrator.stores.home import airlock_home, tag_of
from protocol.channel import RouterChannel
from protocol.messages import BatchDone
from protocol.records import ErrorInfo
from protocol.specs import PromptBatch

#: How long a worker's last frames may take from the kernel through our own I/O thread.
LAST_FRAMES_MS = 50
#: And how long they are awaited while others keep on sending.
LAST_FRAMES_MOST_S = 1.0


@dataclass
class Supervisor:
    plan: Plan
    prompts: PromptSet
    environments: Mapping[str, EngineEnv | EnvironmentFailed]
    gate: Gate
    launcher: Launcher
    reaper: Reaper
    ledger: Ledger
    console: Console
    stop: StopFlag
    run_dir: Path
    telemetry: Telemetry
    clock: Callable[[], float] = time.monotonic
    measured_s: float = 0.0
    listen: str = ""

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._launches = 0
        self._no_room = self._slotless = ""
        self._refused: dict[bytes, Cause] = {}
        self._prompts = {p.id: p for p in self.prompts.prompts}

    # --- the run --------------------------------------------------------------

    def run(self) -> int:
        """Every worker start of the plan, then the exit code."""
        with ExitStack() as stack:
            workplace = Workplace.create(tag_of(self.run_dir))
            stack.callback(workplace.remove)
            channel = RouterChannel(self.listen or workplace.endpoint)
            stack.callback(channel.close)
            self.vigil = Vigil(channel, self.stop, self.clock)
            stack.callback(self.vigil.close)
            log_dir = self.run_dir / "logs"
            log_dir.mkdir(exist_ok=True)
            limits = with_patience(self.plan.limits, self.plan.policies)
            store, run = ArtefactStore.under(airlock_home()), str(self.run_dir.absolute())
            lending = Lending(store, self.plan.model, run, limits.artefacts_mib)
            self.services = Services(
                self.launcher, self.reaper, channel, workplace, limits, self.clock, log_dir, lending
            )
            self.keeper = Keeper(lending, self.ledger.emit)
            self.ledger.skip_unneeded()
            for start in self.plan.starts:
                if self.stop.requested or self._no_room:
                    break
                self._run_start(start)
            return self._finish()

    def _finish(self) -> int:
        code, reason = self._verdict()
        ended = RunEnded(
            at=time.time(),
            exit_code=code,
            wall_s=self.clock() - self._began,
            measured_s=self.measured_s,
            reason=reason,
            dropped=dict(self.services.channel.dropped),
        )
        self.ledger.emit(ended)
        return code

    def _verdict(self) -> tuple[int, str]:
        if self.stop.requested:
            return self.stop.exit_code, f"interrupted by {self.stop.name}"
        if self._no_room:
            return EXIT_STOPPED_EARLY, f"no room: {self._no_room}"
        if self._slotless:
            return EXIT_STOPPED_EARLY, f"no slot is left: {self._slotless}"
        return int(self.ledger.points_failed > 0), ""

    def _run_start(self, start: WorkerStart) -> None:
        course = self._course(start)
        course.catch_up()
        env = self.environments[start.config.method.engine]
        if not course.unfinished:
            return
        if isinstance(env, EnvironmentFailed):
            course.give_up(Cause(cls="environment", message=env.cause, phase="environment", log_tail=env.log_tail))
            return
        if cause := self._refused.get(start.load):  # an earlier repeat came to know it
            course.give_up(untried(cause))
            return
        while course.unfinished and not self.stop.requested:
            if not self._go_on(start, env, course):
                break
        if course.loads.refusal:
            self._refused[start.load] = course.loads.refusal
        self.measured_s += course.measured_s

    def _go_on(self, start: WorkerStart, env: EngineEnv, course: Course) -> bool:
        """One worker's life, if there are room and a slot for it."""
        if short := self.gate.room():
            if self.plan.policies.disk.do == "give_up":
                course.give_up(Cause(cls="disk", message=short))
            else:
                self._no_room = short
            return False
        if self.stop.requested:
            return False
        slot = self.gate.slot()
        if slot is None:
            assert self.gate.no_slot is not None
            self._slotless = self.gate.no_slot.message
            course.give_up(self.gate.no_slot)
            return False
        self._live(start, env, course, slot)
        return True

    def _course(self, start: WorkerStart) -> Course:
        return Course(
            start=start,
            prompts=self._prompts,
            warmup=self.plan.warmup,
            policies=self.plan.policies,
            book=self.ledger,
            earlier=self.ledger.earlier,
            ended=tuple(self.ledger.ended),
            skipped=self.ledger.skipped,
        )

    # --- one worker, from launch to release --------------------------------------

    def _live(self, start: WorkerStart, env: EngineEnv, course: Course, slot: Slot) -> None:
        worker = self._launch(start, env, course, slot)
        if worker is None:
            return
        course.explain = lambda cause: self.gate.excuse(cause, slot, [ref.pid for ref in worker.tree()])
        try:
            while not worker.life.over:
                has_news = self.vigil.sleep(worker)
                self._heed_suspension(worker, course)
                if has_news:
                    self._await_last_frames(worker)
                self._read_frames(worker)
                worker.take_news()
                self._heed_suspension(worker, course)  # or what came meanwhile would count as time of the worker's
                worker.check_clock()
                self._advance(worker, course)
            cause = self._cause_of(worker)  # before its folder is removed, which may be what filled a disk
            if not course.wants_fresh:
                self.keeper.ended(worker)
        finally:
            worker.close()
        self.gate.leave()
        if excused := self.keeper.excuse(worker, cause):
            self._release(worker, excused)
            course.excuse()
            return
        self._release(worker, cause)
        blamed = None if self.stop.requested else cause
        course.worker_ended(worker.name, blamed)
        if said := course.pop_lost_device():
            self.gate.distrust(slot, said, worker.name)

    def _cause_of(self, worker: Incarnation) -> Cause | None:
        """Whoever stops us may have stopped the worker first, as a batch system does: nobody is to blame then."""
        if self.stop.requested:
            phase = (worker.life.exited_in or worker.life.state).value
            return Cause(cls="interrupted", message=self.stop.name, phase=phase, incarnation=worker.name)
        slot, left = worker.watch.slot, [ref.pid for ref in worker.processes_left]
        cause = worker.settle_cause(device_lost=self.gate.lost(slot), short=self.gate.full())
        return cause and self.gate.excuse(msgspec.structs.replace(cause, incarnation=worker.name), slot, left)

    def _launch(self, start: WorkerStart, env: EngineEnv, course: Course, slot: Slot) -> Incarnation | None:
        self._launches += 1
        name = f"w{self._launches}-{secrets.token_hex(4)}"
        watch = MemoryWatch(slot, self.gate.reader, self.clock)
        worker = Incarnation(
            name=name,
            start=start,
            env=env,
            watch=watch,
            services=self.services,
            on_state=self._state_changed,
            on_answer=lambda w, answer: self._answered(w, answer, course),
        )
        try:
            worker.launch()
        except LaunchFailed as exc:
            error = ErrorInfo(type=type(exc).__name__, message=str(exc))
            cls = classify("importing", error)  # an environment that can't be started is one that can't be imported
            course.give_up(Cause(cls=cls, message=str(exc), phase="launching"))
            self.services.channel.dismiss(name)
            self.services.workplace.clear(name)
            return None
        try:
            self.ledger.emit(notices.launched(worker, self.run_dir))
            self.keeper.launched(worker)
        except BaseException:
            worker.close()
            raise
        return worker

    def _heed_suspension(self, worker: Incarnation, course: Course) -> None:
        """A stopped job (^Z, a batch system that makes room) is no hang; but what was measured then is flagged."""
        for_s = self.vigil.pop_suspension()
        if not for_s:
            return
        worker.feed(Postponed(for_s))
        self.gate.postpone(for_s)
        course.mark(FLAG_SUSPENDED)
        self.ledger.emit(Waited(at=time.time(), what="suspended", reason="this coordinator was stopped", wait_s=for_s))

    def _await_last_frames(self, worker: Incarnation) -> None:
        """What it sent before it ended was in the kernel first, but our I/O thread may not have read it yet."""
        give_up_at = self.clock() + LAST_FRAMES_MOST_S
        while self.services.channel.socket.poll(LAST_FRAMES_MS) and self.clock() < give_up_at:
            self._read_frames(worker)

    def _read_frames(self, worker: Incarnation) -> None:
        """What waits, but never more than a turn's worth: a flood must not keep us from the clock."""
        for name, frames in self.services.channel.turn():
            if name == worker.name.encode("ascii"):
                worker.take_frames(frames)

    def _advance(self, worker: Incarnation, course: Course) -> None:
        state = worker.life.state
        if self.stop.count > 1:
            if not worker.life.over:
                worker.feed(KillRequested("interrupted twice"))
        elif self.stop.requested and state in WORKING:
            self.console.say("stopping; what is committed stays, --resume goes on from there; once more kills at once")
            worker.feed(StopRequested("interrupted"))
        elif state is State.STANDBY:
            self._admit(worker)
        elif state is State.READY:
            batch = course.next_batch(worker.name)
            if batch is None:
                reason = "a fresh process is needed" if course.wants_fresh else "all points are done"
                worker.feed(StopRequested(reason))
            else:
                self._watch(worker, batch)
                worker.dispatch(batch)
        elif state is State.BUSY:
            self.telemetry.sample()
        self._show_progress(worker, course)

    def _watch(self, worker: Incarnation, batch: PromptBatch) -> None:
        if batch.warmup:
            self.telemetry.forget()
        else:
            self.telemetry.begin([one.uuid for one in worker.watch.slot.devices], worker.handle.warden_pid)

    def _admit(self, worker: Incarnation) -> None:
        tree = worker.tree()
        match self.gate.admits(worker.watch.slot, [ref.pid for ref in tree]):
            case "yes":
                worker.grant(tree)
            case "no":
                worker.feed(StopRequested("its slot is not free"))

    # --- what is told -----------------------------------------------------------

    def _state_changed(self, worker: Incarnation, before: Life, after: Life) -> None:
        if {before.state, after.state} == {State.READY, State.BUSY}:
            return  # told by the batches' own events
        self.ledger.emit(notices.state_changed(worker, before, after, self.clock()))
        if after.state is State.READY and worker.metadata is not None:
            worker.look()
            worker.autopsy.known = worker.tree()
            self.ledger.emit(notices.ready(worker, worker.metadata))

    def _answered(self, worker: Incarnation, answer: Answer, course: Course) -> None:
        host = self.telemetry.end_host()
        if used := self.telemetry.end_devices():
            now = time.time()
            self.ledger.emit(DevicesUsed(at=now, batch=answer.batch_id, incarnation=worker.name, devices=used))
        if isinstance(answer, BatchDone):
            worker.watch.note_peak(answer.stats.peak_memory_bytes)
        if self.keeper.heard(worker, answer):
            course.answered(worker.name, answer, host)

    def _release(self, worker: Incarnation, cause: Cause | None) -> None:
        self.ledger.emit(notices.released(worker, cause))
        watch = worker.watch
        if worker.life.state is not State.RELEASED:
            cls: CauseClass = "device_lost" if watch.poll() == "lost" else "busy_device"
            reason = worker.stuck or "processes of an earlier worker did not go away"
            self.gate.quarantine(watch.slot, cls, reason, incarnation=worker.name, holders=watch.holders())

    def _show_progress(self, worker: Incarnation, course: Course) -> None:
        self.console.progress(
            msgspec.structs.replace(
                notices.progress(worker, course),
                points_done=self.ledger.points_ended - self.ledger.points_failed,
                points_failed=self.ledger.points_failed,
                points_skipped=len(self.ledger.skipped),
                points_total=len(self.plan.points),
                eta_s=self._eta_s(),
            )
        )

    def _eta_s(self) -> float | None:
        """Remaining points at the mean pace of those that ended in this life; skipped ones took no time."""
        ended_now = self.ledger.points_ended - self.ledger.before
        if not ended_now:
            return None
        return (self.clock() - self._began) / ended_now * self.ledger.points_left
