"""What vLLM says that it runs with, out of its VllmConfig and of its workers' answers, by names that
mean the same for all engines; and where it is not what was asked. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from protocol.records import EngineSettings, LoadTimes
from protocol.specs import BackendConfig
from workers.backends import runtime

Rank = Mapping[str, Any]

LOAD_NOTE = "load: vLLM's own processes tell their times in their log only"
COMPILE_NOTE = "load.compile_s: profiling, making the KV cache and warm-up are in it"
START_NOTE = "load.kv_cache_s, load.warmup_s: vLLM tells of both only together with compilation"
SHARE_NOTE = "settings.memory_share: the size of the KV cache is given, so no share decides it"
WEIGHTS_NOTE = "memory.weights_bytes: on a CPU vLLM packs weights anew, out of sight"
SAMPLER_NOTE = "settings.sampler: this model runner of vLLM has a single one, and no name for it"
SEED_NOTE = "seed: where tokens are sampled vLLM draws them one request after the other, as each has a seed of its own"
#: Of the names that EngineArgs takes for one dtype, those that it does not give back.
DTYPES = {"half": "float16", "float": "float32"}
#: Arguments by which a method decides on graphs and compilation itself.
OWN_GRAPHS = ("compilation_config", "optimization_level")


def settings(engine: Any, ranks: Sequence[Rank]) -> EngineSettings:
    scheduler, cache, parallel = engine.scheduler_config, engine.cache_config, engine.parallel_config
    speculative = engine.speculative_config
    by_share = cache.kv_cache_memory_bytes is None
    return EngineSettings(
        batching="continuous",
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        prefix_caching=bool(cache.enable_prefix_caching),
        cuda_graphs=graphs(engine.compilation_config),
        compile_mode=compile_mode(engine.compilation_config),
        speculation=speculative.method if speculative else "none",
        ngram_min=getattr(speculative, "prompt_lookup_min", None),
        ngram_max=getattr(speculative, "prompt_lookup_max", None),
        draft_tokens=getattr(speculative, "num_speculative_tokens", None),
        kv_cache_dtype=_dtype(engine) if cache.cache_dtype == "auto" else cache.cache_dtype,
        scheduler=runtime.scheduling(scheduler.policy, scheduler.async_scheduling),
        sampler=_joined({rank["sampler"] for rank in ranks} - {None}),
        quantization=engine.model_config.quantization or "none",
        memory_share=cache.gpu_memory_utilization if by_share else None,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
    )


def graphs(compilation: Any) -> str:
    """The mode means nothing where there are no sizes to capture, as on a CPU."""
    return _word(compilation.cudagraph_mode) if compilation.cudagraph_capture_sizes else "none"


def compile_mode(compilation: Any) -> str:
    return _word(compilation.mode)


def _word(member: Any) -> str:
    name = str(getattr(member, "name", member))
    return "none" if name in ("NONE", "None") else name


def _dtype(engine: Any) -> str:
    return str(engine.model_config.dtype).removeprefix("torch.")


def options(engine: Any, rank: Rank, config: BackendConfig) -> dict[str, Any]:
    """What is compared by it and has no name that all engines share."""
    compilation = engine.compilation_config
    return {
        "block_size": engine.cache_config.block_size,
        "executor": str(engine.parallel_config.distributed_executor_backend),
        "model_runner": rank["model_runner"],
        "logprobs_mode": engine.model_config.logprobs_mode,
        "buckets": {"captured": list(compilation.cudagraph_capture_sizes)} if config.method.rocket_bucket else None,
    }


def flags(engine: Any, ranks: Sequence[Rank], ours: Mapping[str, Any], config: BackendConfig) -> list[str]:
    """For each thing that runs otherwise than it was told.

    ours  the arguments that are not the method's own
    """
    told = {**ours, **config.method.engine_args}
    asked, found = {**_asked(told, config), **_asked_graphs(told, config)}, _found(engine, ranks, told)
    scheduler = engine.scheduler_config
    asked["scheduler"], found["scheduler"] = runtime.combined(
        (told.get("scheduling_policy"), scheduler.policy),
        (told.get("async_scheduling"), scheduler.async_scheduling),
    )
    return runtime.not_honoured(asked, found) + runtime.overridden(ours, config.method.engine_args)


def _asked(told: Mapping[str, Any], config: BackendConfig) -> dict[str, Any]:
    speculation = told.get("speculative_config")
    return {
        "attention": told.get("attention_backend"),
        "dtype": DTYPES.get(told["dtype"], told["dtype"]),
        "max_model_len": told.get("max_model_len"),
        "max_num_seqs": told.get("max_num_seqs"),
        "max_num_batched_tokens": told.get("max_num_batched_tokens"),
        "chunked_prefill": told.get("enable_chunked_prefill", True),  # as it comes; some models switch it off
        "prefix_caching": told["enable_prefix_caching"],
        "kv_cache_bytes": told.get("kv_cache_memory_bytes"),
        "kv_cache_dtype": told.get("kv_cache_dtype"),
        "ngram": [speculation[key] for key in sorted(speculation)] if speculation and config.method.ngram else None,
    }


def _asked_graphs(told: Mapping[str, Any], config: BackendConfig) -> dict[str, Any]:
    if any(name in config.method.engine_args for name in OWN_GRAPHS):
        return {}
    eager = bool(told.get("enforce_eager"))
    sizes = told.get("compilation_config", {}).get("cudagraph_capture_sizes")
    return {"eager": eager, "cuda_graphs": not eager if config.device == "cuda" else None, "rocket_bucket": sizes}


def _found(engine: Any, ranks: Sequence[Rank], told: Mapping[str, Any]) -> dict[str, Any]:
    scheduler, speculative = engine.scheduler_config, engine.speculative_config
    given = told.get("speculative_config") or {}
    return {
        "attention": attention(ranks),
        "dtype": _dtype(engine),
        "max_model_len": int(engine.model_config.max_model_len),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": bool(scheduler.enable_chunked_prefill),
        "prefix_caching": bool(engine.cache_config.enable_prefix_caching),
        "kv_cache_bytes": kv_bytes_honoured(ranks, engine.cache_config.num_gpu_blocks, told),
        "kv_cache_dtype": runtime.as_asked(engine.cache_config.cache_dtype, told.get("kv_cache_dtype")),
        "ngram": [getattr(speculative, key, None) for key in sorted(given)],
        "eager": compile_mode(engine.compilation_config) == "none",
        "cuda_graphs": graphs(engine.compilation_config) != "none",
        "rocket_bucket": list(engine.compilation_config.cudagraph_capture_sizes or ()),
    }


def attention(ranks: Sequence[Rank]) -> str | None:
    return _joined({name for rank in ranks for name in rank["attention"]})


def _joined(names: Iterable[str]) -> str | None:
    return ",".join(sorted(names)) or None


def kv_bytes_honoured(ranks: Sequence[Rank], blocks: int | None, told: Mapping[str, Any]) -> int | None:
    """What was asked for, if the fullest rank has as many whole blocks as fit into it; else that rank's size."""
    sizes, asked = [rank["kv_cache_bytes"] for rank in ranks], told.get("kv_cache_memory_bytes")
    if None in sizes or asked is None or not blocks:
        return None
    most = int(max(sizes))
    return int(asked) if most <= asked < most + most // blocks else most


