"""Why a figure of a row is not known: by what its method is and does, where that decides it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from orchestrator.record.output import FLAG_NO_WARMUP
from orchestrator.view.burden import PARTS
from orchestrator.view.hardware import Hardware
from orchestrator.view.host import LEAST_S, Host
from orchestrator.view.summary import Row

Reasons = Mapping[str, str]

NO_TIME: Final = "no batch was measured"
SCORES: Final = "the task is to score: nothing is generated"
NO_WORKER: Final = "no worker was loaded"
UNTOLD: Final = "the engine does not tell"
#: The adapter of Transformers is ours, so what it does not do is known and nothing that it keeps to itself.
_HF: Final = "hf"
_ON_CPU: Final = "no GPU is used"
_OWN_CACHE: Final = "each batch makes a KV cache of its own"
_NOT_KEPT: Final = "no compiled artefacts are kept for this method: all its loads are alike"
_TIMES: Final = {
    "ttft": "no record tells when its first token came",
    "itl": "no record tells when each of its tokens came",
    "tpot": "no record of two tokens or more tells when its first and last came",
    "latency": "no record tells when its last token came",
}


def time(name: str, row: Row) -> str:
    """`name`: of one of the times of a prompt, that no record has."""
    if not row.outputs_ok:
        return "no prompt has an output"
    return SCORES if row.scores else _TIMES[name]


def load(row: Row) -> Reasons:
    if not row.load.workers:
        names = [f"load_{name}" for name in (*PARTS, "cold_s", "warm_s")]
        return dict.fromkeys(names, NO_WORKER)
    kept = row.load.cold_s is not None or row.load.warm_s is not None
    return {
        "load_import_s": "none of its workers measured it",
        "load_tokenizer_s": _inside(),
        "load_weights_s": _inside(),
        "load_kv_cache_s": _kv_cache(row),
        "load_compile_s": _compile(row),
        "load_warmup_s": _warmup(row),
        "load_cold_s": "all workers were lent artefacts of an earlier one" if kept else _NOT_KEPT,
        "load_warm_s": "no worker was lent compiled artefacts of an earlier one" if kept else _NOT_KEPT,
    }


def warmup_batch(row: Row) -> str:
    if not row.warmed:
        return "warm-up batches are off (warmup: 0)"
    if row.load.warmups_lost or row.flags[FLAG_NO_WARMUP]:
        return "all its warm-up batches failed"
    return "no warm-up batch was run" if row.load.workers else NO_WORKER


def _inside(part: str = "total_s") -> str:
    return f"{UNTOLD}; it is inside load_{part}"


def _kv_cache(row: Row) -> str:
    method = row.config.method
    if method.engine != _HF:
        return _inside("compile_s" if row.load.parts["compile_s"] is not None else "total_s")
    return "it is inside load_warmup_s" if method.continuous_batching or method.rocket_bucket else _OWN_CACHE


def _compile(row: Row) -> str:
    method = row.config.method
    late = method.compile and not method.rocket_bucket
    if method.engine == _HF and (late or method.attention == "flex_attention"):
        return "what is compiled is compiled in the first batches, not in the load"
    if row.load.compiles is False:
        return "nothing is compiled, and no graphs are captured"
    return _inside()


def _warmup(row: Row) -> str:
    """vLLM, and Transformers with a paged cache, tell it together with what they do beside it."""
    engine, parts = row.config.method.engine, row.load.parts
    within = next((name for name in ("compile_s", "kv_cache_s") if parts[name] is not None), "total_s")
    if engine == _HF and within == "total_s":
        return "Transformers runs no passes of its own before it is ready"
    return _inside(within if engine in (_HF, "vllm") else "total_s")


def memory(row: Row) -> Reasons:
    cpu, loaded, method = row.config.device == "cpu", bool(row.load.workers), row.config.method
    untold = UNTOLD if loaded else NO_WORKER
    unread = "nothing was read, from outside or inside" if loaded else NO_WORKER
    allocator = "the engine's allocator does not tell" if loaded else NO_WORKER
    own = method.engine == _HF and not method.continuous_batching and not method.rocket_bucket
    return {
        "peak_bytes": unread,
        "device_peak_bytes": _ON_CPU if cpu else unread,
        "host_peak_bytes": "the worker does not tell" if loaded else NO_WORKER,
        "device_peak_allocated_bytes": _ON_CPU if cpu else allocator,
        "weights_bytes": untold,
        "graphs_bytes": "there are no CUDA graphs on a CPU" if cpu else untold,
        "kv_cache_bytes": _OWN_CACHE if own else untold,
        "fragmentation": _ON_CPU if cpu else allocator,
    }


def counters(row: Row) -> Reasons:
    method, config = row.config.method, row.config
    speculates = method.ngram is not None or any(name.startswith("speculative") for name in method.engine_args)
    draft = "the engine does not count drafts" if speculates else "the method does not speculate"
    untold = UNTOLD if row.load.workers else NO_WORKER
    graphs = "nothing is compiled" if row.load.compiles is False else untold
    buckets = "no batch was padded to a bucket" if method.rocket_bucket else "the method has no rocket buckets"
    static = method.engine == _HF and not method.continuous_batching
    return {
        "steps": untold,
        **dict.fromkeys(
            ("drafts", "draft_tokens", "accepted_tokens", "draft_acceptance", "mean_accepted_tokens"), draft
        ),
        "cached_tokens": untold if config.prefix_caching else "prefix caching is off",
        "num_preemptions": "nothing is preempted in a static batch" if static else untold,
        "unique_graphs": graphs,
        "recompiles": graphs,
        "bucket_fill": buckets,
        "buckets": buckets,
        "expert_tokens": "the engine does not tell, or the model is no mixture of experts"
        if config.expert_load
        else "not asked for (expert_load)",
    }


def hardware(row: Row) -> Reasons:
    names = [one.name for one in fields(Hardware)]
    why = _ON_CPU if row.config.device == "cpu" else "NVML does not tell"
    return dict.fromkeys(names, why) | ({"energy_token_j": SCORES} if row.scores else {})


def host(row: Row) -> Reasons:
    why = NO_TIME if not row.speed.total else "Linux does not tell, or did not for all batches"
    if row.host.short:
        why = f"its batches took less than {LEAST_S} s in all: too short to tell"
    return dict.fromkeys((one.name for one in fields(Host)), why)


def returned(row: Row) -> Reasons:
    """A worker that ended before it was ready is of its method, and of none of its rows."""
    whys = {
        True: "the teardown of its workers is not in the journal",
        False: f"{NO_WORKER}; any that was started is under Teardown",
    }
    why = whys[row.load.workers > 0]
    if row.returned.ok is not None:
        why = "its memory could not be read"
    return dict.fromkeys(("returned", "returned_bytes", "returned_wait_s"), why)
