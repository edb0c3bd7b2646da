"""The lines of a journal: `{"crc":N,"event":{…}}` each, the crc over the bytes of the event. A pure read.

Every line was forced to the disk before the next one was written. So damage to the very last line is an interrupted
write, and any other a broken disk, a stray editor or a copy that changed or lost lines.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from orchestrator.errors import JournalError
from orchestrator.events import Event
from orchestrator.record.disk import reading

JOURNAL_NAME, RECORDS_NAME = "journal.jsonl", "generations.jsonl"

PUT_BACK = "put it back from a copy, or begin anew with another --run-dir"

_FRAME_BEGINS = b'{"crc":'
_FRAME = re.compile(rb'\{"crc":(\d{1,10}),"event":(\{.*\})\}\n', re.DOTALL)
_decode_event = msgspec.json.Decoder(Event).decode


@dataclass(frozen=True)
class Line:
    """One whole event. `end` is the byte after its newline."""

    number: int
    end: int
    event: Event


@dataclass(frozen=True)
class Torn:
    """The last line, from byte `start` on: an interrupted write."""

    number: int
    start: int
    length: int


def scan(path: Path, until: int | None = None, after: Line | None = None) -> Iterator[Line | Torn]:
    """The events of one journal in order, then at most one Torn.

    `until` (bytes) stops early; `after` begins behind a line that was read before. Raises JournalError for damage
    that no interrupted write can do.
    """
    number, end = (after.number, after.end) if after else (0, 0)
    records_bytes = 0 if after else _size_bytes(path.with_name(RECORDS_NAME))  # before the journal: a run may begin now
    with opened(path) as file:
        file.seek(end)
        for raw in file:
            if until is not None and end >= until:
                return
            event = _event(raw)
            if event is None:
                break
            number, end = number + 1, end + len(raw)
            yield Line(number, end, _typed(path, number, event))
        else:
            raw = b""
        if raw and (what := _not_torn(raw, file)):
            raise JournalError(f"{path}: line {number + 1} is damaged, {what}; {_advice(path, number, raw)}")
        if not number and records_bytes:  # the first event was on the disk before the first record was written
            raise JournalError(f"{path}: holds no event, but {RECORDS_NAME} has {records_bytes} bytes; {PUT_BACK}")
        if raw:
            yield Torn(number + 1, end, len(raw))


def _not_torn(raw: bytes, rest: BinaryIO) -> str:
    """What shows that this is no interrupted write. A line without its newline may also be half of what a live writer
    is just appending, so it is the end."""
    if _ends_whole(raw):
        return "and a whole event follows it"
    if raw.endswith(b"\n") and rest.read(1):
        return "and it is not the last one"
    return "though it is all there" if _has_cr(raw) else ""


def _has_cr(raw: bytes) -> bool:
    return raw.endswith(b"\r\n") and _event(raw[:-2] + b"\n") is not None


def _advice(path: Path, whole_lines: int, raw: bytes) -> str:
    if _has_cr(raw):
        return crlf_hint(path)
    if not whole_lines:
        return PUT_BACK
    return f"the first {whole_lines} lines are a run that --resume can go on from: keep a copy, and cut the rest"


def crlf_hint(path: Path | str) -> str:
    """JSON has no CR of its own, so that nothing else is changed."""
    return f"its lines end in CR LF, as an editor or a copy makes them: sed -i 's/\\r$//' '{path}' takes that back"


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def frame(event: bytes) -> bytes:
    """One line of the journal round an encoded event."""
    return b'{"crc":%d,"event":%b}\n' % (zlib.crc32(event), event)


def _event(raw: bytes) -> bytes | None:
    match = _FRAME.fullmatch(raw)
    if match is None or zlib.crc32(match[2]) != int(match[1]):
        return None
    return match[2]


def _ends_whole(raw: bytes) -> bool:
    """A damaged newline glues two lines together: then a whole event stands behind the damage."""
    at = raw.rfind(_FRAME_BEGINS)
    return at > 0 and _event(raw[at:]) is not None


def _typed(path: Path, number: int, event: bytes) -> Event:
    try:
        return _decode_event(event)
    except msgspec.DecodeError as exc:
        message = f"{path}: line {number} is whole but not understood ({exc}); written by another version of Airlock?"
        raise JournalError(message) from exc


def opened(path: Path) -> BinaryIO:
    try:
        return reading(path)
    except OSError as exc:
        hint = ": not a run directory, or one whose start was cut short" if path.name == JOURNAL_NAME else ""
        raise JournalError(f"{path}: {exc.strerror}{hint}") from exc
