"""Commits that count no more, as the records that they place are gone: cut off by a repair, or never on the disk."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted
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
    between. END: its records are not on the disk, which only one that lied about a sync can cause."""
    dropped: dict[int, int] = {}
    counting: list[tuple[int, BatchCommitted]] = []
    for begin, commit in commits(run_dir):
        while counting and _end(counting[-1][1]) > commit.offset:
            dropped[counting.pop()[0]] = begin
        if commit.offset != (_end(counting[-1][1]) if counting else 0):
            raise gap(run_dir, commit)
        counting.append((begin, replace(commit, prompts=[])))  # there may be many
    while counting and not is_whole(run_dir, counting[-1][1]):
        dropped[counting.pop()[0]] = END
    return dropped


def _end(commit: BatchCommitted) -> int:
    return commit.offset + commit.length


def gap(run_dir: Path, commit: BatchCommitted) -> JournalError:
    missing = f"a commit is missing before batch {commit.batch} of point {commit.point}"
    return JournalError(f"{run_dir / JOURNAL_NAME}: {missing}")


def is_whole(run_dir: Path, commit: BatchCommitted) -> bool:
    with opened(run_dir / RECORDS_NAME) as file:
        file.seek(commit.offset)
        return zlib.crc32(file.read(commit.length)) == commit.crc
