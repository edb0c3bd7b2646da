"""Methods: named, fixed ways to run an engine, and where each can't run. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

from protocol.specs import BackendConfig, Engine, MethodSpec, NgramSpec

Kind = Literal["cpu", "cuda"]
ENGINES: Final[tuple[str, ...]] = get_args(Engine)

#: The same draft for every engine. min_n 1: Transformers always falls back to single tokens.
NGRAM = NgramSpec(min_n=1, max_n=3, draft_tokens=3)

_BUILTIN = (
    MethodSpec("hf_eager", "hf", "eager", summary="Transformers, attn_implementation eager: plain PyTorch attention"),
    MethodSpec("hf_sdpa", "hf", "sdpa", summary="Transformers, attn_implementation sdpa: PyTorch's fused attention"),
    MethodSpec(
        "hf_flash",
        "hf",
        "flash_attention_2",
        summary="Transformers, attn_implementation flash_attention_2; needs a GPU and the flash-attn package",
    ),
    MethodSpec(
        "hf_ngram",
        "hf",
        "sdpa",
        ngram=NGRAM,
        summary="Transformers, sdpa, prompt_lookup_num_tokens 3, max_matching_ngram_size 3; batch size 1 only",
    ),
    MethodSpec("vllm_default", "vllm", summary="vLLM as it comes: it chooses attention, compiles, uses CUDA graphs"),
    MethodSpec("vllm_eager", "vllm", eager=True, summary="vLLM, enforce_eager: no compilation, no CUDA graphs"),
    MethodSpec("vllm_fa", "vllm", "FLASH_ATTN", summary="vLLM, attention_backend FLASH_ATTN; needs a GPU"),
    MethodSpec("vllm_flashinfer", "vllm", "FLASHINFER", summary="vLLM, attention_backend FLASHINFER; needs a GPU"),
    MethodSpec("vllm_triton", "vllm", "TRITON_ATTN", summary="vLLM, attention_backend TRITON_ATTN; needs a GPU"),
    MethodSpec(
        "vllm_ngram",
        "vllm",
        ngram=NGRAM,
        summary="vLLM as it comes, speculative_config ngram: 3 tokens, lookup of 1 to 3",
    ),
    MethodSpec(
        "sglang_default", "sglang", summary="SGLang as it comes: it chooses attention, uses CUDA graphs; needs a GPU"
    ),
    MethodSpec(
        "sglang_flashinfer", "sglang", "flashinfer", summary="SGLang, attention_backend flashinfer; needs a GPU"
    ),
    MethodSpec("sglang_triton", "sglang", "triton", summary="SGLang, attention_backend triton; needs a GPU"),
    MethodSpec(
        "sglang_torch_native", "sglang", "torch_native", summary="SGLang, attention_backend torch_native; runs on CPUs"
    ),
    MethodSpec(
        "sglang_ngram",
        "sglang",
        # SGLang drafts a tree out of all requests so far: it has no bounds of n, and counts the root as a token.
        engine_args={"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NGRAM.draft_tokens + 1},
        summary="SGLang as it comes, speculative_algorithm NGRAM, a draft of 3 tokens; needs a GPU",
    ),
    MethodSpec("scripted", "scripted", summary="no engine: made-up tokens, to try Airlock itself"),
)


def builtin() -> dict[str, MethodSpec]:
    """The methods that come with Airlock, by name, in the order they are listed."""
    return {m.name: m for m in _BUILTIN}


def refuse(method: MethodSpec, kind: Kind) -> str | None:
    """Why `method` can't run on a machine of this kind; None if it can."""
    attention = method.attention
    if kind == "cuda":
        return _CPU_ONLY.get((method.engine, attention or ""))
    if method.engine == "hf" and attention and "flash" in attention:
        return f"{attention} needs a GPU; use hf_sdpa"
    if method.engine == "vllm" and attention not in (None, "CPU_ATTN"):
        return f"on a CPU vLLM has no {attention} and would silently use CPU_ATTN; use vllm_default or vllm_eager"
    if method.engine == "sglang" and method.engine_args.get("speculative_algorithm") == "NGRAM":
        return "SGLang's n-gram speculation needs CUDA kernels; use sglang_torch_native"
    if method.engine == "sglang" and attention not in ("torch_native", "flex_attention", "intel_amx"):
        return _sglang_on_cpu(attention)
    return None


def _sglang_on_cpu(attention: str | None) -> str:
    if attention is None:
        return "SGLang's own choice on a CPU needs AMX instructions; use sglang_torch_native"
    return f"SGLang's {attention} needs a GPU; use sglang_torch_native"


_CPU_ONLY = {
    ("vllm", "CPU_ATTN"): "CPU_ATTN is vLLM's attention for CPUs",
    ("sglang", "intel_amx"): "intel_amx is SGLang's attention for Intel CPUs",
}


NAME_RULE = "use letters, digits, dot, underscore and hyphen; begin with a letter or a digit; at most 64"


def is_name(text: str) -> bool:
    """Fit for a file name, a table and a command line."""
    good = all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
    return good and 0 < len(text) <= 64 and text[0].isalnum()


def misfits(config: BackendConfig) -> list[str]:
    """What this configuration asks of its engine that would be ignored or approximated;
    the worker refuses the same things, only later."""
    vision = ["input_mode vision is not available yet"] if config.input_mode == "vision" else []
    return vision + _MISFITS[config.method.engine](config)


def _hf_misfits(config: BackendConfig) -> list[str]:
    method, compiles = config.method, config.method.compile is not None
    options = config.torch_compile_mode or config.torch_compile_cache_size_limit
    checks = {
        "prompt lookup runs one prompt at a time: it needs batch_size 1": method.ngram and config.batch_size > 1,
        "prompt lookup can't be compiled": method.ngram and compiles,
        "it runs on one device: tensor_parallel_size and pipeline_parallel_size must be 1": parallel(config) > 1,
        "it keeps no KV cache between batches: prefix_caching must be false": config.prefix_caching,
        "eager is false, but no compile mode is given": method.eager is False and not compiles,
        "torch_compile_mode and torch_compile_cache_size_limit need a method that compiles": options and not compiles,
    }
    return [reason for reason, applies in checks.items() if applies]


def _vllm_misfits(config: BackendConfig) -> list[str]:
    return _compile_misfits(config) + _parallel_misfits(config)


def _sglang_misfits(config: BackendConfig) -> list[str]:
    graphs = config.device == "cpu" and config.method.eager is False
    found = _compile_misfits(config) + _parallel_misfits(config)
    return [*found, "eager is false, but a CPU has no CUDA graphs"] if graphs else found


def _compile_misfits(config: BackendConfig) -> list[str]:
    asked = config.method.compile or config.torch_compile_mode or config.torch_compile_cache_size_limit
    why = "it compiles by options of its own: leave out compile, torch_compile_mode and torch_compile_cache_size_limit"
    return [why] if asked else []


def _parallel_misfits(config: BackendConfig) -> list[str]:
    split = config.device == "cpu" and parallel(config) > 1
    return ["on a CPU tensor_parallel_size and pipeline_parallel_size must be 1"] if split else []


def parallel(config: BackendConfig) -> int:
    """How many devices one worker takes."""
    return config.tensor_parallel_size * config.pipeline_parallel_size


_MISFITS: dict[str, Callable[[BackendConfig], list[str]]] = {
    "hf": _hf_misfits,
    "vllm": _vllm_misfits,
    "sglang": _sglang_misfits,
    "scripted": lambda _: [],
}
