"""Which fields a sweep may set, and one check of a value against a field's own type.

The types in protocol.specs are the only source of truth: bounds, choices and
whether null is allowed are read from them, so that what is checked, what the
error says and what the editor schema shows can't differ. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import inspect

from orchestrator.definition.sweepfile import Node, Problems, nearest, shown
from protocol.specs import BackendConfig, MethodSpec, call_fields, load_fields

#: What the plan decides: by the method list, the model, the prompts, the machine.
DECIDED = ("method", "model_path", "device", "trust_remote_code", "images_per_prompt", "stop_token_ids")
SETTINGS: Final = tuple(n for n in load_fields() if n not in DECIDED)
SAMPLING: Final = tuple(n for n in call_fields() if n not in DECIDED)
SETTABLE: Final = SETTINGS + SAMPLING
TYPES: Final[dict[str, Any]] = {
    name: kind for name, kind in get_type_hints(BackendConfig, include_extras=True).items() if name in SETTABLE
}
DEFAULTS: Final[dict[str, Any]] = {
    f.name: f.default for f in msgspec.structs.fields(BackendConfig) if f.name in SETTABLE
}
METHOD_TYPES: Final[dict[str, Any]] = get_type_hints(MethodSpec, include_extras=True)

#: The wire and the journal carry integers of 64 bits, signed.
LARGEST = 2**63 - 1

#: Stands for a value that was refused: None is a value like any other.
INVALID: Final = object()


def convert(node: Node, key: str, kind: Any, problems: Problems) -> Any:
    """The value of `node` as type `kind`, or INVALID after saying what is wrong with it."""
    value = node.plain()
    reason = unfit(value)
    if reason:
        problems.add(node.where, key, reason)
        return INVALID
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        problems.add(node.where, key, _message(kind, value, exc), _hint(kind, node, key))
        return INVALID
    # -0.0 would be another point than 0.0, with the same output.
    return converted + 0.0 if isinstance(converted, float) else converted


def parts(node: Node, key: str, valid: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The fields of a mapping, each checked against its type in `valid`; faulty ones are left out."""
    if not isinstance(node.value, dict):
        problems.add(node.where, key, f"must be a mapping, not {shown(node.value)}")
        return {}
    good = {}
    for name, value in node.value.items():
        if name not in valid:
            problems.add(value.where, f"{key}.{name}", f"{key} has no such key", nearest(name, valid))
        elif (converted := convert(value, f"{key}.{name}", valid[name], problems)) is not INVALID:
            good[name] = converted
    return good


def unfit(value: Any) -> str:
    """Why a plain value can't be stored or sent whatever its field, "" if it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        return f"{shown(value)} is {'more than 2^63-1' if value > 0 else 'less than -2^63'}, the limit of whole numbers"
    if isinstance(value, str) and "\0" in value:
        return f"holds a NUL character at offset {value.index(chr(0))}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((reason for part in inner if (reason := unfit(part))), "")


def expected(kind: Any) -> str:
    """What a value of type `kind` looks like, in words: "a whole number, 1 or more, or null"."""
    return _words(kind if isinstance(kind, inspect.Type) else inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return _words(info.type)
        case inspect.UnionType():
            return " or ".join(_words(t) for t in sorted(info.types, key=lambda t: isinstance(t, inspect.NoneType)))
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(info, inspect.IntType) else "a number") + _bounds(info)
        case inspect.LiteralType():
            return "one of " + ", ".join(str(v) for v in info.values)
    return _PLAIN.get(type(info), "a mapping")


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.StrType: "text",
    inspect.NoneType: "null",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
}


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    low = f"more than {info.gt}" if info.gt is not None else f"{info.ge} or more" if info.ge is not None else ""
    high = "" if info.le is None else "at most 2^63-1" if info.le == LARGEST else f"at most {info.le}"
    both = " and ".join(part for part in (low, high) if part)
    return f", {both}," if both else ""


def _message(kind: Any, value: Any, exc: msgspec.ValidationError) -> str:
    said, _, path = str(exc).replace("`", "").partition(" - at $")
    if not path and not said.startswith("Object"):
        return f"must be {expected(kind).rstrip(',')}, not {shown(value)}"
    for theirs, ours in _IN_WORDS.items():
        said = re.sub(rf"(?<!\w){theirs}(?!\w)", ours, said)
    place = "one of its values" if "[...]" in path else path.lstrip(".")
    return f"{place}: {said}" if place else said


#: msgspec's words for what is wrong inside a mapping, and ours.
_IN_WORDS = {
    "Object missing required field": "lacks",
    "Object contains unknown field": "has no such key as",
    "Expected": "must be",
    "got": "not",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "float": "a number",
    "object": "a mapping",
    "array": "a list",
    ">=": "of at least",
}


def _hint(kind: Any, node: Node, key: str) -> str:
    section, _, name = key.partition(".")
    value = node.value
    several = isinstance(value, list) or (isinstance(value, str) and "," in value)
    if section in ("sampling", "settings") and several:
        return f"to run several values, move it to matrix.{name}"
    choices = _choices(inspect.type_info(kind))
    if isinstance(value, str) and choices:
        return nearest(value, choices)
    if isinstance(value, str):
        return "numbers, true and false are written without quotes"
    return "write it in quotes" if expected(kind) == "text" and isinstance(value, int | float) else ""


def _choices(info: inspect.Type) -> list[str]:
    match info:
        case inspect.Metadata():
            return _choices(info.type)
        case inspect.UnionType():
            return [choice for t in info.types for choice in _choices(t)]
        case inspect.LiteralType():
            return [str(v) for v in info.values]
    return []
