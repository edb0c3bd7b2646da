"""What SGLang says that it runs with, out of its get_server_info, by names that mean the same for all engines.

Most of that map are its arguments, as this process resolved them; internal_states holds one map for each data-parallel
scheduler, told by its first rank: the arguments as these run with them, and what they found while they ran. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from protocol.records import EngineSettings, LoadTimes, MemoryUse
from protocol.specs import BackendConfig
from workers.backends import runtime
from workers.backends.sglang_args import NGRAM, is_ngram

Info = Mapping[str, Any]

GIB = 1 << 30
#: SGLang rounds its memory figures to as many GiB.
ROUNDED_GIB = 0.001
DISABLED = "disabled"

SEED_NOTE = "seed: SGLang does not reproduce a per-request seed"
THREADS_NOTE = "threads: SGLang's scheduler process does not tell"
ITL_NOTE = "itl: SGLang tells no time of a token but the first and the last; streaming would, and slows it down"
DEVICE_MEMORY_NOTE = "memory: device figures are inside SGLang's scheduler process"
WEIGHTS_NOTE = "memory.weights_bytes: SGLang tells of one rank on a device of its own only"
KV_BYTES_NOTE = "kv_cache_bytes: SGLang tells of its first stage only, and rounds to 1/1000 GiB"
KV_ROUNDED_NOTE = "kv_cache_bytes: SGLang's own figure, rounded to 1/1000 GiB"
LENGTH_NOTE = "max_model_len: SGLang serves a few tokens less than its context or its KV cache holds"
NGRAM_NOTE = "ngram_min, ngram_max: SGLang drafts a tree, from a trie over all requests, which has no such bounds"

#: Told as they are, for what is compared by them and has no name that all engines share.
OPTIONS = (
    "page_size",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "mem_fraction_static",
    "random_seed",
    "moe_runner_backend",
)


def resolved(info: Info) -> Info:
    """With the scheduler's word in place of this process's, wherever it has one."""
    return {**info, **state(info), "startup_time": info.get("startup_time")}


def state(info: Info) -> Info:
    found: Info = (info.get("internal_states") or [{}])[0]
    return found


def settings(info: Info, dtype: str, config: BackendConfig) -> EngineSettings:
    """`dtype` is that of the loaded model."""
    chunk, drafts = int(info.get("chunked_prefill_size") or 0), info.get("speculative_num_draft_tokens")
    speculates = info.get("speculative_algorithm")
    return EngineSettings(
        batching="continuous",
        max_num_seqs=_max_num_seqs(info),
        max_num_batched_tokens=chunk if chunk > 0 else info.get("max_prefill_tokens"),
        chunked_prefill=chunk > 0,
        prefix_caching=not info.get("disable_radix_cache"),
        cuda_graphs=graphs(info),
        compile_mode="torch.compile" if info.get("enable_torch_compile") else "none",
        speculation=str(speculates).lower() if speculates else "none",
        # The root of a draft is the token that is there already.
        draft_tokens=int(drafts) - 1 if speculates and drafts else None,
        scheduler=runtime.scheduling(info.get("schedule_policy"), not info.get("disable_overlap_schedule")),
        sampler=info.get("sampling_backend"),
        kv_cache_dtype=dtype if info.get("kv_cache_dtype") == "auto" else info.get("kv_cache_dtype"),
        quantization=info.get("quantization") or "none",
        # On a CPU the size of the KV cache is given, and the share that SGLang works out does nothing.
        memory_share=info.get("mem_fraction_static") if config.device == "cuda" else None,
        tensor_parallel_size=info.get("tp_size"),
        pipeline_parallel_size=info.get("pp_size"),
    )


def _max_num_seqs(info: Info) -> int | None:
    told = state(info).get("effective_max_running_requests_per_dp", info.get("max_running_requests"))
    return None if told is None else int(told)


def graphs(info: Info) -> str:
    """What is captured in the end, e.g. "decode full, prefill breakable". The argument
    disable_cuda_graph is only what was asked: an attention backend may rule graphs out."""
    found = [(phase, _phase(info, phase, "backend")) for phase in ("decode", "prefill")]
    captured = [f"{phase} {backend}" for phase, backend in found if backend not in (None, DISABLED)]
    return ", ".join(captured) or "none"


def _phase(info: Info, phase: str, name: str) -> Any:
    config = info.get("cuda_graph_config")
    found = config.get(phase) if isinstance(config, Mapping) else getattr(config, phase, None)
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)


def captured_batches(info: Info) -> list[int]:
    """Batch sizes for which decoding has a CUDA graph."""
    return sorted(int(size) for size in state(info).get("decode_cuda_graph_bs") or ())


def attention(info: Info) -> str | None:
    """One name, or both where prefill and decode differ. Of what SGLang was told too."""
    common = info.get("attention_backend")
    parts = [info.get(f"{phase}_attention_backend") or common for phase in ("prefill", "decode")]
    return ",".join(dict.fromkeys(part for part in parts if part)) or None


def options(info: Info, config: BackendConfig) -> dict[str, Any]:
    names = (*OPTIONS, *NGRAM) if is_ngram(info) else OPTIONS
    return {
        **{name: info.get(name) for name in names},
        "max_running_requests": _max_num_seqs(info),
        "cuda_graph_decode": _phase(info, "decode", "backend"),
        "buckets": {"captured": captured_batches(info)} if config.method.rocket_bucket else None,
    }


def flags(info: Info, told: Mapping[str, Any], dtype: str, served: int | None, config: BackendConfig) -> list[str]:
    """For each thing that runs otherwise than it was told.

    told    the arguments that it was given, the method's own included
    dtype   of the loaded model
    served  tokens of prompt and output that one request may have
    """
    no_graphs, buckets = told.get("disable_cuda_graph"), told.get("cuda_graph_bs_decode")
    page, kv_tokens = int(info.get("page_size") or 1), told.get("max_total_tokens")
    # It is rounded down to whole pages.
    fewer = kv_tokens is not None and int(info["max_total_num_tokens"]) <= kv_tokens - page
    asked = {
        "dtype": told.get("dtype"),
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": told.get("chunked_prefill_size"),
        "cuda_graphs": None if no_graphs is None else not no_graphs,
        "rocket_bucket": sorted(buckets) if buckets else None,
        "kv_cache_bytes": kv_tokens,
        "prefix_caching": not told["disable_radix_cache"],
        "attention": attention(told),
        "chunked_prefill": int(told.get("chunked_prefill_size") or 1) > 0,  # as it comes; some models switch it off
        "kv_cache_dtype": told.get("kv_cache_dtype"),
        "sampler": told.get("sampling_backend"),
    }
    found = {
        "dtype": dtype,
        "max_model_len": served,
        "max_num_batched_tokens": info.get("chunked_prefill_size"),
        "cuda_graphs": graphs(info) != "none",
        "rocket_bucket": captured_batches(info),
        "kv_cache_bytes": info["max_total_num_tokens"] if fewer else kv_tokens,
        "prefix_caching": not info.get("disable_radix_cache"),
        "attention": attention(info),
        "chunked_prefill": int(info.get("chunked_prefill_size") or 0) > 0,
        "kv_cache_dtype": runtime.as_asked(info.get("kv_cache_dtype"), told.get("kv_cache_dtype")),
        "sampler": info.get("sampling_backend"),
    }
    overlap, overlaps = told.get("disable_overlap_schedule"), info.get("disable_overlap_schedule")
    asked["scheduler"], found["scheduler"] = runtime.combined(
        (told.get("schedule_policy"), info.get("schedule_policy")), (overlap, overlaps)
    )
    return runtime.not_honoured(asked, found)


def load_times(info: Info, tokenizer_s: float) -> LoadTimes:
    """SGLang's own figures; starting its processes is in none of them."""
    took = info.get("startup_time") or {}
    captures = [value for value in (took.get("cuda_graph") or {}).values() if value]
    return LoadTimes(
        tokenizer_s=tokenizer_s,
        weights_s=took.get("load_weight"),
        kv_cache_s=took.get("kv_cache_allocation"),
        compile_s=sum(captures) if captures else None,
    )


