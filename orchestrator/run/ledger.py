"""The book of a run: each event goes to the journal first, then to whoever watches."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.console import Console
from orchestrator.events import Cause, Event, PointEnded, Record
from orchestrator.journal import Journal
from orchestrator.record.replay import Replay, read_records
from orchestrator.run.tally import Earlier
from protocol.records import BatchStats


@dataclass
class Ledger:
    """Also counts the points, those of earlier lives included."""

    journal: Journal
    console: Console
    replay: Replay | None

    def __post_init__(self) -> None:
        self.ended = dict(self.replay.outcomes) if self.replay else {}
        self.before = len(self.ended)
        self.earlier = self._earlier(self.replay) if self.replay else {}

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
        if isinstance(event, PointEnded):
            self.ended[event.point] = event

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
    ) -> None:
        event = self.journal.commit(
            point=point, batch=batch, incarnation=incarnation, records=records, stats=stats, flags=flags
        )
        self.console.show(event)

    @property
    def points_ended(self) -> int:
        return len(self.ended)

    @property
    def points_failed(self) -> int:
        return sum(end.outcome != "ok" for end in self.ended.values())
