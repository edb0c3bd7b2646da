"""The book of a run: each event goes to the journal first, then to whoever watches."""

from __future__ import annotations

import time
from dataclasses import dataclass

from orchestrator.console import Console
from orchestrator.events import Cause, Event, PointEnded, PointSkipped, PointStarted, Record
from orchestrator.journal import Journal
from orchestrator.plan import Plan
from orchestrator.provenance import HostUse
from orchestrator.record.replay import Replay, read_records
from orchestrator.run.repeats import Repeats
from orchestrator.run.tally import Earlier
from protocol.records import BatchStats


@dataclass
class Ledger:
    """Also counts the points, those of earlier lives included, and skips the repeats that are not needed."""

    journal: Journal
    console: Console
    replay: Replay | None
    plan: Plan

    def __post_init__(self) -> None:
        self.ended = dict(self.replay.outcomes) if self.replay else {}
        self.skipped = dict(self.replay.skipped) if self.replay else {}
        self.before = len(self.ended)
        self.earlier = self._earlier(self.replay) if self.replay else {}
        self._repeats = Repeats(self.plan)
        if self.replay:
            self._repeats.read(self.replay)

    def _earlier(self, replay: Replay) -> dict[str, Earlier]:
        bad = self._bad(replay)
        return {point: Earlier(frozenset(ids), bad.get(point, {})) for point, ids in replay.committed.items()}

    def _bad(self, replay: Replay) -> dict[str, dict[str, Cause]]:
        """The error records, by point and prompt, of points that go on with them."""
        found: dict[str, dict[str, Cause]] = {}
        wanted = {point for point, errors in replay.errors.items() if errors and point not in self.ended}
        for record in read_records(replay.run_dir, replay) if wanted else ():
            if record.error and record.point in wanted:
                found.setdefault(record.point, {})[record.prompt_id] = record.error
        return found

    def emit(self, event: Event) -> None:
        self.journal.emit(event)
        self.console.show(event)
        match event:
            case PointStarted():
                self._repeats.started.add(event.point)
            case PointSkipped():
                self.skipped[event.point] = event
            case PointEnded():
                self.ended[event.point] = event
                self._skip_unneeded(event.point, event.at)

    def skip_unneeded(self) -> None:
        """What follows from the repeats of earlier lives, which these may not have come to write down."""
        for point in tuple(self.ended):
            self._skip_unneeded(point, time.time())

    def _skip_unneeded(self, point: str, at: float) -> None:
        unneeded, reason = self._repeats.unneeded(point, self.ended, self.skipped)
        for one in unneeded:
            self.emit(PointSkipped(at=at, point=one, reason=reason))

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
        host: HostUse | None = None,
    ) -> None:
        event = self.journal.commit(
            point=point, batch=batch, incarnation=incarnation, records=records, stats=stats, flags=flags, host=host
        )
        self.console.show(event)
        self._repeats.measured(point, stats, flags)

    @property
    def points_left(self) -> int:
        return len(self.plan.points) - len(self.ended) - len(self.skipped)

    @property
    def points_ended(self) -> int:
        return len(self.ended)

    @property
    def points_failed(self) -> int:
        return sum(end.outcome != "ok" for end in self.ended.values())
