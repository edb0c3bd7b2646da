"""Texts as they are compared: what a sweep leaves out of comparison, taken out; and what a prompt expects, as texts.
Pure."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from orchestrator.definition.judging import Normalise

Normaliser = Callable[[str], str]

#: Part of a number where a digit follows: -3, 1.5, 1,000, 3/4, 12:30.
_OF_NUMBERS: Final = ".,:/+-−"
_no_number = partial(re.compile(f"[{re.escape(_OF_NUMBERS)}](?![0-9])").sub, "")
_ASCII: Final = dict.fromkeys(ord(sign) for sign in string.punctuation if sign not in f"{_OF_NUMBERS}$<=>")
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
    return _no_number(text.translate(_ASCII if text.isascii() else _punctuation()))


@lru_cache
def _punctuation() -> dict[int, None]:
    """All that Unicode calls punctuation, and the signs of ASCII that it calls symbols but `$`, `<`, `=` and `>`."""
    every = (code for code in range(_PLANES) if unicodedata.category(chr(code))[0] == "P")
    return _ASCII | dict.fromkeys(code for code in every if chr(code) not in _OF_NUMBERS)


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
