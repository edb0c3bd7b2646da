"""The repeats of each cell: how fast each was, and which of them a run can do without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from orchestrator.events import PointEnded, PointSkipped
from orchestrator.plan import Plan, SweepPoint
from orchestrator.record.replay import Replay, is_timed
from orchestrator.run.enough import enough
from protocol.records import BatchStats


@dataclass
class Pace:
    """Of one point, over its measured batches. One that scores makes no tokens."""

    tokens: int = 0
    wall_s: float = 0.0


@dataclass
class Repeats:
    """Read from the same commits in every life of a run, so that each comes to the same decisions.

    started  points that some worker has begun: they are measured to their end, whatever is decided
    """

    plan: Plan
    started: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._early = self.plan.measurement.stop_early is not None
        self._cells = {one: cell for cell in _cells(self.plan.points) for one in cell} if self._early else {}

    def read(self, earlier: Replay) -> None:
        """What former lives measured, without batches of which a prompt runs again."""
        self.started |= earlier.started
        for part in earlier.ranges if self._early else ():
            commit, done = part.commit, earlier.committed[part.commit.point]
            if part.measured and all(prompt in done for prompt in commit.prompts):
                self.measured(commit.point, commit.stats, commit.flags)

    def measured(self, point: str, stats: BatchStats | None, flags: Collection[str]) -> None:
        if self._early and stats is not None and is_timed(stats, flags):
            self._paces[point].tokens += stats.generated_tokens
            self._paces[point].wall_s += stats.wall_s

    def unneeded(
        self, point: str, ended: Mapping[str, PointEnded], skipped: Mapping[str, PointSkipped]
    ) -> tuple[list[str], str]:
        """The repeats of this point's cell that need not be measured any more, and why."""
        cell = self._cells.get(point, ())
        left = [one for one in cell if not (one in ended or one in skipped or one in self.started)]
        if not left:
            return [], ""
        # What was decided once holds for the rest of the cell.
        reason = next((skipped[one].reason for one in cell if one in skipped), "") or self._reason(cell, ended)
        return (left if reason else []), reason

    def _reason(self, cell: Iterable[str], ended: Mapping[str, PointEnded]) -> str:
        good = (self._paces[one] for one in cell if one in ended and ended[one].outcome == "ok")
        timed = [(pace.tokens, pace.wall_s) for pace in good if pace.tokens and pace.wall_s > 0]
        return enough(timed, self.plan.measurement)


def _cells(points: Iterable[SweepPoint]) -> list[tuple[str, ...]]:
    """The ids of the points that differ in `repeat` alone, in the order of the repeats: that of the results."""
    found: defaultdict[bytes, list[str]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.repeat):
        if point.role == "measure":
            found[msgspec.json.encode(point.config)].append(point.id)
    return [tuple(cell) for cell in found.values()]
