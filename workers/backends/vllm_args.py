"""What vLLM is told: the arguments of LLM and of SamplingParams."""

from __future__ import annotations

from typing import Any

from protocol.specs import BackendConfig, CallParams
from workers.backends import vllm_probe
from workers.backends.model_folder import dtype_of


def in_process(config: BackendConfig) -> bool:
    return config.tensor_parallel_size * config.pipeline_parallel_size == 1


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
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "worker_extension_cls": vllm_probe.DOTTED_NAME,
        **{name: value for name, value in chosen.items() if value is not None},
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


def sampling_params(call: CallParams) -> Any:
    """vLLM's SamplingParams, with nothing left to a default that could differ between engines."""
    from vllm import SamplingParams

    sampled = call.temperature > 0
    return SamplingParams(
        max_tokens=call.max_new_tokens,
        temperature=call.temperature,
        top_p=call.top_p if sampled else 1.0,
        top_k=0,
        seed=call.seed if sampled else None,
        # Its EOS handling adds the ids of the model's folder to ours; explicit stop ids work without it.
        ignore_eos=True,
        stop_token_ids=[] if call.ignore_eos else list(call.stop_token_ids),
        detokenize=False,
    )
