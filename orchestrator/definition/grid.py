"""The cells of a sweep: settings and sampling, times the matrix, times the rows of zip. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

from msgspec.structs import fields

from orchestrator.definition.fields import INVALID, SAMPLING, SETTABLE, SETTINGS, TYPES, convert, is_mapping, parts
from orchestrator.definition.hints import is_list, list_hint
from orchestrator.definition.spelling import nearest, shown
from orchestrator.definition.sweepfile import Node, Problems
from protocol.specs import BackendConfig

#: A sweep with more points than this is a slip of the pen.
MAX_POINTS: Final = 100_000

_Axis = list[dict[str, Any]]  # what each step of it sets


def cells(root: Node, times: int, problems: Problems) -> tuple[dict[str, Any], ...]:
    """BackendConfig fields and values of every combination, the last axis moving fastest.
    `times` is the number of points that each one becomes."""
    base = {**_base(root, "settings", SETTINGS, problems), **_base(root, "sampling", SAMPLING, problems)}
    axes: list[_Axis] = [[{name: v} for v in values] for name, values in _columns(root, "matrix", problems).items()]
    axes += _rows(root, _columns(root, "zip", problems), problems)
    _check_overlap(root, problems)
    if (count := math.prod(len(axis) for axis in axes) * times) > MAX_POINTS:
        where = root.value["matrix"].where if "matrix" in root.value else root.where
        problems.add(where, "matrix", f"makes {count} points, more than {MAX_POINTS}")
        return ()
    found = tuple({k: v for part in (base, *combination) for k, v in part.items()} for combination in product(*axes))
    for limit, new in dict.fromkeys(map(_without_room, found)):
        if limit is not None:
            key, where = _place(root, "max_model_len")
            message = f"max_new_tokens {new} leaves no room for a prompt in max_model_len {limit}"
            problems.add(where, key, message)
    return found


def home(name: str) -> str:
    """The section that a field belongs to."""
    return "sampling" if name in SAMPLING else "settings"


def _base(root: Node, key: str, valid: Sequence[str], problems: Problems) -> dict[str, Any]:
    node = root.value.get(key)
    if node is None:
        return {}
    if not is_mapping(node, key, valid, problems):
        return {}
    for name in [n for n in node.value if n not in valid]:
        problems.add(node.value[name].where, f"{key}.{name}", *_misplaced(name, key, valid))
    return parts(Node({k: v for k, v in node.value.items() if k in valid}, node.where), key, TYPES, problems)


def _misplaced(name: str, key: str, valid: Sequence[str]) -> tuple[str, str]:
    """Message and hint for a field that `key` does not take."""
    if name in SETTABLE:
        acts = "with each batch" if name in SAMPLING else "when a worker loads"
        return f"acts {acts}", f"put it under {home(name)}"
    if name == "trust_remote_code":
        return "belongs to the model", "write model: {hub: org/name, trust_remote_code: true}"
    if name in UNSUPPORTED:
        return UNSUPPORTED[name]
    if name in ("method", "methods") and key in ("matrix", "zip"):
        return f"is no part of {key}", "every method of the list `methods` runs in every cell"
    if name in _TOP:
        return f"is no part of {key}", "move it to the left margin"
    if name in ("settings", "sampling"):
        return f"is no part of {key}", f"leave it out: fields stand directly under {key}"
    return f"{key} has no such key", nearest(name, valid)


_DIFFERENT: Final = ("is not supported: engines give it different meanings", "leave it out")
#: Names that engines know and a sweep does not: the nearest valid name would be another thing. Message and hint.
UNSUPPORTED: Final = {
    **dict.fromkeys(
        (
            *("top_k", "min_p", "typical_p", "logit_bias", "n", "best_of", "num_beams", "use_beam_search"),
            *("repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty", "no_repeat_ngram_size"),
            *("min_new_tokens", "min_tokens", "stop", "stop_strings", "bad_words", "guided_decoding"),
        ),
        _DIFFERENT,
    ),
    "do_sample": ("is not supported", "temperature 0 is greedy, any other samples"),
}

_TOP = ("name", "model", "prompts", "methods", "repeats", "warmup", "measurement", "limits", "policies", "environments")


def _columns(root: Node, key: str, problems: Problems) -> dict[str, list[Any]]:
    """The lists under matrix or zip, by field, each value checked."""
    node = root.value.get(key)
    if node is None:
        return {}
    if not is_mapping(node, key, SETTABLE, problems):
        return {}
    columns = {}
    for name, values in node.value.items():
        place = f"{key}.{name}"
        if name not in SETTABLE:
            problems.add(values.where, place, *_misplaced(name, key, SETTABLE))
        elif not isinstance(values.value, list):
            hint = list_hint(TYPES[name], values.plain())
            problems.add(values.where, place, f"must be a list, not {shown(values.value)}", hint)
        elif values.value and is_list(TYPES[name]) and not any(isinstance(v.value, list) for v in values.value):
            problems.add(values.where, place, "each of its values must be a list", list_hint(TYPES[name], None))
        elif not values.value:
            problems.add(values.where, place, "is empty, which would leave nothing to run")
        else:
            columns[name] = _column(values, place, TYPES[name], key == "matrix", problems)
    return columns


def _column(node: Node, key: str, kind: Any, distinct: bool, problems: Problems) -> list[Any]:
    good: list[Any] = []
    seen: set[Any] = set()
    for n, item in enumerate(node.value):
        value = convert(item, f"{key}[{n}]", kind, problems)
        if value is not INVALID and distinct and value in seen:
            problems.add(item.where, f"{key}[{n}]", f"repeats {value}", "to measure again, use repeats")
        seen.add(value)
        good.append(value)
    return good


def _rows(root: Node, columns: Mapping[str, list[Any]], problems: Problems) -> list[_Axis]:
    if not columns:
        return []
    node = root.value["zip"]
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        problems.add(node.where, "zip", f"its lists advance together and must be equally long: {counts}")
        return []
    rows = list(zip(*columns.values(), strict=True))
    first: dict[tuple[Any, ...], int] = {}
    for n, row in enumerate(rows, 1):
        if first.setdefault(row, n) != n and INVALID not in row:
            problems.add(node.where, "zip", f"its row {n} repeats row {first[row]}")
    return [[dict(zip(columns, row, strict=True)) for row in rows]]


def _check_overlap(root: Node, problems: Problems) -> None:
    """A field given twice: whichever won, half the readers of the file would be wrong."""
    at: dict[str, str] = {}
    for key in ("settings", "sampling", "matrix", "zip"):
        node = root.value.get(key)
        for name, value in node.value.items() if node is not None and isinstance(node.value, dict) else ():
            if name in at and name in SETTABLE:
                hint = f"keep one; --set {at[name]}.{name}= removes the other"
                problems.add(value.where, f"{key}.{name}", f"is given under {at[name]} too", hint)
            at.setdefault(name, key)


def _without_room(cell: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """max_model_len and the new tokens that leave no room for a prompt in it; None and None where they leave some."""
    limit = cell.get("max_model_len")
    new = cell.get("max_new_tokens", _DEFAULT_NEW_TOKENS)
    full = cell.get("task") != "score" and isinstance(limit, int) and isinstance(new, int) and new >= limit
    return (limit, new) if full else (None, None)


_DEFAULT_NEW_TOKENS: int = next(f.default for f in fields(BackendConfig) if f.name == "max_new_tokens")


def _place(root: Node, name: str) -> tuple[str, str]:
    """Key and position of a field, wherever the file gives it."""
    for key in ("settings", "sampling", "matrix", "zip"):
        node = root.value.get(key)
        if node is not None and isinstance(node.value, dict) and name in node.value:
            return f"{key}.{name}", node.value[name].where
    return name, root.where
