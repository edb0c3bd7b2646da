"""What is asked of a back end for a run: by a clerk, and once more where the back end could not be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.clusters.base import Cluster, Errand, Sighting
from orchestrator.errors import ClusterError
from orchestrator.remote.clerk import Clerk

#: To what could not be stopped it is said again.
STOP_AGAIN_S: Final = 10.0
#: For the back end's last commands.
CLOSE_S: Final = 30.0


class Unreachable(ClusterError):
    """It says nothing of what was asked."""


@dataclass
class Steward:
    cluster: Cluster
    say: Callable[[str], None]
    clock: Callable[[], float]
    _unstopped: dict[str, tuple[float, Callable[[], None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._clerk = Clerk()

    def fileno(self) -> int:
        return self._clerk.fileno()

    def turn(self) -> None:
        self._clerk.answers()
        for job, (at, then) in tuple(self._unstopped.items()):
            if self.clock() >= at:
                self._stop(job, then)

    def submit(self, errand: Errand, asked: Callable[[str], None], refused: Callable[[ClusterError], None]) -> None:
        """`refused` hears Unreachable where the fault is not the errand's."""

        def submitted() -> str:
            try:
                return self.cluster.submit(errand)
            except ClusterError as exc:
                if self.cluster.check():
                    raise Unreachable(str(exc)) from exc
                raise

        self._clerk.ask(submitted, asked, refused)

    def stop(self, job: str, then: Callable[[], None] = lambda: None) -> None:
        """Until it is heard; `then` once it is."""
        self._stop(job, then)

    def _stop(self, job: str, then: Callable[[], None]) -> None:
        told_before = job in self._unstopped
        self._unstopped[job] = (float("inf"), then)

        def stopped(_none: None) -> None:
            self._unstopped.pop(job, None)
            then()

        def failed(exc: ClusterError) -> None:
            self._unstopped[job] = (self.clock() + STOP_AGAIN_S, then)
            if not told_before:
                self.say(f"{job} could not be ended yet: {exc}")

        self._clerk.ask(lambda: self.cluster.stop(job), stopped, failed)

    def sight(self, job: str, seen: Callable[[Sighting], None]) -> None:
        self._clerk.ask(lambda: self.cluster.state(job), seen, lambda exc: self.say(str(exc)))

    def hasten(self, job: str) -> None:
        """Where a back end lets what it has begun anew wait for a while."""
        hasten = getattr(self.cluster, "hasten", None)
        if hasten is not None:
            self._clerk.ask(lambda: hasten(job), lambda _none: None, lambda exc: self.say(str(exc)))

    def close(self) -> None:
        """All that was asked is done first, as far as that takes no longer than CLOSE_S."""
        self._clerk.settle(CLOSE_S)
        for job, (_at, then) in tuple(self._unstopped.items()):
            self._stop(job, then)
        self._clerk.close(CLOSE_S)
        for job in self._unstopped:
            self.say(f"{job} of {self.cluster.name} may be there still; it ends by itself")
        self.cluster.close()
