"""The loop: one synchronous poll over the ROUTER, each worker's warden and the wish to stop.

It sleeps when nothing happens. Frames are read before exit news, so that what
a worker managed to say before it died still counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec.structs
import zmq

from orchestrator.console import Console
from orchestrator.definition.inputs import PromptSet
from orchestrator.devices import DeviceReader
from orchestrator.envs import EngineEnv
from orchestrator.errors import EnvironmentFailed, LaunchFailed
from orchestrator.events import (
    BatchCommitted,
    Cause,
    Event,
    PointEnded,
    Record,
    RunEnded,
    SlotQuarantined,
)
from orchestrator.journal import Journal
from orchestrator.launcher import Launcher
from orchestrator.plan import Plan, WorkerStart
from orchestrator.reaper import Reaper
from orchestrator.record.replay import Replay
from orchestrator.run import notices
from orchestrator.run.course import Course
from orchestrator.run.incarnation import Answer, Incarnation, Services
from orchestrator.run.life import KillRequested, Life, State, StopRequested
from orchestrator.run.reclaim import SAMPLE_INTERVAL_S, MemoryWatch, Slot
from orchestrator.run.signals import StopFlag
from orchestrator.run.workplace import Workplace
from orchestrator.stores.home import tag_of
from protocol.channel import RouterChannel
from protocol.messages import BatchDone
from protocol.records import BatchStats

#: How often the live view moves while a batch runs.
VIEW_INTERVAL_S = 1.0
#: How long a worker's last frames may take from the kernel through our own I/O thread.
LAST_FRAMES_MS = 50


@dataclass
class Supervisor:
    plan: Plan
    prompts: PromptSet
    environments: Mapping[str, EngineEnv | EnvironmentFailed]
    slot: Slot
    reader: DeviceReader | None
    launcher: Launcher
    reaper: Reaper
    journal: Journal
    replay: Replay | None
    console: Console
    stop: StopFlag
    run_dir: Path
    clock: Callable[[], float] = time.monotonic
    measured_s: float = 0.0
    failed_points: int = 0
    ended_points: int = 0
    quarantined: str = ""
    dropped_frames: int = 0

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._launches = 0
        self._ended = dict(self.replay.outcomes) if self.replay else {}
        self.ended_points = len(self._ended)
        self.failed_points = sum(e.outcome != "ok" for e in self._ended.values())
        self._prompts = {p.id: p for p in self.prompts.prompts}
        self._done = {point: frozenset(ids) for point, ids in (self.replay.committed if self.replay else {}).items()}
        self._done_errors = self.replay.errors if self.replay else {}
        self._points_total = len(self.plan.points)

    # --- the book -------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self.journal.emit(event)
        self.console.show(event)
        if isinstance(event, PointEnded):
            self.ended_points += 1
            self.failed_points += event.outcome != "ok"

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
    ) -> None:
        event: BatchCommitted = self.journal.commit(
            point=point, batch=batch, incarnation=incarnation, records=records, stats=stats, flags=flags
        )
        self.console.show(event)

    # --- the run --------------------------------------------------------------

    def run(self) -> int:
        """Every worker start of the plan, then the exit code."""
        workplace = Workplace.create(tag_of(self.run_dir))
        channel = RouterChannel(workplace.endpoint)
        log_dir = self.run_dir / "logs"
        log_dir.mkdir(exist_ok=True)
        limits = self.plan.limits
        self.services = Services(self.launcher, self.reaper, channel, workplace, limits, self.clock, log_dir)
        try:
            for start in self.plan.starts:
                if self.stop.requested:
                    break
                self._run_start(start)
            return self._finish()
        finally:
            channel.close()
            workplace.remove()

    def _finish(self) -> int:
        if self.stop.requested:
            code, reason = self.stop.exit_code, f"interrupted by signal {self.stop.signum}"
        else:
            code, reason = int(self.failed_points > 0), ""
        ended = RunEnded(
            at=time.time(), exit_code=code, wall_s=self.clock() - self._began, measured_s=self.measured_s, reason=reason
        )
        self.emit(ended)
        return code

    def _run_start(self, start: WorkerStart) -> None:
        course = self._course(start)
        env = self.environments[start.config.method.engine]
        if not course.unfinished:
            return
        if isinstance(env, EnvironmentFailed):
            course.give_up(Cause(cls="environment", message=env.cause, phase="environment", log_tail=env.log_tail))
            return
        while course.unfinished and not self.stop.requested:
            if self.quarantined:
                course.give_up(Cause(cls="busy_device", message=f"slot {self.slot.name}: {self.quarantined}"))
                break
            self._live(start, env, course)
        self.measured_s += course.measured_s

    def _course(self, start: WorkerStart) -> Course:
        return Course(
            start=start,
            prompts=self._prompts,
            warmup=self.plan.warmup,
            limits=self.plan.limits,
            book=self,
            done=self._done,
            done_errors=self._done_errors,
            ended=self._ended,
        )

    # --- one worker, from launch to release --------------------------------------

    def _live(self, start: WorkerStart, env: EngineEnv, course: Course) -> None:
        worker = self._launch(start, env, course)
        if worker is None:
            return
        try:
            while not worker.life.over:
                self._wait(worker)
                self._read_frames(worker)
                worker.take_news()
                worker.check_clock()
                self._advance(worker, course)
        finally:
            worker.close()
        cause = worker.settle_cause()
        self._release(worker, cause)
        # Whoever stops us may have stopped the worker first, as a batch system does: nobody is to blame then.
        blamed = None if self.stop.requested else cause
        course.worker_ended(worker.name, blamed, was_ready=worker.metadata is not None)

    def _launch(self, start: WorkerStart, env: EngineEnv, course: Course) -> Incarnation | None:
        self._launches += 1
        name = f"w{self._launches}-{secrets.token_hex(4)}"
        watch = MemoryWatch(self.slot, self.reader, self.clock)
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
            course.give_up(Cause(cls="environment", message=str(exc), phase="launching"))
            self.services.workplace.clear(name)
            return None
        self.emit(notices.launched(worker, self.run_dir))
        return worker

    def _wait(self, worker: Incarnation) -> None:
        """Sleep until something happens or the next deadline, whichever is first."""
        left_s = worker.life.deadline - self.clock()
        tick_s = SAMPLE_INTERVAL_S if worker.life.state is State.REAPED else VIEW_INTERVAL_S
        poller = zmq.Poller()
        poller.register(self.services.channel.socket, zmq.POLLIN)
        if worker.life.state is not State.REAPED:  # a closed pipe stays readable for ever
            poller.register(worker.handle.fileno_status(), zmq.POLLIN)
            poller.register(worker.handle.fileno_pidfd(), zmq.POLLIN)
        poller.register(self.stop.fileno(), zmq.POLLIN)
        ready = dict(poller.poll(max(0, int(min(left_s, tick_s) * 1000))))
        self.stop.drain()
        if worker.handle.fileno_status() in ready:
            self._await_last_frames(worker)

    def _await_last_frames(self, worker: Incarnation) -> None:
        """What it sent before it ended was in the kernel first, but our I/O thread may not have read it yet."""
        while self.services.channel.socket.poll(LAST_FRAMES_MS):
            self._read_frames(worker)

    def _read_frames(self, worker: Incarnation) -> None:
        while (message := self.services.channel.receive()) is not None:
            identity, frames = message
            if identity == worker.name.encode("ascii"):
                worker.take_frames(frames)
            else:
                self.dropped_frames += 1

    def _advance(self, worker: Incarnation, course: Course) -> None:
        state = worker.life.state
        if self.stop.count > 1:
            if not worker.life.over:
                worker.feed(KillRequested("interrupted twice"))
        elif self.stop.requested and state not in _LEAVING:
            self.console.say("stopping; what is committed stays, --resume goes on from there; once more kills at once")
            worker.feed(StopRequested("interrupted"))
        elif state is State.STANDBY:
            worker.grant()
        elif state is State.READY:
            batch = course.next_batch(worker.name)
            if batch is None:
                worker.feed(StopRequested("all points are done"))
            else:
                worker.dispatch(batch)
        self._show_progress(worker, course)

    # --- what is told -----------------------------------------------------------

    def _state_changed(self, worker: Incarnation, before: Life, after: Life) -> None:
        if {before.state, after.state} == {State.READY, State.BUSY}:
            return  # told by the batches' own events
        self.emit(notices.state_changed(worker, before, after, self.clock()))
        if after.state is State.READY and worker.metadata is not None:
            worker.look()
            self.emit(notices.ready(worker, worker.metadata))

    def _answered(self, worker: Incarnation, answer: Answer, course: Course) -> None:
        if isinstance(answer, BatchDone):
            worker.watch.note_peak(answer.stats.peak_memory_bytes)
        course.answered(worker.name, answer)

    def _release(self, worker: Incarnation, cause: Cause | None) -> None:
        self.emit(notices.released(worker, cause))
        if worker.life.state is not State.RELEASED:
            self.quarantined = "memory or processes of an earlier worker did not go away"
            self.emit(
                SlotQuarantined(at=time.time(), slot=self.slot.name, incarnation=worker.name, reason=self.quarantined)
            )

    def _show_progress(self, worker: Incarnation, course: Course) -> None:
        self.console.progress(
            msgspec.structs.replace(
                notices.progress(worker, course),
                points_done=self.ended_points - self.failed_points,
                points_failed=self.failed_points,
                points_total=self._points_total,
                eta_s=self._eta_s(),
            )
        )

    def _eta_s(self) -> float | None:
        """Remaining points at the mean pace of those that ended in this life."""
        ended_now = self.ended_points - len(self._ended)
        if not ended_now:
            return None
        left = self._points_total - self.ended_points
        return (self.clock() - self._began) / ended_now * left


_LEAVING = frozenset({State.DRAINING, State.TERMINATING, State.KILLING, State.REAPED, State.RELEASED, State.STUCK})
