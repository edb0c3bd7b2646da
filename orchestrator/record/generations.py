"""Reading generations.jsonl, where the commits of a journal place the records of outputs."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted
from orchestrator.record.damage import damage, record_of
from orchestrator.record.framing import RECORDS_NAME, opened
from orchestrator.record.output import Record
from orchestrator.record.ranges import Range


def read_records(run_dir: Path, ranges: Collection[Range]) -> Iterator[Record]:
    """The records of these commits, each once, in file order; of a prompt committed twice the last. One batch
    is in memory at a time. Raises JournalError naming file and line if a range is not what was committed."""
    if not ranges:
        return
    with opened(run_dir / RECORDS_NAME) as file:
        for part in ranges:
            records = {record.prompt_id: record for record in _read_range(file, part.commit)}
            yield from (record for key, record in records.items() if key not in part.overtaken)


def _read_range(file: BinaryIO, commit: BatchCommitted) -> Iterator[Record]:
    file.seek(commit.offset)
    data = file.read(commit.length)
    if len(data) != commit.length or zlib.crc32(data) != commit.crc:
        raise JournalError(damage(file, commit))
    for raw in data.split(b"\n")[:-1]:
        record = record_of(raw)
        if record is None:
            raise JournalError(damage(file, commit))
        yield record
