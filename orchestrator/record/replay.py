"""What a run directory holds: a pure read, also while another process writes it.

journal.jsonl is read by `framing`. generations.jsonl: one Record a line, placed by
the commits of the journal. Damage at the very end of either is an interrupted
write and is left out; damage before it is a broken disk or a stray editor, and
stops.

Memory grows with points, batches and prompt ids, never with texts or tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import BinaryIO

import msgspec

from orchestrator.errors import JournalError
from orchestrator.events import (
    FLAG_SUSPENDED,
    BatchCommitted,
    Event,
    PointEnded,
    PointSkipped,
    PointStarted,
    Record,
    RunStarted,
)
from orchestrator.record.disk import CHUNK_BYTES
from orchestrator.record.framing import JOURNAL_NAME, Line, Torn, frame, opened, scan
from protocol.records import BatchStats

__all__ = [
    "JOURNAL_NAME",
    "RECORDS_NAME",
    "Line",
    "Range",
    "Replay",
    "Torn",
    "frame",
    "is_timed",
    "read_records",
    "replay",
    "scan",
    "verify",
]

RECORDS_NAME = "generations.jsonl"
TICK_S = 1e-9

_decode_record = msgspec.json.Decoder(Record).decode


@dataclass
class Range:
    """The records of one commit. `overtaken` prompts were committed again later and no longer count."""

    commit: BatchCommitted
    overtaken: set[str] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.commit.offset + self.commit.length

    @property
    def measured(self) -> bool:
        """Whether the figures of a run are made of it: a batch with a time, of which no prompt ran again later."""
        return is_timed(self.commit.stats, self.commit.flags) and not self.overtaken


def is_timed(stats: BatchStats | None, flags: Collection[str] = ()) -> bool:
    """A batch that took less than the tick of any clock was not timed, nor one that may have been stopped meanwhile."""
    return stats is not None and stats.wall_s >= TICK_S and FLAG_SUSPENDED not in flags


@dataclass
class Replay:
    """committed  per point the prompts that have a record (an error record counts)
    outcomes      the last PointEnded of each point
    skipped       points that were found not to be needed
    started       points that a worker has begun
    ranges        the commits that count, in file order
    revoked       commits whose records did not reach the disk; their prompts run again
    torn          in words what was left out at the end of the files; None if nothing
    journal_bytes, records_bytes   where the good part of each file ends
    """

    run_dir: Path
    committed: dict[str, set[str]] = field(default_factory=dict)
    outcomes: dict[str, PointEnded] = field(default_factory=dict)
    skipped: dict[str, PointSkipped] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    first: RunStarted | None = None
    lives: int = 0
    ranges: list[Range] = field(default_factory=list)
    revoked: list[BatchCommitted] = field(default_factory=list)
    torn: str | None = None
    journal_bytes: int = 0
    forgiven: bool = False

    @property
    def environments(self) -> dict[str, str]:
        """Environment name → fingerprint digest, as the first life had them."""
        return self.first.environments if self.first else {}

    @property
    def errors(self) -> dict[str, int]:
        """Point → how many of its committed records are error records."""
        found: dict[str, int] = {}
        for part in self.ranges if not self.forgiven else ():
            left = max(0, part.commit.errors - len(part.overtaken))  # what is run again is what was an error
            found[part.commit.point] = found.get(part.commit.point, 0) + left
        return found

    @property
    def records_bytes(self) -> int:
        return self.ranges[-1].end if self.ranges else 0

    @property
    def records(self) -> int:
        return sum(len(prompts) for prompts in self.committed.values())

    def forgive(self, records: Iterable[Record]) -> None:
        """Points that did not end well are open again, and their prompts with error records run again."""
        self.outcomes = {point: end for point, end in self.outcomes.items() if end.outcome == "ok"}
        for record in records:
            if record.error is not None:
                self.committed[record.point].discard(record.prompt_id)
        self.forgiven = True

    def events(self) -> Iterator[Event]:
        """Reads the journal again, up to where this replay ended."""
        for line in scan(self.run_dir / JOURNAL_NAME, self.journal_bytes):
            if isinstance(line, Line):
                yield line.event


def replay(run_dir: Path) -> Replay:
    """Raises JournalError if this is no run directory, or if a file is damaged before its end."""
    found = Replay(run_dir)
    notes = []
    for line in scan(run_dir / JOURNAL_NAME):
        if isinstance(line, Torn):
            notes.append(f"{JOURNAL_NAME}: {line.length} bytes from line {line.number} on are not whole events")
        else:
            found.journal_bytes = line.end
            _note(found, line.event)
    _revoke(found)
    if found.revoked:
        notes.append(f"{RECORDS_NAME}: the records of the last {len(found.revoked)} commits are damaged or missing")
    _settle(found)
    found.torn = "; ".join(notes) or None
    return found


def read_records(run_dir: Path, replay: Replay) -> Iterator[Record]:
    """Every committed record once, in file order; of a prompt committed twice the last. One batch
    is in memory at a time. Raises JournalError naming file and line if a range is not what was committed."""
    if not replay.ranges:
        return
    with opened(run_dir / RECORDS_NAME) as file:
        for part in replay.ranges:
            records = {record.prompt_id: record for record in _read_range(file, part.commit)}
            yield from (record for key, record in records.items() if key not in part.overtaken)


def verify(run_dir: Path, replay: Replay) -> None:
    """Raises JournalError unless every committed range is whole."""
    if not replay.ranges:
        return
    with opened(run_dir / RECORDS_NAME) as file:
        for part in replay.ranges:
            if not _is_whole(file, part.commit):
                raise JournalError(_damage(file, part.commit))


def _note(found: Replay, event: Event) -> None:
    if isinstance(event, RunStarted):
        found.first = found.first or event
        found.lives += 1
    elif isinstance(event, PointStarted):
        found.outcomes.pop(event.point, None)  # a retry: until it ends, the point has not
        found.started.add(event.point)
    elif isinstance(event, PointEnded):
        found.outcomes[event.point] = event
    elif isinstance(event, PointSkipped):
        found.skipped[event.point] = event
    elif isinstance(event, BatchCommitted):
        # A commit states that the file ended at its offset. What an earlier commit
        # placed behind it was cut off by a repair in between.
        while found.ranges and found.ranges[-1].end > event.offset:
            _drop_last(found)
        if event.offset != found.records_bytes:
            missing = f"a commit is missing before batch {event.batch} of point {event.point}"
            raise JournalError(f"{found.run_dir / JOURNAL_NAME}: {missing}")
        found.ranges.append(Range(event))


def _revoke(found: Replay) -> None:
    """Drop the commits at the end whose records are not there. Only a disk that lied about a
    sync can cause it; losing a batch that can run again beats losing the run."""
    if not found.ranges:
        return
    with opened(found.run_dir / RECORDS_NAME) as file:
        while found.ranges and not _is_whole(file, found.ranges[-1].commit):
            found.revoked.append(_drop_last(found))


def _drop_last(found: Replay) -> BatchCommitted:
    """A point that lost records has not ended, whatever was noted before."""
    commit = found.ranges.pop().commit
    found.outcomes.pop(commit.point, None)
    return commit


def _settle(found: Replay) -> None:
    for index, part in enumerate(found.ranges):
        commit = part.commit
        done = found.committed.setdefault(commit.point, set())
        again = done.intersection(commit.prompts)
        if again:
            for earlier in found.ranges[:index]:
                if earlier.commit.point == commit.point:
                    earlier.overtaken |= again.intersection(earlier.commit.prompts)
        done.update(map(intern, commit.prompts))


def _is_whole(file: BinaryIO, commit: BatchCommitted) -> bool:
    file.seek(commit.offset)
    left, crc = commit.length, 0
    while left and (chunk := file.read(min(left, CHUNK_BYTES))):
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    return not left and crc == commit.crc


def _read_range(file: BinaryIO, commit: BatchCommitted) -> Iterator[Record]:
    file.seek(commit.offset)
    data = file.read(commit.length)
    if len(data) != commit.length or zlib.crc32(data) != commit.crc:
        raise JournalError(_damage(file, commit))
    for raw in data.split(b"\n")[:-1]:
        record = _record(raw)
        if record is None:
            raise JournalError(_damage(file, commit))
        yield record


def _record(raw: bytes) -> Record | None:
    try:
        return _decode_record(raw)
    except msgspec.DecodeError:
        return None


def _damage(file: BinaryIO, commit: BatchCommitted) -> str:
    """The sentence for a bad range, with the first line that can't be read, or else its first line."""
    file.seek(0)
    number = _count_newlines(file, commit.offset) + 1
    lines = file.read(commit.length).split(b"\n")[:-1]
    number += next((index for index, raw in enumerate(lines) if _record(raw) is None), 0)
    return (
        f"{file.name}: damaged at line {number} or soon after: batch {commit.batch} of point {commit.point}, "
        f"bytes {commit.offset} to {commit.offset + commit.length}, is not what was committed"
    )


def _count_newlines(file: BinaryIO, length: int) -> int:
    count = 0
    while length and (chunk := file.read(min(length, CHUNK_BYTES))):
        count += chunk.count(b"\n")
        length -= len(chunk)
    return count
