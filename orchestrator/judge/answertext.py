"""Texts as they are compared: what a sweep leaves out of comparison, taken out; and what a prompt expects, as texts.
Pure."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from orchestrator.definition.judging import AS_MINUS, Normalise
from orchestrator.judge.answernumbers import CURRENCY

Normaliser = Callable[[str], str]

#: Never dropped: parts of numbers, formulas and names.
_KEPT: Final = "$<=>+/^%‰"
#: Dropped unless what stands beside them makes them such a part. Each pattern begins with its signs, by which they are
#: found fast, and looks round from behind the sign.
_POINTS: Final = ".,:*"
_MARKS: Final = "#!-"
_points = re.compile(
    rf"""[{_POINTS}]
    (?!(?<=[.,:])[0-9])                                              # 1.5, 1,000, 12:30
    (?!(?<=\w\*)\w)                                                  # 2*3
    (?!(?<=[^\s{_POINTS}{_MARKS}][ ]\*)[ ][^\s{_POINTS}{_MARKS}])    # 2 * 3""",
    re.VERBOSE,
)
#: None is kept for the sake of one that is dropped, so that normalising once more changes nothing.
_marks = re.compile(
    rf"""[{_MARKS}]
    (?!(?<=-)[ ]?[{CURRENCY}]?\.?[0-9])    # -3, - 3, -$3, -.5
    (?!(?<=-)(?<![\w{_MARKS}]-)\w)        # -x
    (?!(?<=\w-)(?![\w{_MARKS}]))          # A-
    (?<!\w\#)                             # C#
    (?!(?<=!)=)                           # !=""",
    re.VERBOSE,
)
_SPARED: Final = f"{_KEPT}{_POINTS}{_MARKS}"
_ASCII: Final = dict.fromkeys(ord(sign) for sign in string.punctuation if sign not in _SPARED)
#: From here on not every whole number is a float.
_WHOLE: Final = 2.0**53
#: Beyond these planes there is no punctuation.
_PLANES: Final = 0x20000


@lru_cache
def normaliser(rules: Normalise) -> Normaliser:
    """Canonically equivalent texts come out the same, whatever the rules."""
    steps: list[Normaliser] = [_composed]
    steps += [str.casefold] if rules.case == "fold" else []
    steps += [_without_punctuation] if rules.punctuation == "drop" else []
    steps += [_collapsed] if rules.spaces == "collapse" else []

    def normalised(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalised


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def _without_punctuation(text: str) -> str:
    held = text.translate(_ASCII if text.isascii() else _punctuation())
    return _marks.sub("", _points.sub("", held))


@lru_cache
def _punctuation() -> dict[int, str | None]:
    """All that Unicode calls punctuation, and `|`, `~` and the backtick; what stands for a minus becomes one."""
    every = (code for code in range(_PLANES) if unicodedata.category(chr(code))[0] == "P")
    return {**_ASCII, **dict.fromkeys(code for code in every if chr(code) not in _SPARED), **AS_MINUS}


#: No digit, point or sign goes on with a number there; a hyphen behind a word or a number is no sign: 10-20.
_NUMBER_BEGINS: Final = rf"(?<![0-9])(?<![0-9][.,:/])(?<![.])(?<!^-)(?<![^\w]-)(?<!-[{CURRENCY}])"
_NUMBER_ENDS: Final = r"(?![0-9])(?![.,:/][0-9])"
_begins_with_number = re.compile(rf"[-+{CURRENCY}.]*[0-9]").match


def holds(piece: str) -> Callable[[str], bool]:
    """Whether a text has it in it: anywhere, but a number in no other one."""
    begins, ends = _begins_with_number(piece), piece[-1:].isdecimal()
    if not (begins or ends):
        return lambda text: piece in text
    found = re.compile("".join((_NUMBER_BEGINS * bool(begins), re.escape(piece), _NUMBER_ENDS * ends))).search
    return lambda text: piece in text and found(text) is not None


def accepted(expected: Any) -> tuple[str, ...]:
    """The texts that a prompt's `expected` stands for, any of which is right; none where it is not of a kind that can
    be judged."""
    given = expected if isinstance(expected, list | tuple) else [expected]
    texts = [_text(one) for one in given]
    return () if None in texts else tuple(text for text in texts if text is not None)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _WHOLE else repr(value)
    if isinstance(value, int):
        return _digits(value)
    return value if isinstance(value, str) else None


def _digits(value: int) -> str | None:
    """None for one of more digits than Python writes."""
    try:
        return str(value)
    except ValueError:
        return None
