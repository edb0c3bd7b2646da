"""The lines of a journal: `{"crc":N,"event":{…}}` each, the crc over the bytes of the event. A pure read.

Every line was forced to the disk before the next one was written. So damage with nothing whole after it is an
interrupted write, and damage with whole lines after it a broken disk or a stray editor.
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
    """The rest of the journal from byte `start` on: an interrupted write."""

    number: int
    start: int
    length: int


def scan(path: Path, until: int | None = None, after: Line | None = None) -> Iterator[Line | Torn]:
    """The events of one journal in order, then at most one Torn.

    `until` (bytes) stops early; `after` begins behind a line that was read before. Raises JournalError for damage
    before the end.
    """
    number, end = (after.number, after.end) if after else (0, 0)
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
            return
        # A line without its newline may be half of what a live writer is just appending, so it is the end.
        length = len(raw)
        if _ends_whole(raw):
            raise JournalError(f"{path}: line {number + 1} is damaged, and a whole event follows it{_advice(number)}")
        while raw.endswith(b"\n") and (raw := file.readline()):
            length += len(raw)
            if _event(raw) is not None:
                raise JournalError(f"{path}: line {number + 1} is damaged, and whole lines follow it{_advice(number)}")
        yield Torn(number + 1, end, length)


def _advice(whole_lines: int) -> str:
    return f"; the first {whole_lines} lines are a run that --resume can go on from: keep a copy, and cut the rest"


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
