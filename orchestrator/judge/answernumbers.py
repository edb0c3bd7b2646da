"""The number that a text comes to, as GSM8K's answers are read: the one on a line with ####, else the last. Pure.

ASCII digits with or without commas in threes, a sign, a currency's sign, decimals, an exponent, or a fraction of whole
numbers: "1,234.50", "-$3", "1e-3", "3/4". Commas and fractions also as LaTeX has them: "1{,}234", "1\\,234",
"\\frac{3}{4}". Digits inside a word (x2, H2O) are no number, and a hyphen behind a word or a number is no sign: "10-20"
ends with 20.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Final, NamedTuple

from orchestrator.definition.judging import AS_MINUS, MINUS

CURRENCY: Final = "".join(map(chr, (0x24, *range(0xA2, 0xA6), 0xE3F, *range(0x20A0, 0x20C1), 0xFF04)))
_SIGN: Final = rf"(?:[{MINUS}+][{CURRENCY}]?|[{CURRENCY}][{MINUS}+]?)?"
#: Between thousands: a comma, what LaTeX makes of one or has for a thin space, and spaces at which no line is broken.
_BETWEEN: Final = r"(?:,(?:\\!)?|\{,\}|\\,|[\u00a0\u2009\u202f])"
_DIGITS: Final = rf"(?:[0-9]{{1,3}}(?:{_BETWEEN}[0-9]{{3}})+(?![0-9])|[0-9]+)"
_EXPONENT: Final = rf"(?:[eE][{MINUS}+]?[0-9]{{1,4}}(?![0-9]))?"
_FRACTION: Final = r"[0-9]{1,18}/[0-9]{1,18}(?![0-9/]|\.[0-9])"
#: Whole number before it, numerator, denominator.
_LATEX: Final = (
    rf"([0-9]{{1,18}})?\\[dtc]?frac"
    rf"(?:\{{([{MINUS}+]?[0-9]{{1,18}})\}}\{{([0-9]{{1,18}})\}}|([0-9])([0-9])(?![0-9]))"
)
_BEFORE: Final = r"(?:(?<![\w/])|(?<=\\displaystyle))"
_NUMBER: Final = rf"{_BEFORE}{_SIGN}(?:{_LATEX}|{_FRACTION}|(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+){_EXPONENT})"
_find = re.compile(_NUMBER).finditer
_latex = re.compile(_LATEX).search
#: GSM8K ends each solution with such a line.
_marked = re.compile(rf"^####[ ]?({_NUMBER})[ .]?$", re.MULTILINE).search
#: One of more characters is a wall of digits, no answer.
_LONGEST: Final = 1000
#: So many characters from the last digit on decide what the number is.
_BEHIND: Final = 3
_EXACT: Final = Context(prec=2 * _LONGEST)
_QUOTIENT: Final = Context(prec=40)
_PLAIN: Final = {**dict.fromkeys(map(ord, CURRENCY + ",{}\\!\u00a0\u2009\u202f")), **AS_MINUS}


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
    if found := _latex(text):
        sign, whole = text[: found.start()].translate(_PLAIN), Decimal(found[1] or 0)
        part = _quotient(found[2] or found[4], found[3] or found[5])
        return (
            None if part is None else Number(_QUOTIENT.multiply(_QUOTIENT.add(whole, part), Decimal(f"{sign}1")), text)
        )
    above, _, below = text.translate(_PLAIN).partition("/")
    value = _quotient(above, below) if below else Decimal(above)
    return None if value is None else Number(value, text)


def _quotient(above: str, below: str) -> Decimal | None:
    return _QUOTIENT.divide(Decimal(above.translate(_PLAIN)), Decimal(below)) if int(below) else None
