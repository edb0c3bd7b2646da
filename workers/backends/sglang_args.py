"""What SGLang is told, and what its answers look like."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.buckets import batch_sizes
from protocol.specs import BackendConfig, CallParams, PromptBatch
from workers.backends.cpus import shares
from workers.backends.model_folder import context_length, dtype_of, kv_bytes_per_token, read_config

#: SGLang cuts new tokens to context - 2 - prompt without a word, and refuses prompts from context - 6 on.
LENGTH_MARGIN_TOKENS = 7
THREADS_OF_RANKS = "SGLANG_CPU_OMP_THREADS_BIND"
#: How SGLang drafts out of n-grams, by its own defaults. A tree, from a trie over all requests so far:
#: nothing in it is a shortest or longest n-gram. The root counts as a draft token.
NGRAM: Mapping[str, Any] = {
    "speculative_num_draft_tokens": 12,
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 10,
    "speculative_ngram_max_trie_depth": 18,
    "speculative_ngram_match_type": "BFS",
    "speculative_ngram_capacity": 10_000_000,
}


def engine_args(config: BackendConfig, on_child_failure: Callable[..., None]) -> dict[str, Any]:
    """Engine's arguments, without the method's own. A value left to SGLang is left out."""
    method, cuda = config.method, config.device == "cuda"
    chosen = {
        "context_length": asked_context(config),
        "chunked_prefill_size": config.max_num_batched_tokens,
        "max_prefill_tokens": config.max_num_batched_tokens,
        "max_total_tokens": _max_total_tokens(config),
        "mem_fraction_static": config.sglang_mem_fraction_static if cuda else None,
        "attention_backend": method.attention,
        "disable_cuda_graph": method.eager,
        "cuda_graph_bs_decode": buckets(config),
        "enable_return_routed_experts": config.expert_load or None,
        # The overlapped scheduler needs streams of a device.
        "disable_overlap_schedule": None if cuda else True,
        "sampling_backend": None if cuda else "pytorch",
    }
    return {
        "model_path": config.model_path,
        "tokenizer_path": config.model_path,
        "skip_tokenizer_init": True,
        "trust_remote_code": config.trust_remote_code,
        "device": config.device,
        "dtype": dtype_of(config),
        "tp_size": config.tensor_parallel_size,
        "pp_size": config.pipeline_parallel_size,
        "disable_radix_cache": not config.prefix_caching,
        # No sampling default out of the model's folder.
        "sampling_defaults": "openai",
        "random_seed": 0,
        "enable_metrics": True,  # without them a result carries no times
        "log_level": "info",
        "custom_sigquit_handler": on_child_failure,
        **_explicit_ngram(method.engine_args),
        **{name: value for name, value in chosen.items() if value is not None},
    }


def buckets(config: BackendConfig) -> list[int] | None:
    """Batch sizes to capture CUDA graphs for: SGLang pads a batch up to the next one. None leaves them to SGLang."""
    if not config.method.rocket_bucket:
        return None
    return batch_sizes(config)


def is_ngram(args: Mapping[str, Any]) -> bool:
    return args.get("speculative_algorithm") == "NGRAM"


def _explicit_ngram(own_args: Mapping[str, Any]) -> dict[str, Any]:
    """What the method leaves out of how it drafts, so that no default of another version stands in."""
    return {name: value for name, value in NGRAM.items() if name not in own_args} if is_ngram(own_args) else {}


def asked_context(config: BackendConfig) -> int | None:
    """The context length that leaves room for all of max_model_len, as far as the
    model's own length allows; SGLang refuses a longer one."""
    if config.max_model_len is None:
        return None
    wanted = config.max_model_len + LENGTH_MARGIN_TOKENS
    limit = context_length(read_config(config.model_path))
    return wanted if limit is None else max(config.max_model_len, min(wanted, limit))


def usable_length(config: BackendConfig, context: int, kv_cache_tokens: int) -> int:
    """Prompt and new tokens that SGLang really serves, however they are divided."""
    served = min(context, kv_cache_tokens) - LENGTH_MARGIN_TOKENS
    return served if config.max_model_len is None else min(served, config.max_model_len)


def device_bytes_per_token(config: BackendConfig) -> int:
    """Bytes of KV cache for one token on each device. Raises UnknownCacheShape."""
    shape = read_config(config.model_path)
    return kv_bytes_per_token(shape, dtype_of(config), config.tensor_parallel_size, config.pipeline_parallel_size)


def _max_total_tokens(config: BackendConfig) -> int | None:
    if config.kv_cache_bytes is None or "max_total_tokens" in config.method.engine_args:
        return None
    return config.kv_cache_bytes // device_bytes_per_token(config)


def call_args(batch: PromptBatch, prompts: Sequence[Sequence[int]], expert_load: bool) -> dict[str, Any]:
    """Arguments of Engine.generate."""
    call = batch.call
    args: dict[str, Any] = {"input_ids": prompts, "sampling_params": sampling_params(call)}
    if call.logprobs or call.task == "score":
        args |= {"return_logprob": True, "top_logprobs_num": call.logprobs}
    if call.task == "score":
        # SGLang tells nothing of the first token that it is asked for.
        args["logprob_start_len"] = [(prompt.score_from or 1) - 1 for prompt in batch.prompts]
    return {**args, "return_routed_experts": True} if expert_load else args


def sampling_params(call: CallParams) -> dict[str, Any]:
    """Nothing left to a default that could differ between engines. No seed: SGLang
    takes one, and two calls with the same one gave different ids."""
    return {
        "max_new_tokens": 0 if call.task == "score" else call.max_new_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p if call.temperature > 0 else 1.0,
        "top_k": -1,
        "ignore_eos": call.ignore_eos,
        "stop_token_ids": [] if call.ignore_eos else list(call.stop_token_ids),
    }


def set_environment() -> None:
    """Before SGLang is imported, in this process and so in its children."""
    # 1 wants CPU kernels that a CUDA build does not have; without a GPU the platform plugin stands in.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "0")
    # Else log-probabilities of sampled tokens are those after temperature.
    os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"


def bind_ranks(config: BackendConfig) -> None:
    """SGLang itself gives each rank a NUMA node, and refuses more ranks than there are of these."""
    if config.device == "cpu" and config.ranks > 1:
        os.environ.setdefault(THREADS_OF_RANKS, shares(os.sched_getaffinity(0), config.ranks))
