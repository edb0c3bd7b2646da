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

A prefill has no more tokens than the batch's prompts, whose longest leaves room for the new tokens. Transformers runs
the prompts of a batch in one step, padded to their bucket where the method has any, and then keeps a
static cache for each batch bucket. Engines that batch continuously cut a step at their limit of tokens.

The first two follow from the model; the others are the size of what engines keep at once, and no more than that:
kernels' workspaces, the CUDA context (0.3 to 0.6 GiB) and allocators' losses come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from orchestrator.definition.requirements import SGLANG_UNCAPTURED
from protocol.buckets import Buckets, Shape, batch_sizes, choose
from protocol.specs import BackendConfig, MethodSpec

VALUE_BYTES: Final[Mapping[str, float]] = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Names that engines give KV caches of other widths than the model's; "auto" is the model's own.
KV_VALUE_BYTES: Final[Mapping[str, float]] = {
    **VALUE_BYTES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"), 1),
    **dict.fromkeys(("fp4", "fp4_e2m1", "nvfp4", "int4"), 0.5),
}
#: What is taken of a GPU if nothing is said: gpu_memory_utilization, mem_fraction_static, and max_memory_percent of
#: Transformers' paged cache. SGLang's depends on the device, and Transformers' is of what the weights leave, so that
#: only rough figures can stand here.
DEFAULT_SHARES: Final[Mapping[str, float]] = {"vllm": 0.92, "sglang": 0.88, "hf": 0.9}
#: Tokens of one step of those that batch continuously, where the sweep does not say: what all three take, or we give.
DEFAULT_STEP_TOKENS: Final = 8192
#: torch.compile modes that capture CUDA graphs: in `torch._inductor.list_mode_options`, those with triton.cudagraphs.
CAPTURING_MODES: Final = ("reduce-overhead", "max-autotune")
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
    names them; `float_values`: of these, how many are plain floats, which a dtype setting converts;
    `attention_heads`: of a layer's queries, which tensor parallelism shares out."""

    layers: tuple[CacheLayers, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    weights: dict[str, int]
    float_values: int
    attention_heads: int | None = None


class Estimate(Struct, frozen=True):
    """Bytes on one device.

    kv_needed_bytes  the largest batch at full length
    kv_bytes         what is set aside: kv_cache_bytes where the engine is told, one cache for each batch bucket where
                     they are static, else what is needed
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
    buckets = _padding(config, config.max_model_len)
    largest = buckets.shapes()[0] if buckets else Shape(config.batch_size, config.max_model_len)
    tokens = buckets.cache_tokens if buckets else config.max_model_len
    needed, kept = (
        kv_cache_bytes(shape, tokens, rows, kv_width, config)
        for rows in (largest.batch, sum(buckets.batch_sizes) if buckets else largest.batch)
    )
    return Estimate(
        weights_bytes=int(weights_bytes(shape, width) / config.ranks),
        kv_needed_bytes=needed,
        kv_bytes=(config.kv_cache_bytes or kept) if is_continuous(config) else kept,
        kv_token_bytes=kv_cache_bytes(shape, 1, 1, kv_width, config),
        activations_bytes=_activations(shape, config, width, _step_tokens(config, largest), largest.batch),
        graphs_bytes=_graphs(shape, config, width, largest.batch),
        notes=tuple(_notes(shape, config)),
    )


def is_continuous(config: BackendConfig) -> bool:
    """Whether it batches continuously, with a KV cache of fixed size, made at load, and a limit of tokens a step."""
    return config.method.engine in ("vllm", "sglang") or config.method.continuous_batching


def _padding(config: BackendConfig, limit: int) -> Buckets | None:
    """The buckets that prompts are padded to, as the worker chooses them; the other engines pad none."""
    return choose(config, limit) if config.method.engine == "hf" and config.method.rocket_bucket else None


def kv_cache_bytes(shape: ModelShape, tokens: int, sequences: int, value_bytes: float, config: BackendConfig) -> int:
    """Of `sequences` of `tokens` each, on one device."""
    ranks = config.tensor_parallel_size, config.pipeline_parallel_size
    of_one = sum(_layer_values(part, tokens, *ranks) for part in shape.layers)
    return int(of_one * sequences * value_bytes)


def rank_share(shape: ModelShape | None, tensor: int, pipeline: int) -> Fraction:
    """The part of a token's keys and values that one rank holds; all of them where the shape is not known."""
    layers = shape.layers if shape else ()
    held, whole = (sum(Fraction(_layer_values(part, 1, *of)) for part in layers) for of in ((tensor, pipeline), (1, 1)))
    return Fraction(held, whole) if whole else Fraction(1)


def window_share(shape: ModelShape | None, tokens: int, tensor: int, pipeline: int) -> Fraction:
    """The part of a sequence of so many tokens that layers with windows leave to be kept; all where nothing is known
    of the shape."""
    layers = shape.layers if shape else ()
    held, whole = (
        sum(Fraction(_layer_values(part, count, tensor, pipeline)) * times for part in layers)
        for count, times in ((tokens, 1), (1, tokens))
    )
    return Fraction(held, whole) if whole else Fraction(1)


def weights_bytes(shape: ModelShape, value_bytes: float) -> int:
    """As they lie on the device: floats in the dtype that is asked for, whatever is quantised as it is stored."""
    other = sum(size for dtype, size in shape.weights.items() if dtype not in _FLOATS)
    return other + int(shape.float_values * value_bytes)


def kv_dtype(config: BackendConfig) -> str:
    return kv_dtype_of(config.method)


def kv_dtype_of(method: MethodSpec) -> str:
    return str(method.engine_args.get("kv_cache_dtype", "auto"))


def share_of(config: BackendConfig) -> float | None:
    """The part of a GPU that the engine takes for itself; None if it takes what it needs."""
    if config.device == "cpu" or config.kv_cache_bytes is not None or not is_continuous(config):
        return None
    asked = {"vllm": config.gpu_memory_utilization, "sglang": config.sglang_mem_fraction_static}
    return asked.get(config.method.engine) or DEFAULT_SHARES.get(config.method.engine)


#: safetensors' names of what a dtype setting converts.
_FLOATS: Final = ("F64", "F32", "F16", "BF16")


def _layer_values(part: CacheLayers, tokens: int, tensor: int, pipeline: int) -> float:
    if part.kind == "state":
        return 0
    held = min(tokens, part.window or tokens)
    layers = -(-part.count // pipeline)
    # A head can't be cut: with more devices than heads each holds a copy of one.
    heads = max(1, -(-part.heads // tensor))
    return layers * part.values / part.heads * heads * held


def _activations(shape: ModelShape, config: BackendConfig, width: float, tokens: int, rows: int) -> int:
    """Of a step of so many tokens, of so many sequences."""
    widest = 4 * shape.hidden_size + 3 * shape.intermediate_size / config.tensor_parallel_size
    logits = rows * shape.vocab_size * LOGIT_BYTES
    return int(tokens * widest * width) + logits


def _step_tokens(config: BackendConfig, largest: Shape) -> int:
    """Tokens that run through a layer at once, at most: the batch's prompts, and to score all that there is of each.
    Buckets are as long as the longest prompt already."""
    if config.method.engine == "hf" and config.method.rocket_bucket:
        return largest.cells
    new = config.max_new_tokens if config.task == "generate" else 0
    prompts = largest.batch * max(1, largest.length - new)
    return min(prompts, config.max_num_batched_tokens or DEFAULT_STEP_TOKENS) if is_continuous(config) else prompts


def _graphs(shape: ModelShape, config: BackendConfig, width: float, rows: int) -> int:
    """Of a step that decodes: a token of each sequence. Rocket buckets of vLLM and SGLang are the captured sizes."""
    if config.device == "cpu" or not _captures(config):
        return 0
    captured = batch_sizes(config)[-1] if config.method.rocket_bucket and is_continuous(config) else rows
    return _activations(shape, config, width, captured, captured)


def _captures(config: BackendConfig) -> bool:
    """Whether CUDA graphs are captured on a GPU."""
    method = config.method
    if method.engine == "hf":
        # Its continuous batching captures where attention needs no mask.
        flash = method.continuous_batching and "flash" in (method.attention or "")
        return flash or config.compile_mode in CAPTURING_MODES
    return not method.eager and not (method.engine == "sglang" and method.attention in SGLANG_UNCAPTURED)


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
