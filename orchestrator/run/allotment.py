"""Who gets a slot next: strictly in the order of the plan, as far as devices, room, memory and time allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrator.definition.inputs import Prompt
from orchestrator.definition.need import short_of
from orchestrator.envs import EngineEnv
from orchestrator.errors import EnvironmentFailed
from orchestrator.events import Early
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, WorkerStart
from orchestrator.run.agenda import untried
from orchestrator.run.budget import Budget
from orchestrator.run.course import Course
from orchestrator.run.docket import Docket, Job
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.occupant import Occupant
from orchestrator.run.roomwait import RoomWait
from orchestrator.run.slots import Slot
from orchestrator.run.standby import Standby

#: Starts a worker of the job on the slot; the last is "" where the slot is its own at once.
Launch = Callable[[Job, Slot, Early], None]


@dataclass
class Allotment:
    """
    elsewhere  what finds no slot here may find one on another machine, so it is left as it is
    stints    those that live; a call may add to them, by `launch`
    memory    bytes that a worker could have on a slot at most, None where that is not told
    no_room   why the run ends before its plan, "" if it does not; slotless: why the rest of it failed
    """

    plan: Plan
    environments: Mapping[str, EngineEnv | EnvironmentFailed]
    prompts: Mapping[str, Prompt]
    ledger: Ledger
    gate: Gate
    room: RoomWait
    standby: Standby
    budget: Budget
    memory: Callable[[Slot], int | None]
    launch: Launch
    stints: Sequence[Occupant]
    elsewhere: bool = False
    no_room: str = ""
    slotless: str = ""
    _refused: dict[bytes, Cause] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._docket = Docket(self.plan.starts, self._job)

    @property
    def waiting(self) -> bool:
        """For room, so that somebody may still come though nobody lives."""
        return self.room.waiting

    @property
    def has_more(self) -> bool:
        """Some job waits that may yet be served."""
        return not (self.no_room or (self.elsewhere and self.slotless)) and self._head() is not None

    def allot(self) -> None:
        """Free slots to whoever is next, and a worker to stand by where that is wanted."""
        while not self.no_room and self._serve_next():
            pass
        if not self.no_room:
            self._stand_by()

    def close(self) -> None:
        """Nobody is to start any more."""
        self.room.leave()

    def part(self, stint: Occupant) -> None:
        """From one whose life is over. What is left of its job waits again."""
        if stint.called:
            self.gate.slots.leave(stint.slot)
        course = stint.job.course
        if course.loads.refusal:
            self._refused[stint.job.start.load] = course.loads.refusal
        self.take_back(stint.job)

    def take_back(self, job: Job) -> None:
        """One that has no worker any more, if it is not done."""
        if job.course.unfinished:
            self._docket.put_back(job)

    # --- jobs ---------------------------------------------------------------------

    def _job(self, place: int, start: WorkerStart) -> Job | None:
        """None, and its points ended, where nothing of it can or need be run."""
        course = self._course(start)
        course.catch_up()
        env = self.environments[start.config.method.engine]
        if not course.unfinished:
            return None
        if isinstance(env, EnvironmentFailed):
            course.give_up(Cause(cls="environment", message=env.cause, phase="environment", log_tail=env.log_tail))
            return None
        width = start.config.ranks if self._has_devices else 1
        return Job(place, start, env, course, width, anew=partial(self._course, start))

    @property
    def _has_devices(self) -> bool:
        return any(unit.devices for unit in self.gate.slots.all)

    def _course(self, start: WorkerStart) -> Course:
        return Course(
            start=start,
            prompts=self.prompts,
            warmup=self.plan.warmup,
            policies=self.plan.policies,
            book=self.ledger,
            earlier=self.ledger.earlier,
            ended=self.ledger.ended,
            skipped=self.ledger.skipped,
        )

    def _head(self) -> Job | None:
        """Those whose load was found to be refused meanwhile fall away."""
        while job := self._docket.head():
            if cause := self._refused.get(job.start.load):
                job.course.give_up(untried(cause))
            elif job.course.unfinished:
                return job
            self._docket.take()
        return None

    # --- slots --------------------------------------------------------------------

    def _serve_next(self) -> bool:
        """Whether somebody was served, or fell away, so that it is worth asking again."""
        job, early = self._head(), self._early()
        if early and not (job and job.place < early.job.place):
            if self.gate.slots.is_free(early.slot):
                return self._call(early)
            if self._has_another(early):
                early.send_away("another slot is free for it")  # it comes back first, and nobody overtakes it
                return False
        if job is None:
            self.room.leave()
            return False
        if self.gate.slots.full or (job.waits_for_all and self.stints):
            return False
        return self._serve(job, early.slot.units if early and early.job.place < job.place else ())

    def _early(self) -> Occupant | None:
        return next((stint for stint in self.stints if not stint.called), None)

    def _has_another(self, early: Occupant) -> bool:
        slots = self.gate.slots
        return not slots.full and self.gate.slot(early.job.width, early.slot.units) is not None

    def _call(self, early: Occupant) -> bool:
        """One that stood by: the same is asked as of one that is started now."""
        if not early.job.course.unfinished:
            return False
        if (cause := self._unfit(early.job, early.slot)) is not None:
            early.job.course.give_up(cause)
            return True
        if not self._has_room(early.job):
            return False
        self.gate.slots.hold(early.slot)
        early.call()
        return True

    def _serve(self, job: Job, barred: tuple[str, ...]) -> bool:
        if cause := self.gate.none_left(job.width):
            self.slotless = cause.message
            return False if self.elsewhere else self._drop(cause)
        slot = self.gate.slot(job.width, barred)
        if slot is None:
            return self.gate.none_left(job.width) is not None
        if not self.budget.allows(job.start):
            if not self._at_work:  # else what is at work may show that it does fit
                self.budget.close()
            return False
        if cause := self._unfit(job, slot):
            return self._too_small(job, slot, cause, barred)
        if not self._has_room(job):
            return not job.course.unfinished
        self.gate.slots.hold(slot)
        self.launch(self._docket.take(), slot, "")
        return True

    @property
    def _at_work(self) -> bool:
        return any(stint.called for stint in self.stints)

    def _unfit(self, job: Job, slot: Slot) -> Cause | None:
        short = short_of(job.start.config, self.plan.model, self.memory(slot))
        return Cause(cls="oom", message=short) if short else None

    def _too_small(self, job: Job, slot: Slot, cause: Cause, barred: tuple[str, ...]) -> bool:
        """Another slot may be larger, or, on the host, memory that others have may come back."""
        if not slot.devices:
            return False if self._at_work else self._drop(cause)
        if any(not self._unfit(job, unit) for unit in self.gate.slots.usable):
            return self._serve(job, (*barred, *slot.units))
        return self._drop(cause)

    def _has_room(self, job: Job) -> bool:
        """False as well where the job is given up for want of it, or the run is to end."""
        match self.room.ask():
            case "yes":
                return True
            case "no" if self.plan.policies.disk.do == "give_up":
                job.course.give_up(Cause(cls="disk", message=self.room.short))
            case "no":
                self.no_room = self.room.short
        return False

    def _drop(self, cause: Cause) -> bool:
        """The next can't be run."""
        self._docket.take().course.give_up(cause)
        return True

    def _stand_by(self) -> None:
        """The next one's worker imports its engine while its slot is still another's."""
        if not self.stints or self._early() or self.room.waiting:
            return
        job = self._head()
        if job is None or job.waits_for_all or not self.budget.allows(job.start):
            return
        found = self.standby.beside(job, self.stints)
        if found and not self.room.is_short:
            holder, early = found
            self.launch(self._docket.take(), self.standby.slot_of(job, holder), early)
