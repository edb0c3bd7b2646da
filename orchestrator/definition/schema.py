"""JSON Schema of the sweep file, for editors: completion, hover text, red underlines.

Fields come from the same types that `config.parse` checks against; only the
top level is written here. A schema can't say all that `parse` checks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from orchestrator.config import MAX_TIMES, Limits, Measurement
from orchestrator.definition import judging, notifyuse, repairs
from orchestrator.definition.clusteruse import LAUNCHERS, ClusterUse
from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.definition.fields import DEFAULTS, SAMPLING, SETTINGS, TYPES
from orchestrator.definition.judging import Answers
from orchestrator.definition.limits import ALLOWED, CLASSES, MEANINGLESS, Policies, Policy
from orchestrator.definition.promptuse import ChatTemplate, RandomTokens, Reading, SharedPrefix
from orchestrator.definition.sections import REQUIRED
from orchestrator.methods import ENGINES
from protocol.specs import MethodSpec, NgramSpec

_REF = "#/$defs/{name}"
_OF_PROMPTS = (Reading, RandomTokens, SharedPrefix)
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}


def sweep_schema(registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    """The schema, as plain values ready for JSON. `registry`: the methods there are, by name."""
    structs = [MethodSpec, NgramSpec, Limits, Measurement, Policy, DeviceUse, ClusterUse, Answers, *_OF_PROMPTS]
    _, components = msgspec.json.schema_components([*structs, notifyuse.Webhook], ref_template=_REF)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Airlock sweep",
        "description": "What to run: one model, the same prompts, several methods, and a grid of settings.",
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": _top(components, registry),
        "$defs": {
            **{n: c for n, c in components.items() if n not in ("Policy", "Reading")},
            "MethodSpec": _method(components["MethodSpec"], registry),
            "NgramSpec": _partial(components),
            "ClusterUse": _cluster(components["ClusterUse"]),
            "Answers": judging.schema(components["Answers"]),
        },
    }


def _top(components: dict[str, Any], registry: Mapping[str, MethodSpec]) -> dict[str, Any]:
    return {
        "name": _NAME | {"description": "becomes the run's folder, runs/<name>"},
        "model": _model(),
        "prompts": _prompts(components["Reading"]["properties"]),
        "methods": _methods(registry),
        "sampling": _section(SAMPLING, "fields that act with each batch; a change shares the loaded worker"),
        "settings": _section(SETTINGS, "fields that act when a worker loads; a change starts a fresh one"),
        "matrix": _lists("every combination of these values runs; the last list advances fastest", unique=True),
        "zip": _lists("lists of equal length that advance together, row by row", unique=False),
        "repeats": _count(1, 1, "how often each point is measured"),
        "warmup": _count(0, 1, "unmeasured batches before each point"),
        "answers": _part("Answers", "how outputs are judged by what their prompts have as `expected`"),
        "measurement": _part("Measurement", "order and number of repeats, and what results are held against"),
        "limits": _part("Limits", "how long a worker may stay in each state, and the room that a run needs"),
        "policies": _policies(components["Policy"]["properties"]),
        "environments": _object(
            {e: _NAME | {"description": f"where {e} runs"} for e in ENGINES if e != "scripted"},
            "engine → name of the environment it runs in; its own name if left out",
        ),
        "repairs": repairs.schema(),
        "devices": _part("DeviceUse", "the GPUs and CPUs that are used, and how many workers run at once"),
        "stop_after": _duration("nothing new begins after so long, and the run ends resumable"),
        "launcher": {"enum": list(LAUNCHERS), "default": "local", "description": "where the workers run"},
        "cluster": _part("ClusterUse", "the allocations that workers run on, where the launcher is not local"),
        "notify": notifyuse.schema({"$ref": _REF.format(name="Webhook")}),
    }


def _part(name: str, description: str) -> dict[str, Any]:
    return {"$ref": _REF.format(name=name), "description": description}


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
    def one(cls: str) -> dict[str, Any]:
        default = msgspec.to_builtins(Policies().of(cls))
        do = {"enum": list(ALLOWED[cls]), "description": f"default: {Policies().of(cls)}"}
        idle = set.intersection(*(MEANINGLESS[action] for action in ALLOWED[cls]))
        own = {name: field | {"default": default[name]} for name, field in fields.items() if name not in idle}
        own["do"] = do | {"default": default["do"]}
        return {"anyOf": [do, _object(own, "what is left out stays as it is")], "description": CLASSES[cls]}

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


def _prompts(reading: dict[str, Any]) -> dict[str, Any]:
    prompt = {
        "type": "object",
        "description": "one prompt: its text or its chat messages, an id, and anything to keep beside the output",
        "properties": {
            "prompt": {"type": "string", "description": "its text"},
            "messages": {"type": "array", "description": "a chat, instead of the text"},
            "id": {"type": ["string", "integer"], "description": "numbered where it is left out"},
            "images": {"type": "array", "description": "files or data URLs, beside the text"},
            "continuation": {"type": "string", "description": "what task: score scores, after the prompt"},
            "expected": {"description": "the right answer: kept, and never sent"},
        },
    }
    several = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, prompt]}}
    inline = several | {"description": "the prompts themselves"}
    file = _text("a file, or the folder of a saved dataset, relative to this one")
    template = {"enum": list(get_args(ChatTemplate)), "default": "auto", "description": "auto: where the model has one"}
    made = {"random": {"$ref": "#/$defs/RandomTokens"}, "shared_prefix": {"$ref": "#/$defs/SharedPrefix"}}
    parts = {"file": file, "inline": inline, **made, "chat_template": template, **reading}
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
    properties = {**schema["properties"], "base": base}
    properties["name"] = properties["name"] | _NAME
    return schema | {"properties": properties, "required": ["name"]}


def _partial(components: dict[str, Any]) -> dict[str, Any]:
    """A method with a base may give only what differs from the base's."""
    return {k: v for k, v in components["NgramSpec"].items() if k != "required"}
