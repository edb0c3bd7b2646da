"""What a run directory holds: a pure read, also while another process writes it.

journal.jsonl is read by `framing`. generations.jsonl: one Record a line, placed by
the commits of the journal. Damage at the very end of either is an interrupted
write and is left out; damage before it is a broken disk or a stray editor, and
stops.

Memory grows with points, never with batches, texts or tokens; of the prompts that have a record a bit is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSet
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import BinaryIO

from msgspec.structs import replace

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted, Event, PointEnded, PointSkipped, PointStarted, RunStarted
from orchestrator.record.cutoff import END, Rewound, cut_off, gap, holds
from orchestrator.record.damage import damage
from orchestrator.record.framing import JOURNAL_NAME, RECORDS_NAME, Line, Torn, frame, opened, scan
from orchestrator.record.output import Record
from orchestrator.record.promptbits import Numbers, PromptBits
from orchestrator.record.ranges import Range, Ranges, is_timed

__all__ = [
    "JOURNAL_NAME",
    "RECORDS_NAME",
    "Line",
    "Range",
    "Ranges",
    "Replay",
    "Torn",
    "beginning",
    "frame",
    "is_timed",
    "replay",
    "scan",
]


@dataclass
class Replay:
    """committed  per point the prompts that have a record (an error record counts)
    outcomes      the last PointEnded of each point
    skipped       points that were found not to be needed, or not to fit
    started       points that a worker has begun
    ranges        the commits that count, in file order; read anew by each walk over them
    revoked       commits whose records did not reach the disk; their prompts run again
    errors        per point how many of its committed records are error records, where some are and stay
    torn          in words what was left out at the end of the files; None if nothing
    journal_bytes, records_bytes   where the good part of each file ends
    """

    run_dir: Path
    committed: Mapping[str, MutableSet[str]] = field(default_factory=dict)
    outcomes: dict[str, PointEnded] = field(default_factory=dict)
    skipped: dict[str, PointSkipped] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    first: RunStarted | None = None
    lives: int = 0
    ranges: Collection[Range] = ()
    revoked: list[BatchCommitted] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    torn: str | None = None
    journal_bytes: int = 0
    records_bytes: int = 0

    @property
    def environments(self) -> dict[str, str]:
        """Environment name → fingerprint digest, as the first life had them."""
        return self.first.environments if self.first else {}

    @property
    def records(self) -> int:
        return sum(len(prompts) for prompts in self.committed.values())

    def is_left(self, point: str, retry_failed: bool) -> bool:
        """Whether there is something to run of it."""
        end = self.outcomes.get(point)
        return point not in self.skipped and (end is None or (retry_failed and end.outcome != "ok"))

    def begin(self, point: str) -> None:
        self.started.add(point)
        self.skipped.pop(point, None)
        if self.outcomes.pop(point, None):  # a retry: until it ends, the point has not, and nothing follows from it
            self.skipped = {one: skip for one, skip in self.skipped.items() if skip.over != point}

    def forgive(self, records: Iterable[Record]) -> None:
        """Points that did not end well are open again, as are those skipped over them, and their prompts with error
        records run again."""
        self.outcomes = {point: end for point, end in self.outcomes.items() if end.outcome == "ok"}
        self.skipped = {point: skip for point, skip in self.skipped.items() if not skip.over}
        for record in records:
            if record.error is not None:
                self.committed[record.point].discard(record.prompt_id)
        self.errors = {}

    def events(self) -> Iterator[Event]:
        """Reads the journal again, up to where this replay ended."""
        for line in scan(self.run_dir / JOURNAL_NAME, self.journal_bytes):
            if isinstance(line, Line):
                yield line.event


def replay(run_dir: Path, *, check: bool = False) -> Replay:
    """Raises JournalError if this is no run directory, or if a file is damaged before its end. `check`: also where the
    records of a commit are not what was committed, which takes as long as reading them."""
    try:
        return _Reading(run_dir, {}).replay(check)
    except Rewound:
        pass
    try:
        return _Reading(run_dir, cut_off(run_dir)).replay(check)
    except Rewound as exc:
        raise JournalError(f"{run_dir}: changed while it was read") from exc


def beginning(run_dir: Path) -> RunStarted | None:
    """How the run was begun; None where nobody came to write it down. Raises JournalError."""
    first = next(scan(run_dir / JOURNAL_NAME), None)
    return first.event if isinstance(first, Line) and isinstance(first.event, RunStarted) else None


def brief(end: PointEnded) -> PointEnded:
    """Without what a worker left to read, which may be long, and stands in the journal."""
    if end.cause is None:
        return end
    return replace(end, cause=replace(end.cause, error=None, log_tail="", first_traceback="", stacks=""))


def _note(found: Replay, event: Event) -> None:
    if isinstance(event, RunStarted):
        found.first = found.first or event
        found.lives += 1
    elif isinstance(event, PointStarted):
        found.begin(event.point)
    elif isinstance(event, PointEnded):
        found.outcomes[event.point] = event
    elif isinstance(event, PointSkipped):
        found.skipped[event.point] = event


class _Reading:
    """Of one journal, once. Raises Rewound where commits are found to be cut off that are not among `dropped`."""

    def __init__(self, run_dir: Path, dropped: Mapping[int, int]) -> None:
        self._ranges = Ranges(run_dir, dropped)
        self._done: dict[str, PromptBits] = {}
        self._found = Replay(run_dir, self._done, ranges=self._ranges)
        self._numbers = Numbers()
        self._doomed: dict[int, list[str]] = {}
        self._last: BatchCommitted | None = None
        self._bad: BatchCommitted | None = None

    def replay(self, check: bool) -> Replay:
        found = self._found
        notes = []
        with ExitStack() as self._open:
            for line in scan(found.run_dir / JOURNAL_NAME):
                if isinstance(line, Torn):
                    notes.append(f"{JOURNAL_NAME}: {line.length} bytes from line {line.number} on are not whole events")
                elif isinstance(line.event, BatchCommitted):
                    self._commit(found.journal_bytes, line.event, check)
                    found.journal_bytes = line.end
                else:
                    self._note(line.event)
                    found.journal_bytes = line.end
            self._look_at_the_end()
        if found.revoked:
            notes.append(f"{RECORDS_NAME}: the records of the last {len(found.revoked)} commits are damaged or missing")
        self._settle()
        found.torn = "; ".join(notes) or None
        return found

    @cached_property
    def _records(self) -> BinaryIO:
        return self._open.enter_context(opened(self._found.run_dir / RECORDS_NAME))

    def _note(self, event: Event) -> None:
        if not isinstance(event, PointEnded):
            _note(self._found, event)
            return
        _note(self._found, brief(event))
        if done := self._done.get(event.point):
            done.close()

    def _commit(self, begin: int, event: BatchCommitted, check: bool) -> None:
        found = self._found
        self._drop(begin)
        if (by := self._ranges.dropped.get(begin)) is not None:
            self._doomed.setdefault(by, []).append(event.point)
            found.revoked += [event] if by == END else []
            return
        if event.offset < found.records_bytes:
            raise Rewound
        if event.offset > found.records_bytes:
            raise gap(found.run_dir, event)
        found.records_bytes = event.offset + event.length
        self._last = event
        if check and self._bad is None and not holds(self._records, event):
            self._bad = event
        self._count(begin, event)

    def _count(self, begin: int, event: BatchCommitted) -> None:
        point, found = intern(event.point), self._found
        self._ranges.count += 1
        if point not in self._done:
            self._done[point] = PromptBits(self._numbers)
        if again := self._done[point].mark(event.prompts):
            self._ranges.again.setdefault(point, []).append((begin, frozenset(again)))
        if event.errors:
            found.errors[point] = found.errors.get(point, 0) + event.errors

    def _drop(self, by: int) -> None:
        """A point that lost records has not ended, whatever was noted before."""
        for point in self._doomed.pop(by, ()):
            self._found.outcomes.pop(point, None)

    def _look_at_the_end(self) -> None:
        """Only a disk that lied about a sync can have lost the last of what was committed. Losing a batch that can run
        again beats losing the run; losing one before it does not."""
        self._drop(END)
        if self._last is not None and not holds(self._records, self._last):
            raise Rewound
        if self._bad is not None:
            raise JournalError(damage(self._records, self._bad))

    def _settle(self) -> None:
        """What is run again is what was an error."""
        self._ranges.until = self._found.journal_bytes
        again = {point for point in self._ranges.again if self._found.errors.pop(point, 0)}
        for part in self._ranges if again else ():
            point, left = part.commit.point, part.commit.errors - len(part.overtaken)
            if point in again and left > 0:
                self._found.errors[point] = self._found.errors.get(point, 0) + left
