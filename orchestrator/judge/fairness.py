"""Before a run: what is asked of the methods of a sweep that makes their figures incomparable. Pure.

All methods of a sweep get the same settings and the same prompts, so what differs is in the methods
themselves, or in settings that act in one engine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from orchestrator.judge.arguments import OF_ARGUMENT
from orchestrator.judge.findings import Finding, differ, merged, value_text
from protocol.specs import BackendConfig, MethodSpec

OWN_DEFAULT: Final = "its engine's default"


#: Threads of OpenMP, BLAS and the engines' own pools.
THREADS: Final = frozenset(
    {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY"}
    | {"GOMP_CPU_AFFINITY", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"}
    | {"SGLANG_CPU_OMP_THREADS_BIND", "TORCHINDUCTOR_COMPILE_THREADS"}
)
#: Arguments and variables → what the workers tell that decides whether it differed. Where threads are bound, where
#: weights come from and what is offloaded is told by none.
_TOLD: Final = {
    "quantization": "quantization",
    "kv_cache_dtype": "KV cache dtype",
    "num_gpu_blocks_override": "KV cache",
    "OMP_NUM_THREADS": "threads",
    "MKL_NUM_THREADS": "threads",
}
#: Variables that put other code in front of the engine's own.
_CODE = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH")

#: What a method is meant to differ in: field, how it is called, what it does.
_DESIGN: Final[tuple[tuple[str, str, str], ...]] = (
    ("attention", "attention", "the methods compare attention kernels"),
    ("graphs", "eager or graphs", "the methods compare eager execution with compilation and graphs"),
    ("rocket_bucket", "rocket buckets", "padded tokens are computed, and not counted"),
    ("batching", "batching", "a static batch ends with its longest row; continuous ones let rows come and go"),
    ("speculation", "speculation", "speculation makes a token cheaper where the prompt repeats itself"),
)


def lint(configs: Sequence[BackendConfig]) -> list[Finding]:
    """All that differs between the methods of these configurations, warnings first."""
    methods = list({config.method.name: config.method for config in configs}.values())
    checks: tuple[Iterable[Finding], ...] = (
        _memory(configs),
        _steps(configs),
        _drafts(methods),
        _arguments(methods),
        _environment(methods),
        _workers(methods),
        _design(methods),
        _extras(configs),
    )
    return merged(finding for found in checks for finding in found)


# --- settings that act in one engine alone ----------------------------------------


def _memory(configs: Sequence[BackendConfig]) -> Iterator[Finding]:
    """On a GPU vLLM and SGLang take a share each, counted in their own ways; on a CPU all get the same bytes."""
    pools = [c for c in configs if c.method.engine in ("vllm", "sglang") and c.device == "cuda"]
    for cells in _by_cell(pools, ("kv_cache_bytes", "gpu_memory_utilization", "sglang_mem_fraction_static")):
        who = {c.method.name: _share(c) for c in cells}
        if cells[0].kv_cache_bytes is None and len({c.method.engine for c in cells}) > 1:
            yield Finding(
                level="warning",
                what="memory share",
                who=who,
                why="each engine counts its share in its own way, so their KV caches differ in size, "
                "and with them how many sequences run at once",
                advice="set kv_cache_bytes, which both engines take",
                read_back="KV cache",
            )


def _share(config: BackendConfig) -> str:
    value = config.gpu_memory_utilization if config.method.engine == "vllm" else config.sglang_mem_fraction_static
    return OWN_DEFAULT if value is None else f"{value:g}"


def _steps(configs: Sequence[BackendConfig]) -> Iterator[Finding]:
    """Left open, each engine chooses how many tokens of prefill one step takes."""
    taking = [c for c in configs if c.method.engine in ("vllm", "sglang")]
    for cells in _by_cell(taking, ("max_num_batched_tokens",)):
        if cells[0].max_num_batched_tokens is None and len({c.method.engine for c in cells}) > 1:
            yield Finding(
                level="note",
                what="tokens per step",
                who={c.method.name: OWN_DEFAULT for c in cells},
                why="prefill is cut into pieces of different size",
                advice="set max_num_batched_tokens",
            )


def _by_cell(configs: Sequence[BackendConfig], names: Sequence[str]) -> Iterator[list[BackendConfig]]:
    groups: dict[tuple[Any, ...], list[BackendConfig]] = {}
    for config in configs:
        groups.setdefault(tuple(getattr(config, name) for name in names), []).append(config)
    yield from groups.values()


# --- the methods themselves -------------------------------------------------------


def _drafts(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    ngrams = {method.name: method.ngram for method in methods if method.ngram}
    drafting = {name: f"n {n.min_n} to {n.max_n}, {n.draft_tokens} tokens" for name, n in ngrams.items()}
    if differ(drafting):
        why = "what they draft differs, and so how much speculation can help"
        advice = "give them the same ngram"
        yield Finding(level="warning", what="n-gram draft", who=drafting, why=why, advice=advice, read_back="draft")


def _arguments(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for method in methods for name in method.engine_args):
        who = {m.name: _argument(m, name) for m in methods}
        if not differ(who):
            continue
        known = OF_ARGUMENT.get(name)
        if known:
            told = _TOLD.get(name, "")
            yield Finding(level=known.level, what=f"{known.what} ({name})", who=who, why=known.why, read_back=told)
        elif not name.startswith("speculative_"):
            yield Finding(level="note", what=f"engine_args {name}", who=who, why="what it does is the engine's affair")


def _argument(method: MethodSpec, name: str) -> str:
    if name not in method.engine_args:
        return OWN_DEFAULT
    value = method.engine_args[name]
    plain = isinstance(value, str | int | float | bool | None)
    return value_text(value) if plain else msgspec.json.encode(value).decode()


def _environment(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    """Values are never shown but those of threads: a variable may hold a secret."""
    for name in dict.fromkeys(name for method in methods for name in method.env_vars):
        values = {m.name: m.env_vars.get(name) for m in methods}
        if len(set(values.values())) > 1:
            yield _variable(name, values)


def _variable(name: str, values: Mapping[str, str | None]) -> Finding:
    what = f"environment variable {name}"
    if name in THREADS:
        who = {method: "not set" if value is None else value for method, value in values.items()}
        why, advice = "one method computes with more threads than another", "set it for all methods, or for none"
        return Finding(level="warning", what=what, who=who, why=why, advice=advice, read_back=_TOLD.get(name, ""))
    who = _hidden(values)
    if name in _CODE:
        why = "other code may stand in front of the engine's own"
        return Finding(level="warning", what=what, who=who, why=why, advice="set it for all methods, or for none")
    return Finding(level="note", what=what, who=who, why="what it does is the engine's affair")


def _hidden(values: Mapping[str, str | None]) -> dict[str, str]:
    """Told apart, not told."""
    known = list(dict.fromkeys(value for value in values.values() if value is not None))
    if len(known) < 2:
        return {method: "not set" if value is None else "set" for method, value in values.items()}
    return {
        method: "not set" if value is None else f"set to value {known.index(value) + 1}"
        for method, value in values.items()
    }


def _workers(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    """Airlock refuses or flags what its own adapters don't honour; it can't look into another program."""
    own = [method.name for method in methods if method.worker]
    if own:
        why = "what it does not honour it must refuse or flag by itself: whether it does is for its author to check"
        yield Finding(level="note", what="worker", who=dict.fromkeys(own, "a program of its own"), why=why)


def _design(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    for name, what, why in _DESIGN:
        who = {m.name: _READ[name](m) for m in methods}
        if differ(who):
            yield Finding(level="note", what=what, who=who, why=why)


def _graphs(method: MethodSpec) -> str:
    if method.compile:
        return f"compiled, {method.compile}"
    if method.eager or method.engine == "hf":
        return "eager"
    return OWN_DEFAULT if method.eager is None else "compiled or captured"


def _batching(method: MethodSpec) -> str:
    return "static" if method.engine == "hf" and not method.continuous_batching else "continuous"


def _speculation(method: MethodSpec) -> str:
    if method.ngram:
        return "ngram"
    named = method.engine_args.get("speculative_algorithm") or _named(method.engine_args.get("speculative_config"))
    return str(named).casefold() if named else "none"


def _named(config: object) -> object:
    return config.get("method", "on") if isinstance(config, Mapping) else config


_READ: Final[dict[str, Callable[[MethodSpec], str]]] = {
    "attention": lambda m: m.attention or OWN_DEFAULT,
    "graphs": _graphs,
    "rocket_bucket": lambda m: value_text(m.rocket_bucket),
    "batching": _batching,
    "speculation": _speculation,
}


def _extras(configs: Sequence[BackendConfig]) -> Iterator[Finding]:
    """What all methods are asked alike, and each pays for in its own way."""
    names = list(dict.fromkeys(config.method.name for config in configs))
    asked = {"logprobs": any(c.logprobs for c in configs), "expert_load": any(c.expert_load for c in configs)}
    for what in [name for name, on in asked.items() if on and len(names) > 1]:
        why = "each engine computes them at its own cost, inside the time that is measured"
        who = dict.fromkeys(names, "asked for")
        yield Finding(level="note", what=what, who=who, why=why, advice="leave it out where speed is compared")
