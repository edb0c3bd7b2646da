"""A field of a record by its path, `answers.text[0]`, and a text with fields filled in. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from orchestrator.definition.spelling import likely
from orchestrator.view.wording import clean, listed

LISTED_NAMES = 10
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[-?\d+\])*")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class NoField(ValueError):
    """A sentence on what of a path is not there."""


@cache
def steps(path: str) -> tuple[str | int, ...]:
    """Names, and places in lists. Raises ValueError with a sentence."""
    if not _PATH.fullmatch(path):
        raise ValueError("is no field's name, nor a path such as answers.text[0]")
    return tuple(int(place) if place else name for name, place in _STEP.findall(path))


def find(record: Mapping[str, Any], path: str) -> Any:
    """What stands there. A field whose whole name is the path comes first. Raises NoField."""
    if path in record:
        return record[path]
    found: Any = record
    passed = ""
    for step in steps(path):
        if isinstance(step, str):
            found = _member(found, step, passed)
            passed = f"{passed}.{step}" if passed else step
        else:
            found = _item(found, step, passed)
            passed = f"{passed}[{step}]"
    return found


def _member(value: Any, name: str, passed: str) -> Any:
    if not isinstance(value, Mapping):
        raise NoField(f"{passed} has no parts with names")
    if name not in value:
        whole = f"{passed}.{name}" if passed else name
        raise NoField(f"has no field {whole}, {instead(name, value)}")
    return value[name]


def _item(value: Any, place: int, passed: str) -> Any:
    if not isinstance(value, list | tuple):
        raise NoField(f"{passed} is no list")
    if not -len(value) <= place < len(value):
        raise NoField(f"{passed} has {len(value)} items, and [{place}] is asked for")
    return value[place]


def instead(name: str, record: Mapping[str, Any]) -> str:
    """ "but question and answer: did you mean question?" """
    names = [clean(str(one)) for one in record]
    close = likely(name, names)
    return f"but {listed(names, LISTED_NAMES) or 'none at all'}" + (f": did you mean {close}?" if close else "")


@cache
def parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """Pairs of a text and the path of what follows it, None at the end. Raises ValueError with a sentence."""
    return tuple(_parts(template))


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    text, at = "", 0
    for brace in _BRACES.finditer(template):
        text, at = text + template[at : brace.start()], brace.end()
        if brace[0] in ("{{", "}}"):
            text += brace[0][0]
        elif brace[1] is None:
            raise ValueError(f"has a {brace[0]} by itself: a brace that is meant as such is written twice")
        else:
            path = brace[1].strip()
            steps(path) if path else _nameless()
            yield text, path
            text = ""
    yield text + template[at:], None


def _nameless() -> None:
    raise ValueError("has {} without a field's name in it")


def filled(template: str, record: Mapping[str, Any]) -> str:
    """Raises NoField where a field is missing, or is nothing that can stand in a text."""
    return "".join(text + ("" if path is None else _text(record, path)) for text, path in parts(template))


def _text(record: Mapping[str, Any], path: str) -> str:
    value = find(record, path)
    if value is None or isinstance(value, list | tuple | Mapping):
        kind = "null" if value is None else "a mapping" if isinstance(value, Mapping) else "a list"
        raise NoField(f"{path} is {kind}, which can't stand in the template")
    return value if isinstance(value, str) else json.dumps(value)
