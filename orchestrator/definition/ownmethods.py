"""Methods of the user's own: a base and what differs, or spelled out whole. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from orchestrator.definition.fields import INVALID, METHOD_TYPES, SETTABLE, convert, missing
from orchestrator.definition.spelling import nearest, oddity, short, shown
from orchestrator.definition.sweepfile import Node, Problems, wrap
from orchestrator.definition.variables import refused, secret_arguments
from orchestrator.methods import NAME_RULE, is_name
from protocol.codec import MAX_FREE_BYTES
from protocol.specs import MethodSpec

#: Names of keys, from the outermost to the innermost.
Path = tuple[str, ...]
#: Of a text that is shown again as what was meant.
_LONGEST_LIST: Final = 1000
#: Linux takes no longer "NAME=value", and the end of its text.
_VARIABLE_BYTES: Final = 128 * 1024 - 1
#: Beside all else of a configuration, in one message.
_ARGS_BYTES: Final = MAX_FREE_BYTES - 64 * 1024


def resolve(entry: Node, key: str, registry: Mapping[str, MethodSpec], problems: Problems) -> MethodSpec | None:
    """The method that one entry of the file's list means: a registered one's name, or a
    mapping that names a base and what differs, or that spells out a method whole.
    engine_args and env_vars are merged into the base's, level by level."""
    if isinstance(entry.value, str):
        if entry.value not in registry:
            problems.add(entry.where, key, f"no method is called {_quoted(entry)}", _named(entry, registry))
        return registry.get(entry.value)
    if not isinstance(entry.value, dict):
        problems.add(entry.where, key, f"must be a method's name or a mapping, not {shown(entry.value)}")
        return None
    if named := _as_key(entry.value, registry):
        hint = f"write {{name: my_{named}, base: {named}, …}}, or {named} alone"
        problems.add(entry.where, key, f"{named} must be a value here, not a key", hint)
        return None
    before = problems.said
    values = _base(entry, key, registry, problems)
    values |= {n: v for n, node in entry.value.items() if (v := _field(n, node, key, values, problems)) is not INVALID}
    _check_name(entry, key, registry, problems)
    if problems.said > before:
        return None
    spec = msgspec.convert(values, MethodSpec)
    _check_whole(spec, entry, key, problems)
    return spec if problems.said == before else None


def _quoted(name: Node) -> str:
    """Empty names can be seen."""
    return short(name.value) or '""'


def _named(entry: Node, registry: Mapping[str, MethodSpec]) -> str:
    names = [name.strip() for name in entry.value.split(",")]
    several = len(names) > 1 and len(entry.value) <= _LONGEST_LIST
    return f"write a list: [{', '.join(names)}]" if several else nearest(entry.value, registry)


def _as_key(given: Mapping[str, Node], registry: Mapping[str, MethodSpec]) -> str | None:
    """The method's name where what differs stands below it."""
    known = next(iter(given), "")
    return known if len(given) == 1 and known in registry else None


def _base(entry: Node, key: str, registry: Mapping[str, MethodSpec], problems: Problems) -> dict[str, Any]:
    base = entry.value.get("base")
    if base is None:
        if len(missing(entry.value, ("base", "engine"), _FIELDS)) == 2:
            problems.add(entry.where, key, "needs a base, or an engine", "for example base: vllm_default")
        return {}
    if not isinstance(base.value, str):
        problems.add(base.where, f"{key}.base", f"must be a method's name, not {shown(base.value)}")
        return {}
    if base.value not in registry:
        message = f"outside this file no method is called {_quoted(base)}"
        problems.add(base.where, f"{key}.base", message, nearest(base.value, registry))
        return {}
    values: dict[str, Any] = msgspec.to_builtins(registry[base.value])
    return values | {"summary": f"{base.value} with changes"}


def _field(name: str, node: Node, key: str, values: dict[str, Any], problems: Problems) -> Any:
    """The checked value of one field, in plain types; INVALID where there is none."""
    key = f"{key}.{name}"
    if name == "base":
        return INVALID
    if name not in METHOD_TYPES:
        shared = "it is the same for all methods of a sweep: put it under settings, sampling or matrix"
        hint = shared if name in (*SETTABLE, "settings", "sampling", "matrix") else nearest(name, _FIELDS)
        problems.add(node.where, key, "a method has no such field", hint)
        return INVALID
    old = values.get(name)
    if name == "engine" and old and node.value != old:
        problems.add(node.where, key, f"the base runs {old}: a method can't change its base's engine")
        return INVALID
    node = Node(_merge(old, node), node.where)
    converted = convert(node, key, METHOD_TYPES[name], problems)
    return converted if converted is INVALID else msgspec.to_builtins(converted)


def _merge(old: Any, new: Node) -> Any:
    """`new` over `old`; only mappings merge, all else replaces."""
    if not (isinstance(old, dict) and isinstance(new.value, dict)):
        return new.value
    kept = {k: wrap(v, new.where) for k, v in old.items()}
    return kept | {k: Node(_merge(old.get(k), v), v.where) for k, v in new.value.items()}


def _check_name(entry: Node, key: str, registry: Mapping[str, MethodSpec], problems: Problems) -> None:
    name = entry.value.get("name")
    if name is None:
        if missing(entry.value, ("name",), _FIELDS):
            problems.add(entry.where, f"{key}.name", "is missing", "give the method a name of your own")
    elif isinstance(name.value, str) and name.value in registry:
        message = f"{name.value} is taken, and a name always means the same thing"
        problems.add(name.where, f"{key}.name", message, f"choose another name, and say base: {name.value}")
    elif isinstance(name.value, str) and not is_name(name.value):
        problems.add(name.where, f"{key}.name", f"can't be {shown(name.value)}", name_hint(name.value))


