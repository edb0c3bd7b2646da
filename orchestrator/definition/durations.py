"""Times that people write with units: "8h", "1h30m", "45s"; a plain number is seconds. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Final

from orchestrator.definition.fields import unfit
from orchestrator.definition.hints import SECONDS
from orchestrator.definition.spelling import shown
from orchestrator.definition.sweepfile import Node, Problems

EXAMPLE: Final = "for example 8h, 1h30m, 45s, or a number of seconds"
#: A longer time is a slip of the pen.
MOST_S: Final = 10 * 365 * 86_400.0
_LONGEST: Final = 60
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-zµμ]+)\s*")
_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def read_stop_after(node: Node, problems: Problems) -> float | None:
    return read_duration(node, "stop_after", problems)


def read_duration(node: Node, key: str, problems: Problems) -> float | None:
    """Seconds; None where it is null or wrong."""
    value = node.value
    if value is None:
        return None
    message, suggestion = _wrong(value)
    if message:
        problems.add(node.where, key, message, suggestion)
        return None
    return float(value) if isinstance(value, int | float) else duration_s(value)


def duration_s(text: str) -> float | None:
    """ "1h30m" → 5400.0; None for what is none. Units come largest first, each once."""
    parts = list(_parts(text))
    sizes = [size for _, size in parts]
    if not parts or sizes != sorted(set(sizes), reverse=True):
        return None
    return float(sum(Fraction(Decimal(number)) * size for number, size in parts))


def duration_text(value_s: float) -> str:
    """5400 → "1h30m", as a sweep file has it; 0.5 → "0.5s"."""
    whole, rest = divmod(value_s, 1)
    if rest or not whole:
        return f"{f'{value_s:.6f}'.rstrip('0').rstrip('.')}s"
    left, words = int(whole), []
    for unit, size in _UNITS:
        count, left = divmod(left, size) if unit != "d" or not left % size else (0, left)
        words += [f"{count}{unit}"] if count else []
    return "".join(words)


def _parts(text: str) -> Iterator[tuple[str, Fraction]]:
    """Each number with the size of its unit; nothing unless all of the text is such."""
    plain = text.strip().lower()
    found = list(_PART.finditer(plain)) if len(plain) <= _LONGEST else []
    if "".join(match[0] for match in found) == plain and all(match[2] in SECONDS for match in found):
        yield from ((match[1], SECONDS[match[2]]) for match in found)


def _wrong(value: object) -> tuple[str, str]:
    """What is wrong with it and what to write instead; empty where nothing is."""
    if reason := unfit(value):
        return reason, EXAMPLE
    message = f"must be a time, not {shown(value)}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return message, EXAMPLE
    found = duration_s(value) if isinstance(value, str) else value
    if found is None:
        return message, _meant(str(value).strip())
    if found <= 0:
        return f"must be more than no time, not {shown(value)}", EXAMPLE
    return (f"{shown(value)} is more than ten years", "leave it out for no limit") if found > MOST_S else ("", "")


def _meant(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return f"write {text}, without quotes, or {text}s"
    if re.fullmatch(r"\d{1,4}:\d\d", text):
        first, last = text.split(":")
        return f"write {int(first)}h{int(last)}m, or {int(first)}m{int(last)}s"
    if match := re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,4}):(\d\d):(\d\d)", text):  # as Slurm has it
        days, *rest = (int(part or 0) for part in match.groups())
        return f"write {duration_text(days * 86_400 + rest[0] * 3600 + rest[1] * 60 + rest[2])}"
    if text.lower() in ("never", "none", "null", "no", "off"):
        return "leave it out for no limit"
    sizes = [size for _, size in _parts(text)]
    if sizes:
        return "give each unit once, the largest first, for example 1h30m"
    return EXAMPLE