def kv_cache_tokens(cache: Any) -> int | None:
    """vLLM's own figure, which knows of layers that share blocks; else the plain product."""
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None and cache.num_gpu_blocks:
        tokens = cache.num_gpu_blocks * cache.block_size
    return int(tokens) if tokens else None


def load_times(weights_s: float | None, start_s: float | None, ranks: Sequence[Rank], compiled: bool) -> LoadTimes:
    """vLLM's one figure for profiling, KV cache and warm-up is the compiler's too, where that has none of its own."""
    own = [rank["compile_s"] for rank in ranks if rank["compile_s"]]
    if own:
        return LoadTimes(weights_s=weights_s, compile_s=max(own))
    if compiled:
        return LoadTimes(weights_s=weights_s, compile_s=start_s)
    return LoadTimes(weights_s=weights_s, kv_cache_s=start_s)


def notes(engine: Any, ranks: Sequence[Rank], load: LoadTimes, config: BackendConfig) -> Iterator[str]:
    """Why a figure is missing, or what it means."""
    if load.weights_s is None:
        yield LOAD_NOTE
    elif load.compile_s is not None:
        yield START_NOTE if any(rank["compile_s"] for rank in ranks) else COMPILE_NOTE
    if engine.cache_config.kv_cache_memory_bytes is not None:
        yield SHARE_NOTE
    if config.device == "cpu":
        yield WEIGHTS_NOTE
    yield SEED_NOTE
    if all(rank["sampler"] is None for rank in ranks):
        yield SAMPLER_NOTE
