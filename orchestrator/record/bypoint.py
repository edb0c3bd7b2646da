"""A run of any size, read point by point: a pure read, also while another process writes it.

The journal is read once; kept is what it says of each point, and where in it that stands, which is read again when
the point's turn has come. Memory grows with points, never with batches, prompts or records.

The rare journal of which commits were cut off again, by a repair or by a disk that lied, is read twice: what was
cut off has to be known before anything is added up.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.events import BatchCommitted, DevicesUsed, Event, PointEnded, PointSkipped, PointStarted
from orchestrator.record import replay
from orchestrator.record.cutoff import END, Rewound, commits, gap, is_whole
from orchestrator.record.framing import JOURNAL_NAME, Line, Torn, scan
from orchestrator.record.generations import read_records
from orchestrator.record.output import Record
from orchestrator.record.replay import RECORDS_NAME, Range, Replay
from orchestrator.record.spans import events_of, reach

#: So many commits are read before their records are.
AT_ONCE: Final = 256


@dataclass(slots=True)
class Stand:
    """What the journal says of one point.

    spans       where its events stand, in bytes: begin, end, begin, …; others' may stand between them
    done        prompts that have a record, while the point is under way; None once it has ended
    records     how many they are; `planned` of them are of the plan
    errors      how many of them are error records
    again       a prompt was committed twice, or a point that had ended went on
    crowded     during some of its batches other slots were at work
    """

    spans: array[int] = field(default_factory=lambda: array("Q"))
    done: set[str] | None = field(default_factory=set)
    records: int = 0
    planned: int = 0
    errors: int = 0
    again: bool = False
    peak_bytes: int | None = None
    crowded: bool = False

    def commit(self, event: BatchCommitted) -> None:
        self.errors += event.errors
        told = event.stats.peak_memory_bytes if event.stats else None
        if told is not None:
            self.peak_bytes = max(told, self.peak_bytes or 0)
        self.crowded = self.crowded or event.crowded
        self.again = self.again or self.done is None or not self.done.isdisjoint(event.prompts)
        if self.done is not None:
            self.done.update(event.prompts)

    def count(self, planned: Collection[str]) -> None:
        if self.done is not None:
            self.records, self.planned = len(self.done), sum(prompt in planned for prompt in self.done)

    def close(self, planned: Collection[str]) -> None:
        """Its prompts are told by their number from here on."""
        self.count(planned)
        self.done = None


@dataclass(slots=True)
class Part:
    """Of some points, whose commits are in file order: what the devices did, by worker and batch."""

    ranges: list[Range] = field(default_factory=list)
    devices: list[DevicesUsed] = field(default_factory=list)


class ByPoint:
    """`planned`: the plan's prompt ids. `dropped`: see `cut_off`. It knows nothing until `read` has come to its end;
    read again, it goes on with what was written since."""

    def __init__(self, run_dir: Path, planned: Iterable[str], dropped: Mapping[int, int] | None = None) -> None:
        self.run_dir = run_dir
        self.stands: dict[str, Stand] = {}
        self.measured_s: float = 0
        self.generated_tokens = 0
        self._planned = frozenset(planned)
        self._dropped = dropped or {}
        self._doomed: dict[int, list[str]] = {}
        self._of_worker: dict[str, str] = {}
        self._replay = Replay(run_dir)
        self._records_bytes = 0
        self._last: BatchCommitted | None = None
        self._read_to: Line | None = None
        self._touched: set[str] = set()

    @property
    def outcomes(self) -> Mapping[str, PointEnded]:
        return self._replay.outcomes

    @property
    def skipped(self) -> Mapping[str, PointSkipped]:
        return self._replay.skipped

    @property
    def torn(self) -> str | None:
        return self._replay.torn

    @property
    def read_bytes(self) -> int:
        """How far the journal was read: to the end of its last whole line."""
        return self._replay.journal_bytes

    @property
    def records(self) -> int:
        """Committed prompts; one with an error record counts."""
        return sum(stand.records for stand in self.stands.values())

    def missing(self, point: str) -> int:
        """How many prompts of the plan have no record there."""
        stand = self.stands.get(point)
        return len(self._planned) - (stand.planned if stand else 0)

    def read(self) -> Iterator[Event]:
        """Every event once. Raises JournalError if this is no run or a damaged one, Rewound see there."""
        notes = []
        for line in scan(self.run_dir / JOURNAL_NAME, after=self._read_to):
            if isinstance(line, Torn):
                notes.append(f"{JOURNAL_NAME}: {line.length} bytes from line {line.number} on are not whole events")
                break
            self._note(self._replay.journal_bytes, line)
            self._read_to, self._replay.journal_bytes = line, line.end
            yield line.event
        self._drop(END)
        if self._last is not None and not is_whole(self.run_dir, self._last):
            raise Rewound
        if revoked := sum(by == END for by in self._dropped.values()):
            notes.append(f"{RECORDS_NAME}: the records of the last {revoked} commits are damaged or missing")
        self._replay.torn = "; ".join(notes) or None
        self._settle()

    def events(self) -> Iterator[Event]:
        """Reads the journal again, up to where it was read."""
        return self._replay.events()

    def part(self, points: Collection[str]) -> Part:
        """The commits of these points that count, and what they overtook."""
        found = Part()
        spans = (self.stands[point].spans for point in points if point in self.stands)
        for begin, event in events_of(self.run_dir / JOURNAL_NAME, spans, points):
            if isinstance(event, DevicesUsed):
                found.devices.append(event)
            elif isinstance(event, BatchCommitted) and begin not in self._dropped:
                found.ranges.append(Range(event))
        _overtake(found.ranges)
        return found

    def records_of(self, ranges: list[Range]) -> Iterator[Record]:
        """One batch in memory at a time. Raises JournalError on damage."""
        return read_records(self.run_dir, ranges)

    def ranges(self) -> Iterator[list[Range]]:
        """All commits that count, in file order, some at a time."""
        again = [point for point, stand in self.stands.items() if stand.again]
        overtaken = {part.commit.offset: part.overtaken for part in self.part(again).ranges}
        found: list[Range] = []
        for begin, commit in commits(self.run_dir, self._replay.journal_bytes):
            if begin not in self._dropped:
                found.append(Range(commit, overtaken.get(commit.offset, set())))
            if len(found) == AT_ONCE:
                yield found
                found = []
        yield found

    # --- one reading of the journal -------------------------------------------------

    def _note(self, begin: int, line: Line) -> None:
        event = line.event
        self._drop(begin)
        point = self._point_of(event)
        if point:
            self._touched.add(point)
            reach(self._stand(point).spans, begin, line.end)
        if not isinstance(event, BatchCommitted):
            replay._note(self._replay, event)
            if isinstance(event, PointEnded):
                self._stand(event.point).close(self._planned)
        elif begin in self._dropped:
            self._doomed.setdefault(self._dropped[begin], []).append(event.point)
        else:
            self._commit(event)

    def _point_of(self, event: Event) -> str:
        if isinstance(event, PointStarted):
            self._of_worker[event.incarnation] = event.point
        if isinstance(event, DevicesUsed):  # of the batch that its worker has just run
            return self._of_worker.get(event.incarnation, "")
        return getattr(event, "point", "")

    def _stand(self, point: str) -> Stand:
        stand = self.stands.get(point)
        if stand is None:
            stand = self.stands[point] = Stand()
        return stand

    def _commit(self, event: BatchCommitted) -> None:
        if event.offset < self._records_bytes:
            raise Rewound
        if event.offset > self._records_bytes:
            raise gap(self.run_dir, event)
        self._records_bytes = event.offset + event.length
        self._last = event
        if event.stats:
            self.measured_s += event.stats.wall_s
            self.generated_tokens += event.stats.generated_tokens
        self._stand(event.point).commit(event)

    def _drop(self, by: int) -> None:
        """A point that lost records has not ended, whatever was noted before."""
        for point in self._doomed.pop(by, ()):
            self._replay.outcomes.pop(point, None)

    def _settle(self) -> None:
        """Of those that something was written of."""
        while self._touched:
            point = self._touched.pop()
            stand = self.stands[point]
            if stand.again:
                self._recount(point, stand)
            else:
                stand.count(self._planned)

    def _recount(self, point: str, stand: Stand) -> None:
        ranges = self.part([point]).ranges
        stand.done = {prompt for part in ranges for prompt in part.commit.prompts}
        # What is run again is what was an error.
        stand.errors = sum(max(0, part.commit.errors - len(part.overtaken)) for part in ranges)
        stand.close(self._planned)


def _overtake(ranges: list[Range]) -> None:
    """Of a prompt that was committed twice the last counts."""
    of_point: dict[str, list[Range]] = {}
    for part in ranges:
        of_point.setdefault(part.commit.point, []).append(part)
    for parts in of_point.values():
        later: set[str] = set()
        for part in reversed(parts):
            part.overtaken |= later.intersection(part.commit.prompts)
            later.update(part.commit.prompts)
