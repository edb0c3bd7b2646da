"""Which fields a sweep may set, and one check of a value against a field's own type.

The types in protocol.specs are the only source of truth: bounds, choices and
whether null is allowed are read from them, so that what is checked, what the
error says and what the editor schema shows can't differ. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import fields

from orchestrator.definition.hints import alternatives, fits, hint
from orchestrator.definition.spelling import likely, nearest, shown
from orchestrator.definition.sweepfile import Node, Problems
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
    """The value of `node` as type `kind`, or INVALID after saying what is wrong with it, and with each part of it
    at the part's own place."""
    for one in alternatives(kind):
        if isinstance(node.value, dict) and isinstance(one, type) and issubclass(one, Struct):
            return _struct(node, key, one, problems)
        if isinstance(node.value, dict) and (one is Any or get_origin(one) is dict):
            return _mapping(node, key, Any if one is Any else get_args(one)[1], problems)
        if isinstance(node.value, list) and (one is Any or get_origin(one) is tuple):
            return _several(node, key, one, problems)
    return _scalar(node, key, kind, problems)


def _scalar(node: Node, key: str, kind: Any, problems: Problems) -> Any:
    value = node.plain()
    if problems.unread(node, key):
        return INVALID
    if reason := unfit(value):
        infinite = isinstance(value, float) and math.isinf(value) and fits(1e6, kind)
        problems.add(node.where, key, reason, "write a large number" if infinite else "")
        return INVALID
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        message = f"must be {expected(kind).rstrip(',')}, not {shown(value)}"
        problems.add(node.where, key, message, hint(kind, value, key))
        return INVALID
    # -0.0 would be another point than 0.0, with the same output.
    return converted + 0.0 if isinstance(converted, float) else converted


def _several(node: Node, key: str, kind: Any, problems: Problems) -> Any:
    item = Any if kind is Any else get_args(kind)[0]
    found = [convert(one, f"{key}[{n}]", item, problems) for n, one in enumerate(node.value)]
    return INVALID if any(one is INVALID for one in found) else found if kind is Any else tuple(found)


def _mapping(node: Node, key: str, kind: Any, problems: Problems) -> Any:
    found = {name: convert(one, f"{key}.{name}", kind, problems) for name, one in node.value.items()}
    return INVALID if any(one is INVALID for one in found.values()) else found


def _struct(node: Node, key: str, kind: type[Struct], problems: Problems) -> Any:
    good = parts(node, key, get_type_hints(kind, include_extras=True), problems)
    lacking = missing(node.value, [f.name for f in fields(kind) if f.required], [f.name for f in fields(kind)])
    if lacking:
        problems.add(node.where, key, f"lacks {' and '.join(lacking)}")
    return INVALID if lacking or len(good) < len(node.value) else kind(**good)


def missing(given: Iterable[str], needed: Iterable[str], valid: Iterable[str]) -> list[str]:
    """Those of the needed names that are not given, not even misspelt, which is told of as such."""
    known = list(valid)
    meant = {name if name in known else likely(name, known) for name in given}
    return [name for name in needed if name not in meant]


def parts(node: Node, key: str, valid: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The fields of a mapping, each checked against its type in `valid`; faulty ones are left out."""
    if not is_mapping(node, key, valid, problems):
        return {}
    good = {}
    for name, value in node.value.items():
        if name not in valid:
            problems.add(value.where, f"{key}.{name}", f"{key} has no such key", nearest(name, valid))
        elif (converted := convert(value, f"{key}.{name}", valid[name], problems)) is not INVALID:
            good[name] = converted
    return good


def is_mapping(node: Node, key: str, valid: Iterable[str], problems: Problems) -> bool:
    """Whether `node` has parts; says what to write instead where it has none."""
    if not isinstance(node.value, dict):
        problems.add(node.where, key, f"must be a mapping, not {shown(node.value)}", _mapping_hint(node, key, valid))
    return isinstance(node.value, dict)


def _mapping_hint(node: Node, key: str, valid: Iterable[str]) -> str:
    names = list(valid)
    if isinstance(node.value, list) and any(isinstance(one.value, dict) for one in node.value):
        return "leave out the hyphens"
    name, sign, value = re.sub(r"\s+", "", str(node.value)).replace("=", ":").partition(":")
    if not sign or name not in names:
        return f"for example {{{names[0]}: …}}"
    return f"write --set {key}.{name}={value}" if node.where.startswith("--set ") else f"write {{{name}: {value}}}"


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
    high = high if info.lt is None else f"less than {info.lt}"
    both = " and ".join(part for part in (low, high) if part)
    return f", {both}," if both else ""
