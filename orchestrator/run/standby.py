"""Whether the next worker may import its engine before its slot is free, and which slot that will be. No I/O.

standby   beside one that is at work, at low priority: for engines whose work is on a GPU. On the CPUs that a
          measurement runs on an import slows it (a quarter was seen)
teardown  beside one that has done its work or is on its way out: nothing is measured on that slot any more
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from orchestrator.definition.deviceuse import Standby as Wish
from orchestrator.events import Early
from orchestrator.outcomes import Cause
from orchestrator.run.docket import Job
from orchestrator.run.lending import compiles
from orchestrator.run.life import ENDING, State
from orchestrator.run.occupant import Occupant
from orchestrator.run.slots import Slot, joined

#: Beside an engine on a GPU: one for its main thread, one for its scheduler, one for us and one to import on.
LEAST_CPUS = 4
#: An engine's libraries take about 1 GB; a worker at work must not be pushed out for them.
LEAST_MEMORY_BYTES = 4 << 30
ALONE = "start once more, when its slot is free; charged to nobody"
_NOT_LOADED = frozenset({State.LAUNCHING, State.IMPORTING, State.STANDBY})
#: What there is too little of for two engines at once, as Python, libgomp, OpenBLAS and the kernel say it.
_SHORT = re.compile(
    r"can't start new thread|Resource temporarily unavailable|\[Errno (?:11|23)\]|Thread creation failed"
    r"|pthread_create|Too many open files in system",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Standby:
    """
    cpus       that this process may use
    exclusive  no two workers are to run at once
    units      all that the machine has
    available  bytes of host memory that can be had now
    """

    wish: Wish
    cpus: int
    exclusive: bool
    units: Sequence[Slot]
    available: Callable[[], int]

    def beside(self, job: Job, stints: Sequence[Occupant]) -> tuple[Occupant, Early] | None:
        """Whose slot the job is to have, and when its worker may start: now. None for not yet, or never."""
        if self.wish == "off" or job.alone:
            return None
        if compiles(job.start.config) and any(one.job.start.load == job.start.load for one in stints):
            return None  # it is to be lent what that one compiles, which comes back with its end
        fitting = [one for one in stints if len(one.slot.units) >= job.width]
        if leaving := next((one for one in fitting if _is_leaving(one)), None):
            return (leaving, "teardown") if self._disturbs_nobody(leaving, stints) else None
        busy = [one for one in fitting if one.state in (State.READY, State.BUSY)]
        if not busy or not self._may_stand_by(job, busy[0].slot):
            return None
        return min(busy, key=lambda one: one.job.course.batches_left), "standby"

    def _may_stand_by(self, job: Job, slot: Slot) -> bool:
        if self.wish == "on":
            return True
        on_gpu = bool(slot.devices) and job.start.config.device == "cuda"
        return on_gpu and not self.exclusive and self.cpus >= LEAST_CPUS and self.available() >= LEAST_MEMORY_BYTES

    def _disturbs_nobody(self, leaving: Occupant, stints: Sequence[Occupant]) -> bool:
        """Others at work have devices, or CPUs of their own."""
        others = [one for one in stints if one is not leaving and one.state in (State.READY, State.BUSY)]
        return all(one.slot.devices or (one.slot.cpus and leaving.slot.cpus) for one in others)

    def slot_of(self, job: Job, holder: Occupant) -> Slot:
        """As many of its units as the job needs."""
        if len(holder.slot.units) == job.width:
            return holder.slot
        return joined([unit for unit in self.units if unit.name in holder.slot.units][: job.width])


def crowded_out(job: Job, cause: Cause | None) -> Cause | None:
    """The cause as nobody's fault, where a worker that was started early failed, before it loaded, for what it may have
    once the other is gone. Its job waits for that then."""
    if cause is None or cause.phase not in _NOT_LOADED:
        return None
    said = cause.error.traceback if cause.error else ""
    texts = (cause.message, said, cause.first_traceback, cause.log_tail)
    if cause.cls != "oom" and not any(_SHORT.search(text) for text in texts):
        return None
    job.alone = True
    return replace(cause, policy=ALONE)


def _is_leaving(stint: Occupant) -> bool:
    """Has nothing left to do, and will not be followed by another worker of its own job."""
    return stint.called and stint.state in (State.READY, *ENDING) and not stint.job.course.unfinished
