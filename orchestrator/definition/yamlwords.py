"""What the YAML parser has against a text, in words that say what to change, and on which line. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError


class Syntax(NamedTuple):
    """line: 0 where it is not known."""

    line: int
    message: str
    hint: str = ""


#: By what the parser says, the first that fits; {line}: where that begins which it was reading.
_HINTS: Final = (
    (r"\\t", "write spaces: YAML allows no tabs there"),
    ("cannot start any token", "put the value in quotes"),
    ("undefined alias", "put it in quotes: a plain value that begins with * stands for an anchor"),
    (
        "mapping values",
        "a colon above lacks its space, the line is indented too far, or text with a colon needs quotes",
    ),
    ("flow sequence", "the list that begins with [ in line {line} lacks a comma, or its ]"),
    ("flow mapping", "the mapping that begins with {{ in line {line} lacks a comma, a space behind a colon, or its }}"),
    ("unknown escape", "use single quotes, in which a backslash is just that"),
    ("found '<scalar>'", "indent the line as those beside it, or put the whole value in quotes"),
    (r"found '[]}]'", "there is one bracket too many"),
    ("<block end>|<document start>", "indent the line as those beside it"),
    ("another document", "one file is one sweep: remove the line ---"),
    ("sequence entries", "begin the list on the next line, or write [a, b]"),
)
#: These are known to be wrong only lines later: told of where they begin.
_BEGIN: Final = (
    ("quoted scalar.*end of stream", "the quote is not closed", ""),
    ("simple key", "the line is no key with a value", "write key: value, with a space behind the colon"),
)


def syntax(exc: YAMLError, text: str) -> Syntax:
    """`text` is what was read."""
    if isinstance(exc, ReaderError):
        code = exc.character if isinstance(exc.character, int) else ord(exc.character)
        hint = "remove it, or write it as an escape in double quotes" if code else "save it as UTF-8"
        return Syntax(text.count("\n", 0, exc.position) + 1, f"the character U+{code:04X} is not allowed", hint)
    if not isinstance(exc, MarkedYAMLError):
        return Syntax(0, str(exc).splitlines()[0])
    began, met = (mark.line + 1 if mark else 0 for mark in (exc.context_mark, exc.problem_mark))
    said = f"{exc.context} {exc.problem}"
    for pattern, message, hint in _BEGIN:
        if re.search(pattern, said):
            return Syntax(began, message, hint)
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, said)), "")
    return Syntax(met or began, str(exc.problem or exc.context), hint.format(line=began))
