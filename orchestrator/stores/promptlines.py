"""The lines of a prompt file, whatever is in them: JSON values, or text as it stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.config import PromptSource
from orchestrator.errors import InputError, Problem
from orchestrator.stores.named import Named

JSON_LINES = frozenset({".jsonl", ".ndjson"})
PLAIN_LINES = frozenset({".txt"})
_ONE_A_LINE = 'each line is one object, like {"prompt": "hello"}'
_BOM = b"\xef\xbb\xbf"


class Entry(Struct, frozen=True):
    """One prompt as found: text or a mapping, with its place in the file and in the sweep file's keys."""

    value: Any
    where: str
    key: str = ""


def entries_of(named: Named, source: PromptSource, problems: list[Problem]) -> list[Entry]:
    """What stands in the file, line by line. Raises InputError where it can't be read at all."""
    path, label = named.path, named.written
    parse = _line_parser(path, source)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("is no regular file")
        data = path.read_bytes()
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        message = f"{named} can't be read: {reason}"
        raise InputError([_of_file(source, message, named.instead(_is_prompt_file))]) from exc
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError([Problem(label, "", "is UTF-16", "save it as UTF-8")])
    entries = []
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), start=1):
        where = f"{label}:{number}"
        try:
            text = line.removesuffix(b"\r").decode("utf-8")
            if text.strip():
                entries.append(Entry(parse(text), where))
        except UnicodeDecodeError as exc:
            problems.append(Problem(where, "", f"is not UTF-8: byte {exc.start + 1} of the line: {exc.reason}"))
        except json.JSONDecodeError as exc:
            problems.append(Problem(where, "", f"is not valid JSON: {exc.msg}, at character {exc.colno}", _ONE_A_LINE))
        except ValueError as exc:
            problems.append(Problem(where, "", f"is not valid JSON: {exc}"))
        except RecursionError:
            problems.append(Problem(where, "", "is nested too deeply"))
    return entries


def _line_parser(path: Path, source: PromptSource) -> Callable[[str], Any]:
    suffix = path.suffix.lower()
    if suffix in JSON_LINES:
        return _parse_json
    if suffix in PLAIN_LINES:
        return str
    ending = f"ends in {suffix}" if suffix else "has no ending"
    hint = f"known endings: {', '.join(sorted(JSON_LINES | PLAIN_LINES))}; prompts themselves go into a list: [hello]"
    raise InputError([_of_file(source, f"{source.file} {ending}, which tells no kind of prompt file", hint)])


def _of_file(source: PromptSource, message: str, hint: str) -> Problem:
    """Of the file as a whole, where the sweep file names it."""
    return Problem(source.where or source.file or "", source.key, message, hint)


def _is_prompt_file(path: Path) -> bool:
    return path.suffix.lower() in JSON_LINES | PLAIN_LINES and path.is_file()


def _parse_json(text: str) -> Any:
    # By itself json takes NaN, which breaks every reader of the results, and drops the first of two equal keys.
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = sorted({key for n, (key, _) in enumerate(pairs) if any(key == k for k, _ in pairs[:n])})
        raise ValueError(f"{', '.join(map(repr, twice))} is given twice")
    return found
