"""The time that one life of a run may take (`stop_after`), and what is not begun any more for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.plan import WorkerStart
from orchestrator.run.forecast import stopped_text
from orchestrator.run.outlook import Outlook


@dataclass
class Budget:
    """most_s: None for no end."""

    most_s: float | None
    outlook: Outlook
    clock: Callable[[], float]
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def spent_s(self) -> float:
        return self.clock() - self._began

    def over(self) -> str:
        """Why no further batch may begin, "" while one may."""
        return "stop_after is over" if self._closed or self.left_s() == 0 else ""

    def allows(self, start: WorkerStart) -> bool:
        """Whether a worker that starts now is likely to measure a batch in time; yes where nobody knows."""
        left_s = self.left_s()
        return left_s is None or self.outlook.would_fit(start, left_s) is not False

    def left_s(self) -> float | None:
        return None if self.most_s is None else max(0.0, self.most_s - self.spent_s)

    def close(self) -> None:
        """Nothing that is left can be begun in what is left of it."""
        self._closed = True

    def text(self, points_left: int) -> str:
        """ "stop_after 8h: 12 points left, about 40 min of work" """
        estimate = self.outlook.estimate(())
        work_s = estimate.work_s if estimate else None
        eta_s = estimate.eta_s if estimate and self.outlook.most > 1 else None
        return stopped_text(self.most_s or 0.0, points_left, work_s, eta_s)