def kv_cache_bytes(info: Info) -> int | None:
    """On all devices. Ranks of one stage hold equal shares; of other stages the first rank does not tell."""
    one = _memory_bytes(info, "kvcache")
    return None if one is None or _stages(info) > 1 else one * int(info.get("tp_size") or 1)


def memory(info: Info, config: BackendConfig) -> MemoryUse:
    """Of a single rank on a device: what SGLang calls weights is how much less of the memory is free after
    loading them, which on a CPU is the whole machine's."""
    if config.device != "cuda" or _ranks(info) > 1:
        return MemoryUse()
    return MemoryUse(weights_bytes=_memory_bytes(info, "weight"), graphs_bytes=_memory_bytes(info, "graph"))


def _memory_bytes(info: Info, part: Literal["weight", "kvcache", "graph"]) -> int | None:
    """Of the first rank; None for what SGLang rounds to nothing."""
    used = (state(info).get("memory_usage") or {}).get(part)
    gib = sum(used.values()) if isinstance(used, Mapping) else used
    return int(gib * GIB) if gib and gib >= ROUNDED_GIB else None


def _ranks(info: Info) -> int:
    return int(info.get("tp_size") or 1) * _stages(info)


def _stages(info: Info) -> int:
    return int(info.get("pp_size") or 1)


def notes(info: Info, served: int, config: BackendConfig) -> Iterator[str]:
    """Why a figure is missing, or what it means."""
    yield SEED_NOTE
    yield THREADS_NOTE
    yield ITL_NOTE
    if config.device == "cuda":
        yield DEVICE_MEMORY_NOTE
    if config.device != "cuda" or _ranks(info) > 1:
        yield WEIGHTS_NOTE
    yield KV_BYTES_NOTE if kv_cache_bytes(info) is None else KV_ROUNDED_NOTE
    if served < (config.max_model_len or 0):
        yield LENGTH_NOTE
    if is_ngram(info):
        yield NGRAM_NOTE
