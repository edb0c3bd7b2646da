"""After a run: what was asked of each worker against what its engine says that it ran with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.judge.arguments import ARGUMENTS
from orchestrator.judge.findings import Finding, Level, value_text
from protocol.records import RuntimeMetadata
from protocol.specs import BackendConfig

#: The flags that an engine's adapter sets where it finds out by itself.
NOT_HONOURED, OVERRIDE = "_not_honoured", "engine_args_override:"
RECOMPILE_LIMIT = "recompile_limit"
#: KV caches are handed out in blocks, and a size in bytes comes to whole ones.
KV_TOLERANCE: Final = 0.05


@dataclass(frozen=True)
class Ran:
    """One worker that became ready, and the points that it served.

    config       the load-time fields that it was given; the largest batch_size and max_new_tokens of its points
    fingerprint  of its environment
    sampled      one of its points has a temperature
    """

    incarnation: str
    config: BackendConfig
    metadata: RuntimeMetadata
    points: tuple[str, ...] = ()
    fingerprint: str = ""
    sampled: bool = False

    @property
    def method(self) -> str:
        return self.config.method.name


#: Asked for, by whatever name.
_ANY: Final = "some"


@dataclass(frozen=True)
class _Check:
    """Asked and found, None where nothing was asked or nothing is told; and what to make of a difference."""

    what: str
    asked: Callable[[Ran], Any]
    found: Callable[[Ran], Any]
    why: str
    differs: Callable[[Any, Any], bool] = lambda asked, found: bool(asked != found)


def _lower(asked: Any, found: Any) -> bool:
    return bool(found < asked)


def _much_lower(asked: Any, found: Any) -> bool:
    return bool(found < asked * (1 - KV_TOLERANCE))


_CHECKS: Final = (
    _Check(
        "dtype",
        lambda r: None if r.config.dtype == "auto" else r.config.dtype,
        lambda r: r.metadata.dtype,
        "numbers of another format: another speed, and other outputs",
    ),
    _Check(
        "max length",
        lambda r: r.config.max_model_len,
        lambda r: r.metadata.max_model_len,
        "it is lower than asked: longer prompts or answers are cut short or refused",
        _lower,
    ),
    _Check(
        "KV cache bytes",
        lambda r: r.config.kv_cache_bytes,
        lambda r: r.metadata.kv_cache_bytes,
        "with a smaller cache fewer sequences run at once, or some are computed twice",
        _much_lower,
    ),
    _Check(
        "sequences at once",
        lambda r: r.config.batch_size,
        lambda r: r.metadata.settings.max_num_seqs,
        "a batch is larger than what the engine takes at once: part of it waits for the rest",
        _lower,
    ),
    _Check(
        "tokens per step",
        lambda r: r.config.max_num_batched_tokens,
        lambda r: r.metadata.settings.max_num_batched_tokens,
        "prefill is cut into other pieces than asked",
    ),
    _Check(
        "prefix caching",
        lambda r: r.config.prefix_caching,
        lambda r: r.metadata.settings.prefix_caching,
        "prompts that were seen before cost less, or more, than asked",
    ),
    _Check(
        "CUDA graphs",
        lambda r: "none" if r.config.method.eager else _ANY if _wants_graphs(r.config) else None,
        lambda r: r.metadata.settings.cuda_graphs,
        "launch overhead is another than the method's name says",
        lambda asked, found: (asked == "none") != (found == "none"),
    ),
    _Check(
        "compilation",
        lambda r: "none" if r.config.method.eager else r.config.compile_mode,
        lambda r: r.metadata.settings.compile_mode,
        "it runs other kernels than the method's name says",
    ),
    _Check(
        "compiled",
        lambda r: True if r.config.method.compile else False if r.config.method.eager else None,
        lambda r: r.metadata.compiled,
        "it runs other kernels than the method's name says",
    ),
    _Check(
        "speculation",
        lambda r: "ngram" if r.config.method.ngram else None,
        lambda r: r.metadata.settings.speculation,
        "the method is said to speculate",
    ),
    _Check(
        "n-gram draft",
        lambda r: n and (n.min_n, n.max_n, n.draft_tokens) if (n := r.config.method.ngram) else None,
        lambda r: together(
            r.metadata.settings.ngram_min, r.metadata.settings.ngram_max, r.metadata.settings.draft_tokens
        ),
        "another draft than asked",
    ),
    _Check(
        "batching",
        lambda r: "continuous" if r.config.method.continuous_batching else None,
        lambda r: r.metadata.settings.batching,
        "a static batch ends with its longest row",
    ),
    _Check(
        "tensor parallel size",
        lambda r: r.config.tensor_parallel_size,
        lambda r: r.metadata.settings.tensor_parallel_size,
        "it runs on another number of devices",
    ),
    _Check(
        "pipeline parallel size",
        lambda r: r.config.pipeline_parallel_size,
        lambda r: r.metadata.settings.pipeline_parallel_size,
        "it runs on another number of devices",
    ),
    _Check(
        "memory share",
        lambda r: _asked_share(r.config),
        lambda r: r.metadata.settings.memory_share,
        "the engine takes another share of the device than asked",
        lambda asked, found: abs(asked - found) > 0.005,
    ),
    _Check(
        "chunked prefill",
        lambda r: r.config.method.engine_args.get("enable_chunked_prefill"),
        lambda r: r.metadata.settings.chunked_prefill,
        "prefill does not share its steps with decode as asked",
    ),
    _Check(
        "stop ids",
        lambda r: sorted(r.config.stop_token_ids),
        lambda r: None if r.metadata.stop_token_ids is None else sorted(r.metadata.stop_token_ids),
        "outputs end elsewhere",
    ),
)

#: Engine arguments whose change of what Airlock set makes figures incomparable.
_GRAVE: Final = frozenset(name for one in ARGUMENTS if one.level == "warning" for name in one.names)


def _wants_graphs(config: BackendConfig) -> bool:
    return config.method.eager is False and config.device == "cuda" and config.method.engine != "hf"


def together(*values: Any) -> tuple[Any, ...] | None:
    """None where one of them is not told."""
    return None if None in values else values


def _asked_share(config: BackendConfig) -> float | None:
    if config.device != "cuda":
        return None
    shares = {"vllm": config.gpu_memory_utilization, "sglang": config.sglang_mem_fraction_static}
    return shares.get(config.method.engine)


def deviations(ran: Sequence[Ran]) -> Iterator[Finding]:
    """One finding for each worker and thing that is not as asked."""
    for worker in ran:
        found = list(_deviations(worker))
        yield from found
        yield from _flags(worker, {one.what for one in found})


def _deviations(ran: Ran) -> Iterator[Finding]:
    for check in _CHECKS:
        asked, found = check.asked(ran), check.found(ran)
        if asked is None or found is None or not check.differs(asked, found):
            continue
        value = f"asked {value_text(asked)}, ran {value_text(found)}"
        yield _finding(ran, "warning", check.what, value, check.why)


def _flags(ran: Ran, told: Collection[str]) -> Iterator[Finding]:
    """What the adapter found out by itself, `told` left out: there both values are told already."""
    for flag in ran.metadata.flags:
        if flag.endswith(NOT_HONOURED):
            yield from _not_honoured(ran, flag.removesuffix(NOT_HONOURED), told)
        elif flag.startswith(OVERRIDE):
            name = flag.removeprefix(OVERRIDE)
            level: Level = "warning" if name.partition(".")[0] in _GRAVE else "note"
            why = "the method's engine_args replace what Airlock sets for all"
            yield _finding(ran, level, f"engine_args {name}", "of its own", why)
        elif flag == RECOMPILE_LIMIT:
            yield _finding(ran, "warning", "compilation", "given up at the recompile limit", "the rest ran uncompiled")


def _not_honoured(ran: Ran, name: str, told: Collection[str]) -> Iterator[Finding]:
    what = _CALLED.get(name, name.replace("_", " "))
    if what in told or (name == "seed" and not ran.sampled):
        return
    known = {"attention": (ran.config.method.attention, ran.metadata.attention_backend)}
    asked, found = known.get(name, (None, getattr(ran.metadata.settings, name, None)))
    parts = (f"asked {asked}" if asked else "not as asked", "" if found is None else f"ran {value_text(found)}")
    yield _finding(ran, "warning", what, ", ".join(filter(None, parts)), "the engine does not do what was asked")


#: Names of flags, as they are called above.
_CALLED: Final = {
    "max_model_len": "max length",
    "kv_cache_bytes": "KV cache bytes",
    "max_num_seqs": "sequences at once",
    "max_num_batched_tokens": "tokens per step",
    "cuda_graphs": "CUDA graphs",
    "compile_mode": "compilation",
    "ngram": "n-gram draft",
    "kv_cache_dtype": "KV cache dtype",
    "eos": "end of sequence",
}


def _finding(ran: Ran, level: Level, what: str, value: str, why: str) -> Finding:
    return Finding(level=level, what=what, who={ran.method: value}, why=why, points=ran.points)
