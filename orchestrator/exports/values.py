"""Values as every format can take them: what does not fit is null, or has U+FFFD in it, and is counted. Pure.

After `fitted` text has no lone surrogates, whole numbers have 64 bits, others are finite, and what differs from method
to method is JSON already.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import msgspec

from orchestrator.exports.columns import Column, Kind, Values
from orchestrator.view.wording import listed

LEAST, MOST = -(2**63), 2**63 - 1
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

Fit = Callable[[Sequence[Any]], Values]


def fitted(columns: Sequence[Column], lost: Counter[str]) -> Fit:
    """A function of one line's values. `lost` is told the columns of what did not fit."""
    fits = [(column.name, _FITS[column.kind], column.kind in _KEPT) for column in columns]

    def one(name: str, fit: Callable[[Any], Any], kept: bool, value: Any) -> Any:
        found = fit(value)
        if found is None or (kept and found is not value):
            lost[name] += 1
        return found

    def fit(values: Sequence[Any]) -> Values:
        pairs = zip(fits, values, strict=True)
        return tuple([None if value is None else one(*how, value) for how, value in pairs])

    return fit


def lost_text(lost: Counter[str]) -> str:
    """Of values that did not fit, a sentence."""
    told = [f"{name} ({count})" for name, count in lost.most_common()]
    return f"values that no format holds are null, or hold U+FFFD, in {listed(told, 10)}"


def as_json(value: Any) -> msgspec.Raw:
    """What JSON has no word for is null."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return msgspec.Raw(msgspec.json.encode(_bare(msgspec.to_builtins(value))))


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {_bare(name): _bare(one) for name, one in value.items()}
    return (
        [*map(_bare, value)] if isinstance(value, (list, tuple)) else _text(value) if isinstance(value, str) else value
    )


def _text(value: str) -> str:
    return value if value.isascii() or not _SURROGATE.search(value) else _SURROGATE.sub("\ufffd", value)


def _integer(value: int) -> int | None:
    return value if LEAST <= value <= MOST else None


def _number(value: float) -> float | None:
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _time(value: float) -> datetime | None:
    """Of Unix seconds. To the microsecond, which is what all formats hold."""
    try:
        return _EPOCH + timedelta(microseconds=round(value * 1e6))
    except (OverflowError, ValueError):
        return None


def _words(value: Sequence[str]) -> Sequence[str]:
    return value if all(_text(one) is one for one in value) else [*map(_text, value)]


def _integers(value: Sequence[int]) -> Sequence[int | None]:
    fits = not value or (min(value) >= LEAST and max(value) <= MOST)
    return value if fits else [*map(_integer, value)]


def _numbers(value: Sequence[float | None]) -> Sequence[float | None]:
    return value if all(one is None or math.isfinite(one) for one in value) else [one and _number(one) for one in value]


def _lists_of(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def lists(value: Sequence[Any]) -> Sequence[Any]:
        found = [*map(fit, value)]
        return value if all(new is old for new, old in zip(found, value, strict=True)) else found

    return lists


_FITS: Final[dict[Kind, Callable[[Any], Any]]] = {
    "text": _text,
    "word": _text,
    "integer": _integer,
    "number": _number,
    "flag": bool,
    "time": _time,
    "json": as_json,
    "words": _words,
    "integers": _integers,
    "numbers": _numbers,
    "lists of integers": _lists_of(_integers),
    "lists of numbers": _lists_of(_numbers),
}
#: Of these a value that fits comes back as it is.
_KEPT: Final[frozenset[Kind]] = frozenset(
    {"text", "word", "words", "integers", "numbers", "lists of integers", "lists of numbers"}
)
