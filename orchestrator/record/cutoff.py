"""Commits that count no more, as the records that they place are gone: cut off by a repair, or never on the disk."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted
from orchestrator.record.damage import damage
from orchestrator.record.disk import CHUNK_BYTES
from orchestrator.record.framing import JOURNAL_NAME, RECORDS_NAME, Line, opened, scan

#: In the place of a commit: nothing later in the journal shows it.
END: Final = -1


class Rewound(Exception):
    """Some were cut off: the journal has to be read once more, with `cut_off`."""


def commits(run_dir: Path, until: int | None = None) -> Iterator[tuple[int, BatchCommitted]]:
    """All there are, each with where its line begins in the journal."""
    begin = 0
    for line in scan(run_dir / JOURNAL_NAME, until):
        if isinstance(line, Line):
            if isinstance(line.event, BatchCommitted):
                yield begin, line.event
            begin = line.end


def cut_off(run_dir: Path) -> dict[int, int]:
    """Where the lines begin of those that do not count, each with where the commit begins that shows it: a commit
    states that the file ended at its offset, so what an earlier one placed behind it was cut off by a repair in
    between. END: its records are not on the disk, which only one that lied about a sync can cause. Raises JournalError
    where more of them are damaged than such a disk can have lost."""
    dropped: dict[int, int] = {}
    counting: list[tuple[int, BatchCommitted]] = []
    for begin, commit in commits(run_dir):
        while counting and _end(counting[-1][1]) > commit.offset:
            dropped[counting.pop()[0]] = begin
        if commit.offset != (_end(counting[-1][1]) if counting else 0):
            raise gap(run_dir, commit)
        counting.append((begin, replace(commit, prompts=[])))  # there may be many
    lost: list[BatchCommitted] = []
    while counting and not is_whole(run_dir, counting[-1][1]):
        begin, commit = counting.pop()
        dropped[begin] = END
        lost.append(commit)
    if len(lost) > 1:
        _require_unwritten(run_dir, lost[-1])
    return dropped


def _require_unwritten(run_dir: Path, first: BatchCommitted) -> None:
    """What was lost is missing, or zeros: other bytes behind the first damaged commit were put there."""
    with opened(run_dir / RECORDS_NAME) as file:
        file.seek(_end(first))
        while chunk := file.read(CHUNK_BYTES):
            if chunk.strip(b"\0"):
                raise JournalError(f"{damage(file, first)}, nor is what follows")


def _end(commit: BatchCommitted) -> int:
    return commit.offset + commit.length


def gap(run_dir: Path, commit: BatchCommitted) -> JournalError:
    missing = f"a commit is missing before batch {commit.batch} of point {commit.point}"
    return JournalError(f"{run_dir / JOURNAL_NAME}: {missing}")


def is_whole(run_dir: Path, commit: BatchCommitted) -> bool:
    with opened(run_dir / RECORDS_NAME) as file:
        return holds(file, commit)


def holds(file: BinaryIO, commit: BatchCommitted) -> bool:
    """Whether its records stand there."""
    file.seek(commit.offset)
    left, crc = commit.length, 0
    while left and (chunk := file.read(min(left, CHUNK_BYTES))):
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    return not left and crc == commit.crc
