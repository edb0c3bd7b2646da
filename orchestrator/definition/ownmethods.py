"""Methods of the user's own: a base and what differs, or spelled out whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.definition.fields import INVALID, METHOD_TYPES, convert
from orchestrator.definition.sweepfile import Node, Problems, nearest, shown, wrap
from orchestrator.definition.variables import refused, secret_arguments
from orchestrator.methods import NAME_RULE, is_name
from protocol.specs import MethodSpec


def resolve(entry: Node, key: str, registry: Mapping[str, MethodSpec], problems: Problems) -> MethodSpec | None:
    """The method that one entry of the file's list means: a registered one's name, or a
    mapping that names a base and what differs, or that spells out a method whole.
    engine_args and env_vars are merged into the base's, level by level."""
    if isinstance(entry.value, str):
        if entry.value not in registry:
            problems.add(entry.where, key, f"no method is called {entry.value}", nearest(entry.value, registry))
        return registry.get(entry.value)
    if not isinstance(entry.value, dict):
        problems.add(entry.where, key, f"must be a method's name or a mapping, not {shown(entry.value)}")
        return None
    before = len(problems.found)
    values = _base(entry, key, registry, problems)
    values |= {n: v for n, node in entry.value.items() if (v := _field(n, node, key, values, problems)) is not INVALID}
    _check_name(entry, key, registry, problems)
    if len(problems.found) > before:
        return None
    spec = msgspec.convert(values, MethodSpec)
    _check_whole(spec, entry, key, problems)
    return spec if len(problems.found) == before else None


def _base(entry: Node, key: str, registry: Mapping[str, MethodSpec], problems: Problems) -> dict[str, Any]:
    base = entry.value.get("base")
    if base is None:
        if "engine" not in entry.value:
            problems.add(entry.where, key, "needs a base, or an engine", "for example base: vllm_default")
        return {}
    if not isinstance(base.value, str) or base.value not in registry:
        hint = nearest(base.value, registry) if isinstance(base.value, str) else nearest("", registry)
        problems.add(base.where, f"{key}.base", f"no method to start from is called {base.plain()}", hint)
        return {}
    values: dict[str, Any] = msgspec.to_builtins(registry[base.value])
    return values | {"summary": f"{base.value} with changes"}


def _field(name: str, node: Node, key: str, values: dict[str, Any], problems: Problems) -> Any:
    """The checked value of one field, in plain types; INVALID where there is none."""
    key = f"{key}.{name}"
    if name == "base":
        return INVALID
    if name not in METHOD_TYPES:
        problems.add(node.where, key, "a method has no such field", nearest(name, ["base", *METHOD_TYPES]))
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
        problems.add(entry.where, f"{key}.name", "is missing", "give the method a name of your own")
    elif isinstance(name.value, str) and name.value in registry:
        message = f"{name.value} is taken, and a name always means the same thing"
        problems.add(name.where, f"{key}.name", message, f"choose another name, and say base: {name.value}")
    elif isinstance(name.value, str) and not is_name(name.value):
        problems.add(name.where, f"{key}.name", f"can't be {shown(name.value)}", NAME_RULE)


def _check_whole(spec: MethodSpec, entry: Node, key: str, problems: Problems) -> None:
    for name, message, hint in conflicts(spec):
        where = entry.value.get(name, entry).where
        problems.add(where, f"{key}.{name}", message, hint)


def conflicts(spec: MethodSpec) -> list[tuple[str, str, str]]:
    """Of a method's fields with each other and with what Airlock sets: field, what is wrong, what to do."""
    found = []
    if spec.continuous_batching and spec.engine != "hf":
        found.append(("continuous_batching", "is for Transformers; the other engines always batch so", "leave it out"))
    if spec.continuous_batching and spec.rocket_bucket:
        found.append(("rocket_bucket", "contradicts continuous_batching: a paged cache pads nothing", "choose one"))
    if spec.eager and spec.compile:
        found.append(("compile", "contradicts eager: true", "choose one"))
    if spec.ngram and spec.ngram.min_n > spec.ngram.max_n:
        found.append(("ngram", f"min_n {spec.ngram.min_n} is more than max_n {spec.ngram.max_n}", ""))
    if spec.ngram and spec.engine == "hf" and spec.ngram.min_n != 1:
        found.append(("ngram", "Transformers always falls back to single tokens: min_n must be 1", ""))
    if spec.ngram and spec.engine == "sglang":
        hint = "write engine_args: {speculative_algorithm: NGRAM, …}, or begin with base: sglang_ngram"
        found.append(("ngram", "SGLang's n-gram speculation has no min_n and max_n", hint))
    taken = _SET_BY_US.get(spec.engine, {})
    found += [("engine_args", f"{a} is set by Airlock", f"write {taken[a]}") for a in spec.engine_args if a in taken]
    kept = "is a secret, and would be kept in the run directory"
    found += [("engine_args", f"{a} {kept}", "leave it out") for a in secret_arguments(spec.engine_args)]
    found += [("env_vars", message, hint) for message, hint in refused(spec.env_vars)]
    return found


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
