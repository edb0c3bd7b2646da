"""What vLLM is told: the arguments of LLM and of SamplingParams, and the environment that it is built in."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from protocol.buckets import batch_sizes
from protocol.specs import MAX_LOGPROBS, BackendConfig, CallParams
from workers.backends import vllm_probe
from workers.backends.cpus import shares
from workers.backends.model_folder import dtype_of, has_two_formats

MULTIPROCESSING, TITLE = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_PROCESS_NAME_PREFIX"
SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"
THREADS_BIND = "VLLM_CPU_OMP_THREADS_BIND"
#: Left to itself vLLM reads Mistral's own format where both are there, and no other engine does.
HF_FILES = {"config_format": "hf", "load_format": "hf"}
#: Whole graphs for steps that only decode, graphs between the attention calls for the others.
BUCKET_GRAPHS = "FULL_AND_PIECEWISE"


def in_process(config: BackendConfig) -> bool:
    return config.ranks == 1


def engine_args(config: BackendConfig) -> dict[str, Any]:
    """LLM's arguments, without the method's own. A value left to vLLM is left out."""
    method = config.method
    chosen = {
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "kv_cache_memory_bytes": config.kv_cache_bytes,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "attention_backend": method.attention,
        "enforce_eager": method.eager,
        "speculative_config": _speculation(config),
    }
    return {
        "model": config.model_path,
        "tokenizer": config.model_path,
        "skip_tokenizer_init": True,
        "trust_remote_code": config.trust_remote_code,
        "dtype": dtype_of(config),
        # No sampling default out of the model's folder.
        "generation_config": "vllm",
        "enable_prefix_caching": config.prefix_caching,
        "disable_log_stats": False,  # without them a result carries no times
        # Of the model's own distribution, before temperature and top-p.
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": MAX_LOGPROBS,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "worker_extension_cls": vllm_probe.DOTTED_NAME,
        **{name: value for name, value in chosen.items() if value is not None},
        **(HF_FILES if has_two_formats(config.model_path) else {}),
        **_buckets(config),
    }


def _speculation(config: BackendConfig) -> dict[str, Any] | None:
    ngram = config.method.ngram
    if ngram is None:
        return None
    return {
        "method": "ngram",
        "num_speculative_tokens": ngram.draft_tokens,
        "prompt_lookup_min": ngram.min_n,
        "prompt_lookup_max": ngram.max_n,
    }


def _buckets(config: BackendConfig) -> dict[str, Any]:
    """vLLM pads a step up to the next of its capture sizes, counted in tokens: with
    speculation each sequence brings its draft along."""
    if not config.method.rocket_bucket:
        return {}
    sequences = batch_sizes(config)
    step = 1 + (config.method.ngram.draft_tokens if config.method.ngram else 0)
    sizes = [step * count for count in sequences]
    return {
        "max_num_seqs": sequences[-1],
        "compilation_config": {
            "cudagraph_mode": BUCKET_GRAPHS,
            "cudagraph_capture_sizes": sizes,
            "max_cudagraph_capture_size": sizes[-1],
        },
    }


def sampling_params(call: CallParams) -> Any:
    """vLLM's SamplingParams, with nothing left to a default that could differ between engines."""
    from vllm import SamplingParams

    return SamplingParams(**(_scoring(call) if call.task == "score" else _sampling(call)))


def _sampling(call: CallParams) -> dict[str, Any]:
    sampled = call.temperature > 0
    told = {"logprobs": call.logprobs, "flat_logprobs": True} if call.logprobs else {}
    return {
        "max_tokens": call.max_new_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p if sampled else 1.0,
        "top_k": 0,
        "seed": call.seed if sampled else None,
        # Its EOS handling adds the ids of the model's folder to ours; explicit stop ids work without it.
        "ignore_eos": True,
        "stop_token_ids": [] if call.ignore_eos else list(call.stop_token_ids),
        "detokenize": False,
        **told,
    }


def _scoring(call: CallParams) -> dict[str, Any]:
    """vLLM makes a token in any case; it is thrown away. With k = 0 it tells the prompt's own tokens alone."""
    told = {"prompt_logprobs": call.logprobs, "flat_logprobs": True}
    return {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "detokenize": False, **told}


def set_environment(config: BackendConfig) -> None:
    """vLLM reads these when it builds the engine, not when it is imported."""
    os.environ.setdefault(MULTIPROCESSING, "0" if in_process(config) else "1")
    os.environ.setdefault(SOCKET_FOLDER, short_path(tempfile.gettempdir()))
    if config.device == "cpu":
        # Loading its cache fails there ("has no attribute 'finalize_loading'") and costs half a minute each time.
        os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
    if config.device == "cpu" and not in_process(config):
        os.environ.setdefault(THREADS_BIND, shares(os.sched_getaffinity(0), config.ranks))


def short_path(folder: str) -> str:
    """The shorter one of the absolute and the relative path, which all of vLLM's processes start at: a
    socket's path holds 107 bytes, and vLLM makes names of 36 out of it."""
    return min(folder, os.path.relpath(folder), key=len)