def name_hint(text: str) -> str:
    """Of a name that is none."""
    return "; ".join(filter(None, (NAME_RULE, oddity(text))))


def _check_whole(spec: MethodSpec, entry: Node, key: str, problems: Problems) -> None:
    for path, message, hint in conflicts(spec):
        problems.add(_innermost(entry, path).where, ".".join([key, *path]), message, hint)


def _innermost(node: Node, path: Path) -> Node:
    """As far down `path` as the file goes: the rest is the base's."""
    if not (path and isinstance(node.value, dict) and path[0] in node.value):
        return node
    return _innermost(node.value[path[0]], path[1:])


def conflicts(spec: MethodSpec) -> list[tuple[Path, str, str]]:
    """Of a method's fields with each other and with what Airlock sets: which, what is wrong, what to do."""
    found: list[tuple[Path, str, str]] = []
    if spec.continuous_batching and spec.engine != "hf":
        found.append(
            (("continuous_batching",), "is for Transformers; the other engines always batch so", "leave it out")
        )
    if spec.continuous_batching and spec.rocket_bucket:
        found.append((("rocket_bucket",), "contradicts continuous_batching: a paged cache pads nothing", "choose one"))
    if spec.eager and spec.compile:
        found.append((("compile",), "contradicts eager: true", "choose one"))
    if spec.ngram and spec.ngram.min_n > spec.ngram.max_n:
        found.append((("ngram",), f"min_n {spec.ngram.min_n} is more than max_n {spec.ngram.max_n}", ""))
    if spec.ngram and spec.engine == "hf" and spec.ngram.min_n != 1:
        found.append((("ngram",), "Transformers always falls back to single tokens: min_n must be 1", ""))
    if spec.ngram and spec.engine == "sglang":
        hint = "write engine_args: {speculative_algorithm: NGRAM, …}, or begin with base: sglang_ngram"
        found.append((("ngram",), "SGLang's n-gram speculation has no min_n and max_n", hint))
    if spec.worker and not _is_program(spec.worker[0]):
        hint = "its whole path, or a name that is in PATH"
        found.append((("worker",), f"{short(spec.worker[0])} would be looked for in each worker's own folder", hint))
    taken = _SET_BY_US.get(spec.engine, {})
    set_by_us = [name for name in spec.engine_args if name in taken]
    found += [(("engine_args", name), "is set by Airlock", f"write {taken[name]}") for name in set_by_us]
    kept = "is a secret, and would be kept in the run directory"
    found += [(("engine_args", *path), kept, "leave it out") for path in secret_arguments(spec.engine_args)]
    found += [(("env_vars", name), message, hint) for name, message, hint in refused(spec.env_vars)]
    return found + list(_oversized(spec))


def _oversized(spec: MethodSpec) -> Iterator[tuple[Path, str, str]]:
    """A worker of it would end before its load, or not begin at all."""
    for name, value in spec.env_vars.items():
        if (size := len(f"{name}={value}".encode("utf-8", "replace"))) > _VARIABLE_BYTES:
            told = f"has {size} bytes with its name, and the system takes {_VARIABLE_BYTES}"
            yield ("env_vars", name), told, "put it into a file, and name that"
    size = len(json.dumps(spec.engine_args, default=str, ensure_ascii=False).encode("utf-8", "replace"))
    if size > _ARGS_BYTES:
        told = f"come to {size >> 10} KiB, and a worker can be told {_ARGS_BYTES >> 10} KiB"
        yield ("engine_args",), told, "put what is long into a file, and name that"


def _is_program(name: str) -> bool:
    return name.startswith("/") or ("/" not in name and bool(name))


#: Of a method's mapping.
_FIELDS: Final = ("base", *METHOD_TYPES)

#: Arguments of each engine that another field decides. Set behind its back,
#: the record of what ran would be false.
_SET_BY_US: dict[str, dict[str, str]] = {
    "hf": {
        "attn_implementation": "attention",
        "dtype": "settings.dtype",
        "torch_dtype": "settings.dtype",
        "trust_remote_code": "model.trust_remote_code",
    },
    "vllm": {
        "model": "model",
        "attention_backend": "attention",
        "enforce_eager": "eager",
        "dtype": "settings.dtype",
        "max_model_len": "settings.max_model_len",
        "max_num_batched_tokens": "settings.max_num_batched_tokens",
        "gpu_memory_utilization": "settings.gpu_memory_utilization",
        "kv_cache_memory_bytes": "settings.kv_cache_bytes",
        "enable_prefix_caching": "settings.prefix_caching",
        "tensor_parallel_size": "settings.tensor_parallel_size",
        "pipeline_parallel_size": "settings.pipeline_parallel_size",
        "trust_remote_code": "model.trust_remote_code",
        "seed": "sampling.seed",
    },
    "sglang": {
        "model_path": "model",
        "attention_backend": "attention",
        "dtype": "settings.dtype",
        "context_length": "settings.max_model_len",
        "max_total_tokens": "settings.kv_cache_bytes",
        "mem_fraction_static": "settings.sglang_mem_fraction_static",
        "disable_radix_cache": "settings.prefix_caching",
        "tp_size": "settings.tensor_parallel_size",
        "pp_size": "settings.pipeline_parallel_size",
        "trust_remote_code": "model.trust_remote_code",
        "random_seed": "sampling.seed",
    },
}
