"""JSON Schema of the sweep file, for editors: completion, hover text, red underlines.

Fields come from the same types that `config.parse` checks against; only the
top level is written here. A schema can't say all that `parse` checks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from orchestrator.config import MAX_TIMES, REQUIRED, Limits, Measurement
from orchestrator.definition import repairs
from orchestrator.definition.clusteruse import LAUNCHERS, ClusterUse
from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.definition.fields import DEFAULTS, SAMPLING, SETTINGS, TYPES
from orchestrator.definition.limits import ALLOWED, Policies, Policy
from orchestrator.definition.sources import ChatTemplate
from orchestrator.methods import ENGINES
from protocol.specs import MethodSpec, NgramSpec

_REF = "#/$defs/{name}"
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}


def sweep_schema(registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    """The schema, as plain values ready for JSON. `registry`: the methods there are, by name."""
    _, components = msgspec.json.schema_components(
        [MethodSpec, NgramSpec, Limits, Measurement, Policy, DeviceUse, ClusterUse], ref_template=_REF
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Airlock sweep",
        "description": "What to run: one model, the same prompts, several methods, and a grid of settings.",
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": _top(components["Policy"]["properties"], registry),
        "$defs": {
            **{n: c for n, c in components.items() if n != "Policy"},
            "MethodSpec": _method(components["MethodSpec"], registry),
            "NgramSpec": _partial(components),
            "ClusterUse": _cluster(components["ClusterUse"]),
        },
    }


def _top(policy: dict[str, Any], registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    return {
        "name": _NAME | {"description": "becomes the run's folder, runs/<name>"},
        "model": _model(),
        "prompts": _prompts(),
        "methods": _methods(registry),
        "sampling": _section(SAMPLING, "fields that act with each batch; a change shares the loaded worker"),
        "settings": _section(SETTINGS, "fields that act when a worker loads; a change starts a fresh one"),
        "matrix": _lists("every combination of these values runs; the last list advances fastest", unique=True),
        "zip": _lists("lists of equal length that advance together, row by row", unique=False),
        "repeats": _count(1, 1, "how often each point is measured"),
        "warmup": _count(0, 1, "unmeasured batches before each point"),
        "measurement": {"$ref": "#/$defs/Measurement"},
        "limits": {"$ref": "#/$defs/Limits"},
        "policies": _policies(policy),
        "environments": _object(
            {e: _NAME for e in ENGINES if e != "scripted"},
            "engine → name of the environment it runs in; its own name if left out",
        ),
        "repairs": repairs.schema(),
        "devices": {"$ref": "#/$defs/DeviceUse"},
        "stop_after": _duration("nothing new begins after so long, and the run ends resumable"),
        "launcher": {"enum": list(LAUNCHERS), "default": "local", "description": "where the workers run"},
        "cluster": {"$ref": "#/$defs/ClusterUse"},
    }


def _duration(what: str) -> dict[str, Any]:
    return {
        "description": f"{what}: 8h, 1h30m, or seconds",
        "anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}, {"type": "null"}],
        "default": None,
    }


def _cluster(schema: dict[str, Any]) -> dict[str, Any]:
    fields = {name: part for name, part in schema["properties"].items() if name != "time_limit_s"}
    return schema | {"properties": fields | {"time_limit": _duration("how long an allocation lasts at most")}}


def _policies(fields: dict[str, Any]) -> dict[str, Any]:
    default = Policies()

    def one(cls: str) -> dict[str, Any]:
        do = {"enum": list(ALLOWED[cls]), "description": f"default: {getattr(default, cls)}"}
        return {"anyOf": [do, _object({**fields, "do": do}, "what is left out stays as it is")]}

    return _optional(_object({cls: one(cls) for cls in ALLOWED}, "what follows a failure of each class"))


def _object(properties: dict[str, Any], description: str, **more: Any) -> dict[str, Any]:
    base = {"type": "object", "description": description, "additionalProperties": False, "properties": properties}
    return base | more


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """A section whose lines are all commented out reads as null."""
    return schema | {"type": ["object", "null"]}


def _section(names: tuple[str, ...], description: str) -> dict[str, Any]:
    return _optional(_object({n: _field(n) | {"default": DEFAULTS[n]} for n in names}, description))


def _field(name: str) -> dict[str, Any]:
    return msgspec.json.schema(TYPES[name])


def _lists(description: str, unique: bool) -> dict[str, Any]:
    def column(name: str) -> dict[str, Any]:
        return {"type": "array", "minItems": 1, "uniqueItems": unique, "items": _field(name)}

    return _optional(_object({n: column(n) for n in SETTINGS + SAMPLING}, description))


def _count(low: int, default: int, description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": MAX_TIMES, "default": default, "description": description}


def _model() -> dict[str, Any]:
    trust = {"type": "boolean", "default": False, "description": "run Python shipped with the model"}
    path = _object({"path": _text("a folder"), "trust_remote_code": trust}, "a local folder", required=["path"])
    hub = {"hub": _text("org/name"), "revision": _text("branch, tag or commit"), "trust_remote_code": trust}
    return {
        "description": "the model, the same for every method",
        "anyOf": [
            {"enum": ["demo", "scripted"], "description": "the small demo model; or none at all"},
            {"type": "string", "description": "./folder, or org/name on the Hugging Face hub"},
            path,
            _object(hub, "a model on the Hugging Face hub", required=["hub"]),
        ],
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _prompts() -> dict[str, Any]:
    prompt = {
        "type": "object",
        "description": "one prompt: its text or its chat messages, an id, and anything to keep beside the output",
        "properties": {
            "prompt": {"type": "string"},
            "messages": {"type": "array"},
            "id": {"type": ["string", "integer"]},
            "continuation": {"type": "string", "description": "what task: score scores, after the prompt"},
        },
    }
    inline = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, prompt]}}
    file = _text("a .jsonl or .txt file, relative to this one")
    template = {"enum": list(get_args(ChatTemplate)), "default": "auto", "description": "auto: where the model has one"}
    parts = {"file": file, "inline": inline, "chat_template": template}
    return {
        "description": "the prompts; every engine gets the same token ids",
        "anyOf": [file, inline, _object(parts, "prompts, with options")],
    }


def _methods(registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    named = {"enum": list(registry), "description": "; ".join(f"{m.name}: {m.summary}" for m in registry.values())}
    return {
        "type": "array",
        "minItems": 1,
        "description": "what to compare, in the order it runs",
        "items": {"anyOf": [named, {"$ref": "#/$defs/MethodSpec"}]},
    }


def _method(schema: dict[str, Any], registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    base = {"enum": list(registry), "description": "the method that this one starts from"}
    properties = schema["properties"] | {"name": _NAME, "base": base}
    return schema | {"properties": properties, "required": ["name"]}


def _partial(components: dict[str, Any]) -> dict[str, Any]:
    """A method with a base may give only what differs from the base's."""
    return {k: v for k, v in components["NgramSpec"].items() if k != "required"}
