"""Loads one entry point in a process of its own, and writes down what it gives: `python -m … VALUE ANSWER`.

Somebody else's code may end its process, hang, or print where an answer belongs: here it can only do so to itself.
The answer is JSON: {"methods": [...]}, or {"refused": "why"}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.view.wording import clean
from protocol.specs import MethodSpec


class _Refused(Exception):
    pass


def main(value: str, answer: str) -> None:
    try:
        found: dict[str, Any] = {"methods": list(_brought(value))}
    except _Refused as exc:
        found = {"refused": str(exc)}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # threads and exit handlers of another's code have no say any more


def _brought(value: str) -> Iterator[dict[str, Any]]:
    """Raises _Refused."""
    if not EntryPoint.pattern.match(value):
        raise _Refused(f"{value!r} is no reference of the form module:name")
    try:
        given = EntryPoint("", value, "").load()
        given = given() if callable(given) else given
    except BaseException as exc:  # another's code may raise whatever it likes
        raise _Refused(f"{value} can't be loaded: {_told(exc)}") from exc
    for one in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(one, MethodSpec):
            what = "a MethodSpec, a list of them, or a function that gives either"
            raise _Refused(f"{value} gives {type(one).__name__}, not {what}")
        yield _plain(one)


def _plain(spec: MethodSpec) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = msgspec.to_builtins(spec)
        json.dumps(plain)
    except (TypeError, ValueError, RecursionError) as exc:
        raise _Refused(f"method {spec.name!r}: {exc}") from exc
    return plain


def _told(exc: BaseException) -> str:
    try:
        said = clean(" ".join(str(exc).split()))
    except Exception:  # an exception of another's own that can't even be told
        said = ""
    return ": ".join(filter(None, (type(exc).__name__, said)))


if __name__ == "__main__":
    main(*sys.argv[1:])
