"""The methods that come with Airlock, in the order they are listed. A name always means the same thing. Pure."""

from __future__ import annotations

from typing import Final

from protocol.specs import MethodSpec, NgramSpec

#: The same draft for every engine. min_n 1: Transformers always falls back to single tokens.
NGRAM: Final = NgramSpec(min_n=1, max_n=3, draft_tokens=3)

_HF: Final = (
    MethodSpec("hf_eager", "hf", "eager", summary="Transformers, attention in plain PyTorch operations"),
    MethodSpec("hf_sdpa", "hf", "sdpa", summary="Transformers, PyTorch's fused attention"),
    MethodSpec("hf_flash", "hf", "flash_attention_2", summary="Transformers, FlashAttention 2"),
    MethodSpec("hf_flash3", "hf", "flash_attention_3", summary="Transformers, FlashAttention 3"),
    MethodSpec("hf_flex", "hf", "flex_attention", summary="Transformers, attention that torch compiles from its mask"),
    MethodSpec(
        "hf_paged",
        "hf",
        "sdpa",
        continuous_batching=True,
        summary="Transformers, continuous batching on a paged KV cache",
    ),
    MethodSpec(
        "hf_compile",
        "hf",
        "sdpa",
        compile="default",
        summary="Transformers, decoding compiled by torch.compile on a static KV cache",
    ),
    MethodSpec(
        "hf_rocket",
        "hf",
        "sdpa",
        compile="reduce-overhead",
        rocket_bucket=True,
        summary="Transformers, compiled (on a GPU with CUDA graphs), batch and length rounded up to fixed buckets",
    ),
    MethodSpec("hf_ngram", "hf", "sdpa", ngram=NGRAM, summary="Transformers, prompt lookup; batch size 1 only"),
)

_VLLM: Final = (
    MethodSpec(
        "vllm_default", "vllm", summary="vLLM as it comes: it chooses attention, compiles, on a GPU uses CUDA graphs"
    ),
    MethodSpec("vllm_eager", "vllm", eager=True, summary="vLLM, no compilation and no CUDA graphs"),
    MethodSpec(
        "vllm_multiprocess",
        "vllm",
        eager=True,
        env_vars={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        summary="as vllm_eager, with the engine's core in a process of its own, as a server has it",
    ),
    MethodSpec("vllm_fa", "vllm", "FLASH_ATTN", summary="vLLM, FlashAttention"),
    MethodSpec("vllm_flashinfer", "vllm", "FLASHINFER", summary="vLLM, FlashInfer's attention"),
    MethodSpec("vllm_triton", "vllm", "TRITON_ATTN", summary="vLLM, attention written in Triton"),
    MethodSpec("vllm_ngram", "vllm", ngram=NGRAM, summary="vLLM as it comes, with n-gram speculation"),
    MethodSpec(
        "vllm_rocket",
        "vllm",
        rocket_bucket=True,
        summary="vLLM as it comes, graphs captured for the batch buckets alone",
    ),
    MethodSpec(
        "vllm_rocket_flash",
        "vllm",
        "FLASH_ATTN",
        rocket_bucket=True,
        summary="vLLM, FlashAttention, graphs captured for the batch buckets alone",
    ),
)

#: SGLang drafts a tree, out of a trie over all requests so far: instead of bounds of n it has these, all given, so
#: that no default of another version stands in. The root counts as a draft token. Breadth 1 makes a chain of it, as the
#: other engines draft one; from breadth 5 on four tokens make no step at all (SGLang divides the one by the other).
_SGLANG_NGRAM: Final = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": NGRAM.draft_tokens + 1,
    "speculative_ngram_match_type": "BFS",
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 1,
    "speculative_ngram_max_trie_depth": 18,
    "speculative_ngram_capacity": 10_000_000,
}

_SGLANG: Final = (
    MethodSpec("sglang_default", "sglang", summary="SGLang as it comes: it chooses attention, uses CUDA graphs"),
    MethodSpec("sglang_flashinfer", "sglang", "flashinfer", summary="SGLang, FlashInfer's attention"),
    MethodSpec("sglang_triton", "sglang", "triton", summary="SGLang, attention written in Triton"),
    MethodSpec("sglang_torch_native", "sglang", "torch_native", summary="SGLang, PyTorch's fused attention"),
    MethodSpec("sglang_flex", "sglang", "flex_attention", summary="SGLang, attention that torch compiles"),
    MethodSpec(
        "sglang_ngram",
        "sglang",
        engine_args=_SGLANG_NGRAM,
        summary="SGLang as it comes, with n-gram speculation out of a trie over all requests",
    ),
    MethodSpec(
        "sglang_rocket",
        "sglang",
        rocket_bucket=True,
        summary="SGLang as it comes, graphs captured for the batch buckets alone",
    ),
)

_SCRIPTED: Final = MethodSpec("scripted", "scripted", summary="no engine: made-up tokens, to try Airlock itself")


def builtin() -> dict[str, MethodSpec]:
    """By name. What is done to the dict changes nothing here."""
    return {m.name: m for m in (*_HF, *_VLLM, *_SGLANG, _SCRIPTED)}
