"""What a method sets in its engine, in the engine's own words, so that it can be done again without Airlock. Pure.

What every method of a sweep shares (lengths, dtype, memory, sampling) is not here: the sweep file says it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orchestrator.definition.variables import recorded
from protocol.specs import MethodSpec, NgramSpec

#: Buckets that the sweep leaves open.
_SIZES = "[1, 2, 4, … batch_size]"


def sets(method: MethodSpec) -> list[str]:
    """One argument or environment variable each; empty where all is left to the engine."""
    own = [one for name, value in method.engine_args.items() for one in _argument(name, value)]
    variables = [f"{name}={value} in the environment" for name, value in recorded(method.env_vars).items()]
    return [*_BY_ENGINE[method.engine](method), *own, *variables]


def _hf(method: MethodSpec) -> Iterator[str]:
    yield from _argument("attn_implementation", method.attention)
    if method.continuous_batching:
        yield f"continuous_batching_config=ContinuousBatchingConfig({_paging(method)})"
    if method.rocket_bucket:
        yield "past_key_values=StaticCache(max_cache_len=bucket_lengths[-1] + max_new_tokens)"
    elif method.compile:
        yield 'cache_implementation="static"'
        yield "max_cache_len=max_model_len"
    if method.compile:
        static = ", dynamic=False" if method.rocket_bucket else ""
        yield f'compile_config=CompileConfig(mode="{method.compile}"{static})'
    if method.ngram:
        yield f"prompt_lookup_num_tokens={method.ngram.draft_tokens}"
        yield f"max_matching_ngram_size={method.ngram.max_n}"


def _paging(method: MethodSpec) -> str:
    """Of the paged cache, whose size kv_cache_bytes gives; flash-attention's kernels take large pages only."""
    page = 256 if "flash" in (method.attention or "") else 32
    fixed = "allow_block_sharing=False, auto_switch_to_flash=False"
    return f"page_size={page}, max_requests_per_batch=batch_size, {fixed}"


def _vllm(method: MethodSpec) -> Iterator[str]:
    yield from _argument("attention_backend", method.attention)
    yield from _argument("enforce_eager", method.eager)
    if method.ngram:
        yield from _argument("speculative_config", _speculation(method.ngram))
    if method.rocket_bucket:
        yield "max_num_seqs=batch_size"
        yield f'compilation_config={{"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": {_SIZES}}}'


def _speculation(ngram: NgramSpec) -> dict[str, Any]:
    return {
        "method": "ngram",
        "num_speculative_tokens": ngram.draft_tokens,
        "prompt_lookup_min": ngram.min_n,
        "prompt_lookup_max": ngram.max_n,
    }


def _sglang(method: MethodSpec) -> Iterator[str]:
    yield from _argument("attention_backend", method.attention)
    yield from _argument("disable_cuda_graph", method.eager)
    if method.rocket_bucket:
        yield f"cuda_graph_bs_decode={_SIZES}"


def _argument(name: str, value: Any) -> Iterator[str]:
    if value is not None:
        yield f"{name}={_literal(value)}"


def _literal(value: Any) -> str:
    """As Python, with the quotes of this project's style."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else repr(value)


_BY_ENGINE: dict[str, Callable[[MethodSpec], Iterable[str]]] = {
    "hf": _hf,
    "vllm": _vllm,
    "sglang": _sglang,
    "scripted": lambda _: (),
}
