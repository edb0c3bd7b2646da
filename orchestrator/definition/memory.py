"""How much memory a method needs, before anything is loaded. Pure.

    KV cache  = 2 × layers × kv_heads × head_dim × tokens × sequences × bytes of a value

with one term for each kind of layer: a layer with a sliding window holds at most the window; latent attention (MLA,
DeepSeek-V2, arXiv:2405.04434, section 2.1) holds one compressed vector and the rotary part of the key instead of
keys and values; a layer without attention holds a state of fixed size, which is not counted. Tensor parallelism
divides the heads (never below one), pipeline parallelism the layers.

    weights     = parameters × bytes of a value, in the checkpoint's own form where it is quantised
    activations = the widest layer's inputs, outputs and gate for the tokens of one step, and float32 logits
                  of each sequence's last token
    graphs      = activations of the largest captured batch once more: captured graphs share one pool

The first two follow from the model; the others are the size of what engines keep at once, and no more than that:
kernels' workspaces, the CUDA context (0.3 to 0.6 GiB) and allocators' losses come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from protocol.specs import BackendConfig

VALUE_BYTES: Final[Mapping[str, float]] = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Names that engines give KV caches of other widths than the model's; "auto" is the model's own.
KV_VALUE_BYTES: Final[Mapping[str, float]] = {
    **VALUE_BYTES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"), 1),
    **dict.fromkeys(("fp4", "fp4_e2m1", "nvfp4", "int4"), 0.5),
}
#: What vLLM and SGLang take of a GPU if nothing is said: gpu_memory_utilization and mem_fraction_static. SGLang's
#: depends on the device, so that only a rough figure can stand here.
DEFAULT_SHARES: Final[Mapping[str, float]] = {"vllm": 0.92, "sglang": 0.88}
#: Tokens of one step where the engine is told nothing (vLLM's and SGLang's own; Transformers runs the whole batch).
DEFAULT_STEP_TOKENS: Final[Mapping[str, int]] = {"vllm": 8192, "sglang": 8192}
LOGIT_BYTES: Final = 4

LayerKind = Literal["full", "sliding", "latent", "state"]


class CacheLayers(Struct, frozen=True):
    """Layers that keep the same: `count` of them, `values` of each token in each (keys and values of all heads),
    at most `window` tokens. `heads`: into how many parts tensor parallelism can cut the values."""

    kind: LayerKind
    count: int
    values: int
    heads: int = 1
    window: int | None = None


class ModelShape(Struct, frozen=True):
    """What a model's files tell of its size. `weights`: bytes by the dtype they are stored in, as safetensors
    names them; `float_values`: of these, how many are plain floats, which a dtype setting converts."""

    layers: tuple[CacheLayers, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    weights: dict[str, int]
    float_values: int


class Estimate(Struct, frozen=True):
    """Bytes on one device.

    kv_needed_bytes  the largest batch at full length
    kv_bytes         what is set aside: kv_cache_bytes where the engine is told, else what is needed
    kv_token_bytes   one token of one sequence, within all windows
    notes            what could not be counted
    """

    weights_bytes: int
    kv_needed_bytes: int
    kv_bytes: int
    kv_token_bytes: int
    activations_bytes: int
    graphs_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.activations_bytes + self.graphs_bytes


def estimate(shape: ModelShape, stored_dtype: str | None, config: BackendConfig) -> Estimate | None:
    """For the largest batch of `config` at its full length. None where the length or the dtype is not known."""
    dtype = stored_dtype if config.dtype == "auto" else config.dtype
    if config.max_model_len is None or dtype is None or dtype not in VALUE_BYTES:
        return None
    width = VALUE_BYTES[dtype]
    kv_width = KV_VALUE_BYTES.get(kv_dtype(config), width)
    tokens, sequences = config.max_model_len, config.batch_size
    needed = kv_cache_bytes(shape, tokens, sequences, kv_width, config)
    return Estimate(
        weights_bytes=int(weights_bytes(shape, width) / config.ranks),
        kv_needed_bytes=needed,
        kv_bytes=(config.kv_cache_bytes or needed) if _sets_aside(config) else needed,
        kv_token_bytes=kv_cache_bytes(shape, 1, 1, kv_width, config),
        activations_bytes=_activations(shape, config, width, _step_tokens(config)),
        graphs_bytes=_graphs(shape, config, width),
        notes=tuple(_notes(shape, config)),
    )


def kv_cache_bytes(shape: ModelShape, tokens: int, sequences: int, value_bytes: float, config: BackendConfig) -> int:
    """Of `sequences` of `tokens` each, on one device."""
    of_one = sum(_layer_values(part, tokens, config) for part in shape.layers)
    return int(of_one * sequences * value_bytes)


def weights_bytes(shape: ModelShape, value_bytes: float) -> int:
    """As they lie on the device: floats in the dtype that is asked for, whatever is quantised as it is stored."""
    other = sum(size for dtype, size in shape.weights.items() if dtype not in _FLOATS)
    return other + int(shape.float_values * value_bytes)


def _sets_aside(config: BackendConfig) -> bool:
    """Whether the KV cache is made at load, in the size that is asked for, rather than grown."""
    return config.method.engine in DEFAULT_SHARES or config.method.continuous_batching


def kv_dtype(config: BackendConfig) -> str:
    return str(config.method.engine_args.get("kv_cache_dtype", "auto"))


def share_of(config: BackendConfig) -> float | None:
    """The part of a GPU that the engine takes for itself; None if it takes what it needs."""
    if config.device == "cpu" or config.kv_cache_bytes is not None:
        return None
    asked = {"vllm": config.gpu_memory_utilization, "sglang": config.sglang_mem_fraction_static}
    return asked.get(config.method.engine) or DEFAULT_SHARES.get(config.method.engine)


#: safetensors' names of what a dtype setting converts.
_FLOATS: Final = ("F64", "F32", "F16", "BF16")


def _layer_values(part: CacheLayers, tokens: int, config: BackendConfig) -> float:
    if part.kind == "state":
        return 0
    held = min(tokens, part.window or tokens)
    layers = -(-part.count // config.pipeline_parallel_size)
    # A head can't be cut: with more devices than heads each holds a copy of one.
    heads = max(1, -(-part.heads // config.tensor_parallel_size))
    return layers * part.values / part.heads * heads * held


def _activations(shape: ModelShape, config: BackendConfig, width: float, tokens: int) -> int:
    """Of a step of so many tokens."""
    widest = 4 * shape.hidden_size + 3 * shape.intermediate_size / config.tensor_parallel_size
    logits = config.batch_size * shape.vocab_size * LOGIT_BYTES
    return int(tokens * widest * width) + logits


def _step_tokens(config: BackendConfig) -> int:
    """Tokens that run through a layer at once, at most."""
    whole = config.batch_size * (config.max_model_len or 0)
    limit = config.max_num_batched_tokens or DEFAULT_STEP_TOKENS.get(config.method.engine)
    return whole if limit is None else min(whole, limit)


def _graphs(shape: ModelShape, config: BackendConfig, width: float) -> int:
    method = config.method
    captures = method.engine != "hf" or method.rocket_bucket or method.compile == "reduce-overhead"
    if config.device == "cpu" or method.eager or not captures:
        return 0
    return _activations(shape, config, width, config.batch_size)


def _notes(shape: ModelShape, config: BackendConfig) -> list[str]:
    kinds = {part.kind for part in shape.layers}
    said = kv_dtype(config)
    found = {
        "layers without attention keep a state that is not counted": "state" in kinds,
        "Transformers keeps the keys and values of latent attention at full width": "latent" in kinds
        and config.method.engine == "hf",
        f"kv_cache_dtype {said} is not known here; counted as the model's": said not in ("auto", *KV_VALUE_BYTES),
        "quantization among engine_args is not counted: weights as they are stored": "quantization"
        in config.method.engine_args,
    }
    return [note for note, holds in found.items() if holds]


def shape_of(found: Mapping[str, Any] | None) -> ModelShape | None:
    """From what the tool model_info tells."""
    return None if found is None else msgspec.convert(found, ModelShape)
