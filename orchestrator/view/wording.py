"""Numbers and foreign text as people read them: sizes, times, names, first lines.

Whatever an engine printed may hold escape sequences that repaint a terminal
or reverse the reading order; `clean` makes them visible instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: Shown where a value is not known; a zero would claim a measurement.
UNKNOWN = "–"
#: Behind the point of a figure with an interval; what is smaller is what sums of floats are off by.
MOST_DIGITS = 6
#: A number, alone or with a space behind it: no version, date or digest.
_FIGURE = re.compile(r"(all \()?[-+−±×<≥≤]? ?\d[\d,]*(\.\d+)?(%|[ )]|$)")
_LONGEST_FIGURE = 48

_PACKAGES = {"hf": "transformers"}
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029}
_CONTROL = {*range(0x20), *range(0x7F, 0xA0)} | _BIDI
_TABLE = {c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in _CONTROL} | {0x09: " ", 0x0D: "", 0x0A: " "}
_TABLE |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # lone surrogates can't be encoded


def clean(text: str) -> str:
    """One line that is safe on a terminal and encodable as UTF-8."""
    return text.translate(_TABLE)


def first_line(text: str, limit: int = 200) -> str:
    """The first line that says something, cleaned and cut to `limit` characters."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    line = clean(line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def are_figures(texts: Sequence[str]) -> bool:
    """Whether a column of these is one of numbers, with their units and intervals, which stand at its right."""
    told = [text for text in texts if text != UNKNOWN]
    return bool(told) and all(len(text) <= _LONGEST_FIGURE and _FIGURE.match(text) for text in told)


def bytes_text(count: float) -> str:
    """Binary units: 1536 → "1.5 KiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(value_s: float) -> str:
    """0.0123 → "12.3 ms", 75 → "1 min 15 s"."""
    if value_s < 0.9995:  # so that what is rounded has three digits
        return f"{value_s * 1000:.3g} ms"
    if value_s < 59.95:
        return f"{value_s:.3g} s"
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def count_text(count: int) -> str:
    """16384 → "16,384". Here and in `rate_text` thousands are set apart, and nowhere else: for people, not programs."""
    return f"{count:,}"


def rate_text(value: float, half: float | None = None) -> str:
    """13.14 → "13.1", with half of its interval "13.1 ± 0.4", 408755 → "408,755"; small ones with more digits, so
    that neither is rounded to zero."""
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2 if value >= 1 else max(3, _first_digit(value))
    if half is None:
        return f"{value:,.{digits}f}"
    needed = _first_digit(half)
    digits = max(digits, needed) if needed <= MOST_DIGITS else digits
    return f"{value:,.{digits}f} ± {half:,.{digits}f}"


def _first_digit(value: float) -> int:
    """Behind the point: 0.04 → 2. 0 for what has none, as it is zero or 1 and more."""
    return max(0, -math.floor(math.log10(value))) if value > 0 else 0


def percent_text(share: float) -> str:
    """0.95 → "95 %", 0.999 → "99.9 %". Never "100 %" or "0 %" of what is not quite that."""
    texts = (f"{share * 100:.{digits}g}" for digits in range(4, 17))
    return f"{next((text for text in texts if float(text) not in (0, 100)), f'{share * 100:g}')} %"


def listed(items: Sequence[str], most: int, between: str = ", ") -> str:
    """ "a, b and 3 more" """
    more = f" and {count_text(len(items) - most)} more" if len(items) > most else ""
    return between.join(items[:most]) + more


def joined(words: Sequence[str]) -> str:
    """ "4, 3 and 2" """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, one: str, many: str = "") -> str:
    """1 → "1 batch", 2 → "2 batches"; `many` where an s is not enough."""
    return f"{count_text(count)} {one if count == 1 else many or one + 's'}"


def engine_text(engine: str, version: str) -> str:
    """The library that the version is of: our engine "hf" is the package transformers."""
    return f"{_PACKAGES.get(engine, engine)} {version}"


def or_unknown(value: _T | None, text: Callable[[_T], str]) -> str:
    return UNKNOWN if value is None else text(value)


def setting_text(value: object) -> str:
    """A setting as one short word, different for different values: None → "null", as a sweep file has it, (1, 2) →
    "[1, 2]", True → "on", 0.5 → "0.5"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"[{', '.join(map(setting_text, value))}]"
    if isinstance(value, float):
        value = value or 0.0  # and not -0.0, which is the same
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return clean(str(value))


def settings_text(settings: Mapping[str, object]) -> str:
    """{"batch_size": 4, "max_model_len": None} → "batch_size=4 max_model_len=null" """
    return " ".join(f"{name}={setting_text(value)}" for name, value in settings.items())
