"""What is asked of a back end for a run: by a clerk, and once more where the back end could not be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.clusters.allocations import SlotAsked, SlotLeft
from orchestrator.clusters.base import Cluster, Errand, Sighting, Unheard
from orchestrator.errors import ClusterError
from orchestrator.events import Event
from orchestrator.remote.clerk import Clerk

#: To what could not be stopped it is said again.
STOP_AGAIN_S: Final = 10.0
#: For the back end's last commands.
CLOSE_S: Final = 30.0


class Unreachable(ClusterError):
    """It says nothing of what was asked."""


@dataclass
class Steward:
    """What is there and what is gone is told by `emit`, so that a later life of the run ends what this one can't."""

    cluster: Cluster
    emit: Callable[[Event], None]
    say: Callable[[str], None]
    clock: Callable[[], float]
    _unstopped: dict[str, tuple[float, SlotLeft]] = field(default_factory=dict)
    _asked_of: set[str] = field(default_factory=set)
    _fault: str = ""
    _remarks_said: int = 0

    def __post_init__(self) -> None:
        self._clerk = Clerk()

    def fileno(self) -> int:
        return self._clerk.fileno()

    def turn(self) -> None:
        self._clerk.answers()
        for at, left in tuple(self._unstopped.values()):
            if self.clock() >= at:
                self._end(left)

    def submit(
        self,
        errand: Errand,
        slot: str,
        attempt: int,
        asked: Callable[[str], None],
        refused: Callable[[ClusterError], None],
    ) -> None:
        """`refused` hears Unreachable where the fault is not the errand's."""

        def submitted() -> str:
            try:
                return self.cluster.submit(errand)
            except ClusterError as exc:
                if isinstance(exc, Unheard) or self.cluster.check():
                    raise Unreachable(str(exc)) from exc
                raise

        def told(job: str) -> None:
            self.emit(SlotAsked(at=time.time(), slot=slot, job=job, attempt=attempt))
            self._say_remarks()
            asked(job)

        self._clerk.ask(submitted, told, refused)

    def _say_remarks(self) -> None:
        """What a back end had to remark on errands that it took, each once."""
        remarks = getattr(self.cluster, "notes", ())
        for remark in remarks[self._remarks_said :]:
            self.say(f"{self.cluster.name}: {remark}")
        self._remarks_said = len(remarks)

    def end_left_over(self, left: Iterable[SlotAsked]) -> None:
        for one in left:
            self.say(f"ending {one.job} of {self.cluster.name}, which an earlier start of this run left")
            self.end(one.slot, one.job, one.attempt, "an earlier start of this run left it")

    def end(self, slot: str, job: str, attempt: int, why: str) -> None:
        """Again until that is heard."""
        self._end(SlotLeft(at=time.time(), slot=slot, job=job, attempt=attempt, reason=why))

    def _end(self, left: SlotLeft) -> None:
        job = left.job
        told_before = job in self._unstopped
        self._unstopped[job] = (float("inf"), left)

        def stopped(_none: None) -> None:
            self._unstopped.pop(job, None)
            self.emit(left)

        def failed(exc: ClusterError) -> None:
            self._unstopped[job] = (self.clock() + STOP_AGAIN_S, left)
            if not told_before:
                self.say(f"{job} could not be ended yet: {exc}")

        self._clerk.ask(lambda: self.cluster.stop(job), stopped, failed)

    def sight(self, job: str, seen: Callable[[Sighting], None]) -> None:
        """Once an earlier question about it is answered. Where none can be, that is said once until one is."""
        if job in self._asked_of:
            return
        self._asked_of.add(job)

        def told(found: Sighting) -> None:
            self._asked_of.discard(job)
            self._fault = ""
            seen(found)

        def failed(exc: ClusterError) -> None:
            self._asked_of.discard(job)
            if str(exc) != self._fault:
                self._fault = str(exc)
                self.say(self._fault)

        self._clerk.ask(lambda: self.cluster.state(job), told, failed)

    def hasten(self, job: str) -> None:
        """Where a back end lets what it has begun anew wait for a while."""
        hasten = getattr(self.cluster, "hasten", None)
        if hasten is not None:
            self._clerk.ask(lambda: hasten(job), lambda _none: None, lambda exc: self.say(str(exc)))

    def close(self) -> None:
        """All that was asked is done first, as far as that takes no longer than CLOSE_S."""
        self._clerk.settle(CLOSE_S)
        for _at, left in tuple(self._unstopped.values()):
            self._end(left)
        self._clerk.close(CLOSE_S)
        for job in self._unstopped:
            self.say(f"{job} of {self.cluster.name} may be there still; it ends by itself")
        self.cluster.close()
