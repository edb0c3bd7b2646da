"""Which of engines' own arguments make figures incomparable where methods differ in them. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from orchestrator.judge.findings import Level


class Argument(Struct, frozen=True):
    """What engine_args by one of these names change."""

    what: str
    names: tuple[str, ...]
    level: Level
    why: str


_NUMBERS = "the numbers are others, and so is the work: outputs and speed are not those of one model"
_LIMITS = "it limits how many sequences or tokens a step takes, which decides throughput at large batches"

#: Of engine_args, those that are known to change what is compared. A name that nobody lists is a note.
ARGUMENTS: Final = (
    Argument(
        "quantization",
        ("quantization", "quantization_config", "quantization_param_path", "torchao_config"),
        "warning",
        _NUMBERS,
    ),
    Argument(
        "KV cache dtype", ("kv_cache_dtype", "kv_cache_dtype_skip_layers", "calculate_kv_scales"), "warning", _NUMBERS
    ),
    Argument(
        "weights",
        ("load_format", "revision", "hf_overrides", "json_model_override_args", "model_override_args", "lora_paths"),
        "warning",
        _NUMBERS,
    ),
    Argument(
        "sampling of one engine",
        ("generate", "preferred_sampling_params", "logits_processors"),
        "warning",
        "it acts in one engine alone",
    ),
    Argument(
        "sequences at once", ("max_num_seqs", "max_running_requests", "max_num_partial_prefills"), "note", _LIMITS
    ),
    Argument(
        "chunked prefill",
        ("enable_chunked_prefill", "chunked_prefill_size", "enable_mixed_chunk", "long_prefill_token_threshold"),
        "note",
        "prefill in chunks beside decode trades time to first token for time between tokens",
    ),
    Argument(
        "compilation and graphs",
        (
            "compilation_config",
            "enable_torch_compile",
            "cuda_graph_sizes",
            "disable_cuda_graph",
            "torch_compile_max_bs",
        ),
        "note",
        "eager kernels against captured graphs",
    ),
    Argument(
        "KV cache size",
        (
            *("num_gpu_blocks_override", "swap_space", "kv_offloading_size"),
            *("hicache_ratio", "hicache_size", "enable_hierarchical_cache"),
        ),
        "warning",
        "a cache that is smaller, or outside the device, costs waiting or copying that the others do not have",
    ),
    Argument(
        "offloading",
        ("cpu_offload_gb", "offload_backend", "offload_group_size", "device_map", "max_memory", "offload_folder"),
        "warning",
        "weights may lie outside the device then, and be copied for each step",
    ),
)
#: By name.
OF_ARGUMENT: Final = {name: argument for argument in ARGUMENTS for name in argument.names}
