"""The book of a run: each event goes to the journal first, then to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.console import Console
from orchestrator.events import BatchCommitted, Event, PointEnded, PointSkipped, PointStarted
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan
from orchestrator.provenance import HostUse
from orchestrator.record.generations import read_records
from orchestrator.record.output import Record
from orchestrator.record.replay import Replay, brief
from orchestrator.run.dominated import Demands
from orchestrator.run.recording import NOTHING, Beside
from orchestrator.run.repeats import Repeats
from orchestrator.run.tally import Earlier
from protocol.records import BatchStats


class Writer(Protocol):
    """As `Journal`; on another machine what stands for it."""

    def emit(self, event: Event) -> None: ...

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: Sequence[Record],
        stats: BatchStats | None,
        flags: Sequence[str] = (),
        host: HostUse | None = None,
        neighbours: Sequence[str] = (),
    ) -> BatchCommitted: ...


@dataclass
class Ledger:
    """Also counts the points, those of earlier lives included, and skips the repeats that are not needed and what can't
    fit."""

    journal: Writer
    console: Console
    replay: Replay | None
    plan: Plan
    listeners: Sequence[Callable[[Event], None]] = ()

    def __post_init__(self) -> None:
        self.ended = dict(self.replay.outcomes) if self.replay else {}
        self.skipped = dict(self.replay.skipped) if self.replay else {}
        self.before = len(self.ended)
        self._failed = sum(end.outcome != "ok" for end in self.ended.values())
        self.begun = set(self.replay.started) if self.replay else set()
        self.measured_s = 0.0
        self.earlier = self._earlier(self.replay) if self.replay else {}
        self._repeats = Repeats(self.plan)
        self._demands = Demands(self.plan)
        if self.replay:
            self._repeats.read(self.replay)

    def _earlier(self, replay: Replay) -> dict[str, Earlier]:
        """Of points that have not ended."""
        bad = self._bad(replay)
        left = ((point, ids) for point, ids in replay.committed.items() if point not in self.ended)
        return {point: Earlier(frozenset(ids), bad.get(point, {})) for point, ids in left}

    def _bad(self, replay: Replay) -> dict[str, dict[str, Cause]]:
        """The error records, by point and prompt, of points that go on with them."""
        found: dict[str, dict[str, Cause]] = {}
        wanted = {point for point, errors in replay.errors.items() if errors and point not in self.ended}
        parts = replay.ranges if wanted else ()
        ranges = [part for part in parts if part.commit.errors and part.commit.point in wanted]
        for record in read_records(replay.run_dir, ranges):
            if record.error:
                found.setdefault(record.point, {})[record.prompt_id] = record.error
        return found

    def emit(self, event: Event) -> None:
        self.journal.emit(event)
        self._note(event)
        self._tell(event)
        if isinstance(event, PointEnded):
            self._skip_unneeded(event.point, event.at)

    def _note(self, event: Event) -> None:
        match event:
            case PointStarted():
                self._repeats.started.add(event.point)
                self.begun.add(event.point)
            case PointSkipped():
                self.skipped[event.point] = event
            case PointEnded():
                self._failed += event.outcome != "ok"
                self.ended[event.point] = brief(event)

    def _tell(self, event: Event) -> None:
        self.console.show(event)
        for listener in self.listeners:
            listener(event)

    def skip_unneeded(self) -> None:
        """What follows from the ends of earlier lives, which these may not have come to write down."""
        for point in tuple(self.ended):
            self._skip_unneeded(point, time.time())

    def _skip_unneeded(self, point: str, at: float) -> None:
        unneeded, reason = self._repeats.unneeded(point, self.ended, self.skipped)
        for one in unneeded:
            self.emit(PointSkipped(at=at, point=one, reason=reason))
        too_large, reason = self._demands.too_large(self.ended[point], self.ended, self.skipped, self._repeats.started)
        for one in too_large:
            self.emit(PointSkipped(at=at, point=one, reason=reason, over=point))

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
        beside: Beside = NOTHING,
    ) -> None:
        event = self.journal.commit(
            point=point,
            batch=batch,
            incarnation=incarnation,
            records=records,
            stats=stats,
            flags=flags,
            host=beside.host,
            neighbours=beside.neighbours,
        )
        self._tell(event)
        self.measured_s += stats.wall_s if stats else 0.0
        self._repeats.measured(point, stats, flags)

    def lend(self, points: Iterable[str]) -> None:
        """They are another machine's for a while: nothing that is decided here may skip them."""
        self._repeats.started.update(points)

    def take_back(self, points: Iterable[str]) -> None:
        """Those of which nobody has a record are as they were."""
        self._repeats.started.difference_update(p for p in points if p not in self.ended and p not in self.begun)

    @property
    def points_left(self) -> int:
        return len(self.plan.points) - len(self.ended) - len(self.skipped)

    @property
    def points_ended(self) -> int:
        return len(self.ended)

    @property
    def points_failed(self) -> int:
        return self._failed
