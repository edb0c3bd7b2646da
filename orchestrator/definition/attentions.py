"""The attention implementations that the recipes' versions of the engines know, by the engines' own names. Pure.

Sources: Transformers' AttentionInterface, vLLM's AttentionBackendEnum, SGLang's choices of --attention-backend. Of
another version, in an environment of the user's own, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.definition.spelling import likely
from orchestrator.view.wording import clean
from protocol.specs import MethodSpec

_HF: Final = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
_PAGED: Final = "paged|"
_VLLM: Final = (
    *("CPU_ATTN", "CPU_MLA", "AMX_MLA", "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE"),
    *("FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_DSV4"),
    *("FLASHINFER_MLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_SM90", "FLASHINFER_MLA_SPARSE_SM120"),
    *("FLASHMLA", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41"),
    *("TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER", "TRITON_MLA", "TRITON_MSA"),
    *("FLEX_ATTENTION", "TORCH_SDPA", "CUTLASS_MLA", "CUTLASS_MSA", "TOKENSPEED_MLA", "MINIMAX_M3_SPARSE"),
    *("ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_MLA", "ROCM_AITER_MLA_SPARSE", "ROCM_AITER_TRITON_MLA"),
    *("ROCM_AITER_UNIFIED_ATTN", "ROCM_FLASHMLA_SPARSE_DSV4", "ROCM_SEGMENTED_ATTN", "XPU_MLA_SPARSE"),
    *("B12X", "HPC_ATTN", "TURBOQUANT", "ULTRAQUANT", "NO_ATTENTION", "CUSTOM"),
)
_SGLANG: Final = (
    *("triton", "torch_native", "flex_attention", "fa3", "fa4", "flashinfer", "flashmla", "dsa", "nsa", "qsa", "dsv4"),
    *("compressed", "llada2_cfg_flashinfer", "trtllm_mla", "trtllm_mha", "cutedsl_mla", "tokenspeed_mla", "hpc_ops"),
    *("minicpm_flashattn", "minicpm_flashinfer", "aiter", "wave", "intel_amx", "ascend", "intel_xpu"),
)
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {"hf": _HF, "vllm": _VLLM, "sglang": _SGLANG}
_TITLES: Final = {"hf": "Transformers", "vllm": "vLLM", "sglang": "SGLang"}


def unknown(method: MethodSpec) -> str | None:
    """That the engine has no such attention, and which was probably meant; None if it has, or it is not known which
    it has."""
    asked, names = method.attention, KNOWN.get(method.engine, ())
    if asked is None or method.worker or not names or _is_known(method.engine, asked):
        return None
    meant = likely(asked, names)
    hint = f"did you mean {meant}?" if meant else f"for example {', '.join(names[:6])}"
    return f"{_TITLES[method.engine]} has no attention {clean(asked)}: {hint}"


def _is_known(engine: str, name: str) -> bool:
    """vLLM takes any case. Transformers takes a kernel of the hub as well, by its repository."""
    if engine == "vllm":
        return name.upper() in _VLLM
    return name in KNOWN[engine] or (engine == "hf" and ("/" in name or name.removeprefix(_PAGED) in _HF))
