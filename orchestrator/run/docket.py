"""The worker starts that wait, in the order of the plan. No I/O, no clock."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.envs import EngineEnv
from orchestrator.plan import WorkerStart
from orchestrator.run.course import Course


@dataclass
class Job:
    """One worker start under way, through as many workers as it takes.

    place  in the plan
    width  devices that its workers need
    anew   makes its course again, from what the ledger knows by then
    alone  none of its workers is to start before its slot is free
    """

    place: int
    start: WorkerStart
    env: EngineEnv
    course: Course
    width: int
    anew: Callable[[], Course]
    alone: bool = False

    def catch_up(self) -> None:
        """Somebody else worked on it: its course goes on from what came of that."""
        self.course = self.anew()
        self.course.catch_up()

    @property
    def waits_for_all(self) -> bool:
        """What drift is told by must come after everything else."""
        return any(point.role == "drift" for point in self.start.points)


@dataclass
class Docket:
    """Strictly first come, first served: whoever needs many devices is not overtaken by those that need few.

    enter  makes a job of a start; None for one that has nothing left to do
    """

    starts: Sequence[WorkerStart]
    enter: Callable[[int, WorkerStart], Job | None]
    _waiting: list[Job] = field(default_factory=list)
    _next: int = 0

    def head(self) -> Job | None:
        """The next, which stays; those that came back unfinished are among them."""
        while not self._waiting and self._next < len(self.starts):
            self._read_on()
        return self._waiting[0] if self._waiting else None

    def take(self) -> Job:
        return self._waiting.pop(0)

    def put_back(self, job: Job) -> None:
        insort(self._waiting, job, key=lambda one: one.place)

    def _read_on(self) -> None:
        place = self._next
        self._next += 1
        if job := self.enter(place, self.starts[place]):
            self._waiting.append(job)

    @property
    def unread(self) -> Iterator[WorkerStart]:
        """Those that nobody has looked at yet."""
        return (self.starts[place] for place in range(self._next, len(self.starts)))

    @property
    def waiting(self) -> tuple[Job, ...]:
        return tuple(self._waiting)
