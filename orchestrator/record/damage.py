"""Records that are not what was committed, in words."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from orchestrator.events import BatchCommitted
from orchestrator.record.disk import CHUNK_BYTES
from orchestrator.record.framing import crlf_hint
from orchestrator.record.output import Record

_decode_record = msgspec.json.Decoder(Record).decode


def record_of(raw: bytes) -> Record | None:
    """None for a line that is none."""
    try:
        return _decode_record(raw)
    except msgspec.DecodeError:
        return None


def damage(file: BinaryIO, commit: BatchCommitted) -> str:
    """The sentence for a bad range, with the first line that can't be read, or else its first line."""
    file.seek(0)
    number = _count_newlines(file, commit.offset) + 1
    lines = file.read(commit.length).split(b"\n")[:-1]
    number += next((index for index, raw in enumerate(lines) if record_of(raw) is None), 0)
    with_cr = any(raw.endswith(b"\r") for raw in lines)
    return (
        f"{file.name}: damaged at line {number} or soon after: batch {commit.batch} of point {commit.point}, "
        f"bytes {commit.offset} to {commit.offset + commit.length}, is not what was committed"
        + (f"; {crlf_hint(file.name)}" if with_cr else "")
    )


def _count_newlines(file: BinaryIO, length: int) -> int:
    count = 0
    while length and (chunk := file.read(min(length, CHUNK_BYTES))):
        count += chunk.count(b"\n")
        length -= len(chunk)
    return count
