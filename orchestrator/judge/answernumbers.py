"""The number that a text comes to, as GSM8K's answers are read: the one on a line with ####, else the last. Pure.

ASCII digits with or without commas in threes, a sign, a currency's sign, decimals, an exponent, or a fraction of whole
numbers: "1,234.50", "-$3", "1e-3", "3/4". Digits inside a word (x2, H2O) are no number, and a hyphen behind a word or a
number is no sign: "10-20" ends with 20.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Final, NamedTuple

from orchestrator.definition.judging import AS_MINUS, MINUS

CURRENCY: Final = "".join(map(chr, (0x24, *range(0xA2, 0xA6), 0xE3F, *range(0x20A0, 0x20C1), 0xFF04)))
_SIGN: Final = rf"(?:[{MINUS}+][{CURRENCY}]?|[{CURRENCY}][{MINUS}+]?)?"
_DIGITS: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_EXPONENT: Final = rf"(?:[eE][{MINUS}+]?[0-9]{{1,4}}(?![0-9]))?"
_FRACTION: Final = r"[0-9]{1,18}/[0-9]{1,18}(?![0-9/]|\.[0-9])"
_NUMBER: Final = rf"(?<![\w/]){_SIGN}(?:{_FRACTION}|(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+){_EXPONENT})"
_find = re.compile(_NUMBER).finditer
#: GSM8K ends each solution with such a line.
_marked = re.compile(rf"^####[ ]?({_NUMBER})[ .]?$", re.MULTILINE).search
#: One of more characters is a wall of digits, no answer.
_LONGEST: Final = 1000
#: So many characters from the last digit on decide what the number is.
_BEHIND: Final = 3
_EXACT: Final = Context(prec=2 * _LONGEST)
_QUOTIENT: Final = Context(prec=40)
_PLAIN: Final = {**dict.fromkeys(map(ord, CURRENCY + ",")), **AS_MINUS}


class Number(NamedTuple):
    """`text` is as it stood."""

    value: Decimal
    text: str


def number_of(text: str) -> Number | None:
    found = _marked(text) if "####" in text else None
    last = found[1] if found else _last_in(_end_of(text)) or _last_in(text)
    return None if last is None else _read(last)


def _end_of(text: str) -> str:
    """The word with the last digit: the last number is in it, unless that is none."""
    last = max(map(text.rfind, "0123456789"))
    begin = max(text.rfind(space, 0, last + 1) for space in " \n")
    return text[begin + 1 : last + _BEHIND]


def _last_in(text: str) -> str | None:
    last = None
    for found in _find(text):
        last = found[0]
    return last


def near(one: Decimal, other: Decimal, tolerance: Decimal) -> bool:
    return one == other or (tolerance > 0 and abs(_EXACT.subtract(one, other)) <= tolerance)


def _read(text: str) -> Number | None:
    if len(text) > _LONGEST:
        return None
    above, _, below = text.translate(_PLAIN).partition("/")
    if not below:
        return Number(Decimal(above), text)
    return Number(_QUOTIENT.divide(Decimal(above), Decimal(below)), text) if int(below) else None
