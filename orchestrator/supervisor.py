"""The loop: one synchronous poll over the ROUTER, every worker's warden and the wish to stop.

It sleeps when nothing happens. Frames are read before exit news, so that what
a worker managed to say before it died still counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.console import Console
from orchestrator.definition.inputs import PromptSet
from orchestrator.definition.limits import with_patience
from orchestrator.envs import EngineEnv
from orchestrator.errors import EnvironmentFailed
from orchestrator.events import Early, RunEnded, Waited
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.launcher import Launcher
from orchestrator.nvml import NvmlReader
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.reaper import Reaper
from orchestrator.remote.yard import Yard
from orchestrator.run.allotment import Allotment
from orchestrator.run.budget import Budget
from orchestrator.run.docket import Job
from orchestrator.run.gate import Gate
from orchestrator.run.incarnation import Services
from orchestrator.run.keeping import Keeper
from orchestrator.run.ledger import Ledger
from orchestrator.run.lending import Lending
from orchestrator.run.life import State
from orchestrator.run.modelwatch import ModelWatch
from orchestrator.run.occupant import Occupant
from orchestrator.run.outlook import Outlook
from orchestrator.run.roomwait import RoomWait
from orchestrator.run.signals import StopFlag
from orchestrator.run.slots import Slot
from orchestrator.run.standby import Standby
from orchestrator.run.stint import Stint
from orchestrator.run.surroundings import Surroundings
from orchestrator.run.vigil import Vigil
from orchestrator.run.workplace import Workplace
from orchestrator.stores.artefacts import ArtefactStore
from orchestrator.stores.home import airlock_home
from protocol.channel import RouterChannel

#: How long a worker's last frames may take from the kernel through our own I/O thread.
LAST_FRAMES_MS = 50
#: And how long they are awaited while others keep on sending.
LAST_FRAMES_MOST_S = 1.0


@dataclass
class Supervisor:
    """
    memory_bytes  what a worker could have on a slot at most, None where that is not told
    elsewhere     see `Allotment`
    cluster       makes the yard of its slots, where the workers are not to be on this machine
    each_turn     what else is to be done now and then; it takes no time
    """

    plan: Plan
    prompts: PromptSet
    environments: Mapping[str, EngineEnv | EnvironmentFailed]
    gate: Gate
    room: RoomWait
    launcher: Launcher
    reaper: Reaper
    ledger: Ledger
    console: Console
    stop: StopFlag
    run_dir: Path
    reader: NvmlReader | None
    standby: Standby
    outlook: Outlook
    memory_bytes: Callable[[Slot], int | None]
    clock: Callable[[], float] = time.monotonic
    listen: str = ""
    elsewhere: bool = False
    cluster: Callable[[RouterChannel, Gate, Budget], Yard] | None = None
    each_turn: Callable[[], None] = lambda: None
    stints: list[Occupant] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._launches = 0
        self._told_to_stop = False
        self.reason = ""
        self.yard: Yard | None = None
        self._points = len(self.plan.points)
        self.budget = Budget(self.plan.stop_after_s, self.outlook, self.clock)
        self.allotment = Allotment(
            plan=self.plan,
            environments=self.environments,
            prompts={p.id: p for p in self.prompts.prompts},
            ledger=self.ledger,
            gate=self.gate,
            room=self.room,
            standby=self.standby,
            budget=self.budget,
            memory=self.memory_bytes,
            launch=self._launch,
            stints=self.stints,
            elsewhere=self.elsewhere,
        )

    # --- the run --------------------------------------------------------------

    def run(self) -> int:
        """Every worker start of the plan, then the exit code."""
        with ExitStack() as stack:
            workplace = Workplace.create(self.reaper.run_tag)
            stack.callback(workplace.remove)
            if not self.listen:
                workplace.require_sockets()
            channel = RouterChannel(self.listen or workplace.endpoint)
            stack.callback(channel.close)
            self.vigil = Vigil(channel, self.stop, self.clock)
            stack.callback(self.vigil.close)
            self.around = self._surroundings(channel, workplace)
            stack.callback(self._close_workers)
            if self.cluster:
                self.yard = self.cluster(channel, self.gate, self.budget)
                stack.callback(self.yard.close)
            self.ledger.skip_unneeded()
            self._allot()
            while self.stints or self.allotment.waiting or self._awaits_slots:
                self._turn()
            if self.yard:
                self.yard.close()  # all that is told of allocations is told before the run's end
            return self._finish()

    @property
    def _awaits_slots(self) -> bool:
        """Of a cluster, and there is work for them."""
        return bool(self.yard) and not self._closed and self.allotment.has_more

    @property
    def _closed(self) -> bool:
        return self.stop.requested or bool(self.budget.over())

    def _surroundings(self, channel: RouterChannel, workplace: Workplace) -> Surroundings:
        log_dir = self.run_dir / "logs"
        log_dir.mkdir(exist_ok=True)
        limits = with_patience(self.plan.limits, self.plan.policies)
        store, run = ArtefactStore.under(airlock_home()), str(self.run_dir.absolute())
        lending = Lending(store, self.plan.model, run, limits.artefacts_mib)
        return Surroundings(
            services=Services(self.launcher, self.reaper, channel, workplace, limits, self.clock, log_dir, lending),
            gate=self.gate,
            ledger=self.ledger,
            keeper=Keeper(lending, self.ledger.emit),
            model=ModelWatch(self.plan.model, self.clock),
            stop=self.stop,
            run_dir=self.run_dir,
            reader=self.reader,
            full=self.room.full,
            time_up=self.budget.over,
            closed=lambda: self.allotment.no_room,
        )

    def _close_workers(self) -> None:
        for stint in self.stints:
            stint.close()

    def _finish(self) -> int:
        code, self.reason = self._verdict()
        ended = RunEnded(
            at=time.time(),
            exit_code=code,
            wall_s=self.budget.spent_s,
            measured_s=self.ledger.measured_s,
            reason=self.reason,
            dropped=dict(self.around.services.channel.dropped),
        )
        self.ledger.emit(ended)
        return code

    def _verdict(self) -> tuple[int, str]:
        if self.stop.requested:
            return self.stop.exit_code, f"interrupted by {self.stop.name}"
        if self.budget.over() and self.ledger.points_left:
            return EXIT_STOPPED_EARLY, self.budget.text(self.ledger.points_left)
        if self.allotment.no_room:
            return EXIT_STOPPED_EARLY, f"no room: {self.allotment.no_room}"
        if self.allotment.slotless:
            return EXIT_STOPPED_EARLY, f"no slot is left: {self.allotment.slotless}"
        return int(self.ledger.points_failed > 0), ""

    # --- who comes next -----------------------------------------------------------

    def _allot(self) -> None:
        if self._closed:
            self.allotment.close()
        else:
            self.allotment.allot()

    def _launch(self, job: Job, slot: Slot, early: Early) -> None:
        if self.yard:
            self.stints.append(self.yard.begin(job, slot))
            return
        self._launches += 1
        stint = Stint(job, slot, self.around, early)
        if stint.launch(self._launches):
            self.stints.append(stint)
        elif early:
            self.allotment.take_back(job)
        else:
            self.gate.slots.leave(slot)

    # --- one turn -----------------------------------------------------------------

    def _turn(self) -> None:
        has_news = self.vigil.sleep(self.stints, [self.yard.fileno()] if self.yard else ())
        self._heed_suspension()
        if has_news:
            self._await_last_frames()
        self._read_frames()
        for stint in self.stints:
            stint.take_news()
        self._heed_suspension()  # or what came meanwhile would count as time of the workers'
        self._tell_stop()
        if self.yard:
            self.yard.turn()
        for stint in self.stints:
            stint.check_clock()
        self._part()
        self._allot()  # before they advance: who stands by is to load in the turn in which its slot is free
        for stint in tuple(self.stints):
            self._advance(stint)
        self._allot()  # and after: beside one that has just been told to leave the next may import already
        for stint in self.stints:
            stint.meet(one.label for one in self.stints if one is not stint and one.host == stint.host)
        self._show_progress()
        self.each_turn()

    def _advance(self, stint: Occupant) -> None:
        stint.advance()

    def _part(self) -> None:
        for stint in [one for one in self.stints if one.over]:
            self.stints.remove(stint)
            stint.end()
            self.allotment.part(stint)

    def _heed_suspension(self) -> None:
        """A stopped job (^Z, a batch system that makes room) is no hang; but what was measured then is flagged."""
        for_s = self.vigil.pop_suspension()
        if not for_s:
            return
        for stint in self.stints:
            stint.suspended(for_s)
        self.gate.postpone(for_s)
        self.room.postpone(for_s)
        self.ledger.emit(Waited(at=time.time(), what="suspended", reason="this coordinator was stopped", wait_s=for_s))

    def _await_last_frames(self) -> None:
        """What one sent before it ended was in the kernel first, but our I/O thread may not have read it yet."""
        give_up_at = self.clock() + LAST_FRAMES_MOST_S
        while self.around.services.channel.socket.poll(LAST_FRAMES_MS) and self.clock() < give_up_at:
            self._read_frames()

    def _read_frames(self) -> None:
        """What waits, but never more than a turn's worth: a flood must not keep us from the clock."""
        workers = {stint.name.encode("ascii"): stint for stint in self.stints}
        for name, frames in self.around.services.channel.turn():
            if name in workers:
                workers[name].take_frames(frames)
            elif self.yard:
                self.yard.take(name.decode("ascii"), frames)

    def _tell_stop(self) -> None:
        if self.stop.requested and not self._told_to_stop:
            self._told_to_stop = True
            self.console.say("stopping; what is committed stays, --resume goes on from there; once more kills at once")
        if self.stop.requested and self.yard:
            self.yard.leave(f"interrupted by {self.stop.name}", kill=self.stop.count > 1)

    def _show_progress(self) -> None:
        loaded = [stint.job.start.key for stint in self.stints if stint.state in (State.READY, State.BUSY)]
        estimate = self.outlook.estimate(loaded)
        eta_s = estimate.eta_s if estimate else None
        self.console.progress(
            Progress(
                workers=[stint.progress() for stint in self.stints],
                points_done=self.ledger.points_ended - self.ledger.points_failed,
                points_failed=self.ledger.points_failed,
                points_skipped=len(self.ledger.skipped),
                points_total=self._points,
                eta_s=eta_s,
            )
        )
