"""Where the events of a point stand in the journal, and reading them there once more.

The spans of a point are bytes: begin, end, begin, …; events of others may stand between them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.errors import JournalError
from orchestrator.events import DevicesUsed, Event
from orchestrator.record.framing import opened

#: Events of one point that stand no further apart are read in one go, with what stands between them.
GAP_BYTES: Final = 1 << 16
_POINT, _DEVICES = b'"point":"', b'{"type":"devices_used"'


def reach(spans: array[int], begin: int, end: int) -> None:
    """Adds an event behind all the others."""
    if spans and begin - spans[-1] <= GAP_BYTES:
        spans[-1] = end
    else:
        spans.extend((begin, end))


def events_of(path: Path, spans: Iterable[array[int]], points: Collection[str]) -> Iterator[tuple[int, Event]]:
    """Where each begins, and which: of these points, whose spans these are, and of all devices meanwhile. Raises
    JournalError."""
    needles = {_needle(point) for point in points}
    with opened(path) as file:
        for begin, end in _joined(spans):
            at = file.seek(begin)
            while at < end and (raw := file.readline()):
                if _may_be_of(raw, needles):
                    event = _decoded(path, raw)
                    if isinstance(event, DevicesUsed) or getattr(event, "point", None) in points:
                        yield at, event
                at += len(raw)


class _Framed(msgspec.Struct):
    """A line that was whole when it was read first."""

    event: Event


_decode = msgspec.json.Decoder(_Framed).decode


def _decoded(path: Path, raw: bytes) -> Event:
    try:
        return _decode(raw).event
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: changed while it was read: {exc}") from exc


def _needle(point: str) -> bytes:
    """As it stands in a line, up to a quotation mark that it may hold."""
    return msgspec.json.encode(point)[1:].partition(b'"')[0]


def _may_be_of(raw: bytes, needles: Collection[bytes]) -> bool:
    at = raw.find(_POINT) + len(_POINT)
    return _DEVICES in raw[:64] if at < len(_POINT) else raw[at : raw.find(b'"', at)] in needles


def _joined(spans: Iterable[array[int]]) -> list[tuple[int, int]]:
    """Each byte once, in file order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(pair for one in spans for pair in zip(one[::2], one[1::2], strict=True)):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
