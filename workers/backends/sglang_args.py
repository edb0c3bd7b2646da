"""What SGLang is told, and what its answers look like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.specs import BackendConfig, CallParams
from workers.backends.base import WrongOutputs
from workers.backends.model_folder import context_length, dtype_of, kv_bytes_per_token, read_config

#: SGLang cuts new tokens to context - 2 - prompt without a word, and refuses prompts from context - 6 on.
LENGTH_MARGIN_TOKENS = 7
CPU_ATTENTION = "torch_native"


def engine_args(config: BackendConfig, on_child_failure: Callable[..., None]) -> dict[str, Any]:
    """Engine's arguments, without the method's own. A value left to SGLang is left out."""
    method, cuda = config.method, config.device == "cuda"
    chosen = {
        "context_length": asked_context(config),
        "chunked_prefill_size": config.max_num_batched_tokens,
        "max_prefill_tokens": config.max_num_batched_tokens,
        "max_total_tokens": _max_total_tokens(config),
        "mem_fraction_static": config.sglang_mem_fraction_static if cuda else None,
        "attention_backend": method.attention or (None if cuda else CPU_ATTENTION),
        "disable_cuda_graph": method.eager,
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
        **{name: value for name, value in chosen.items() if value is not None},
    }


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


def sampling_params(call: CallParams) -> dict[str, Any]:
    """Nothing left to a default that could differ between engines. No seed: SGLang
    takes one, and two calls with the same one gave different ids."""
    return {
        "max_new_tokens": call.max_new_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p if call.temperature > 0 else 1.0,
        "top_k": -1,
        "ignore_eos": call.ignore_eos,
        "stop_token_ids": [] if call.ignore_eos else list(call.stop_token_ids),
    }


@dataclass(frozen=True)
class Result:
    """One answer, whatever its form was. `meta` is empty where the form has none."""

    token_ids: list[int] | None
    text: str | None
    meta: Mapping[str, Any]

    @property
    def finish(self) -> str | None:
        reason = self.meta.get("finish_reason")
        return reason.get("type") if isinstance(reason, Mapping) else reason

    @property
    def completion_tokens(self) -> int | None:
        return self.meta.get("completion_tokens")


def results(answer: object) -> list[Result]:
    """SGLang's answer to a batch, in the batch's order.

    Its form depends on the version and on how many prompts were given: a dict,
    a list of dicts, of strings or of id lists, a string, or one dict of lists.
    Raises WrongOutputs for anything else.
    """
    return list(_results(answer))


def _results(answer: object) -> Iterator[Result]:
    if isinstance(answer, Mapping):
        yield from map(_of_mapping, _split(answer))
    elif isinstance(answer, str):
        yield Result(None, answer, {})
    elif _is_ids(answer):
        yield Result(list(answer), None, {})  # type: ignore[call-overload]
    elif isinstance(answer, (list, tuple)):
        for one in answer:
            yield from _results(one)
    else:
        raise WrongOutputs(f"SGLang answered with {type(answer).__name__}")


def _of_mapping(answer: Mapping[str, Any]) -> Result:
    ids = answer.get("output_ids", answer.get("token_ids"))
    if ids is None and answer.get("text") is None:
        raise WrongOutputs(f"SGLang's answer has neither ids nor text, but {sorted(answer)}")
    return Result(None if ids is None else list(ids), answer.get("text"), answer.get("meta_info") or {})


def _split(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """One dict for each prompt, out of a dict whose values are lists over the prompts."""
    meta = answer.get("meta_info")
    if not isinstance(meta, (list, tuple)):
        return [answer]
    return [{key: value[i] for key, value in answer.items()} for i in range(len(meta))]


def _is_ids(answer: object) -> bool:
    return isinstance(answer, (list, tuple)) and bool(answer) and all(type(one) is int for one in answer)


def set_environment() -> None:
    """Before SGLang is imported, in this process and so in its children."""
    # 1 wants CPU kernels that a CUDA build does not have; without a GPU the platform plugin stands in.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "0")
