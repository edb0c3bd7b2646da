"""What a worker needs at the very least, and whether a place is too small for that. Pure.

It must never refuse what could run, so that only what an engine can't do without is counted:

    weights  in the dtype that is asked for, without what engines may leave out: an embedding that the output layer
             shares, and an eighth for layers that only draft and the like. Ranks hold unequal parts, and
             one of them at least the mean
    cache    where vLLM makes it on a GPU: of the size it is told, else for one sequence of full length, without which
             it does not start. Other engines make do with a smaller one, and on a CPU what is not used is not there

Nothing is known of a model whose files do not tell, of the text part of a vision-language model, and of methods with
options of their own, which may quantise or offload. On a CPU Transformers leaves weights in their file, which the
kernel may drop at any time, unless it has to convert them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from orchestrator.definition.inputs import ModelInfo
from orchestrator.definition.memory import KV_VALUE_BYTES, VALUE_BYTES, ModelShape, kv_cache_bytes, kv_dtype
from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from orchestrator.view.wording import bytes_text, listed
from protocol.specs import BackendConfig

#: Of engine_args, those that leave the weights as they are; by their beginning too.
_HARMLESS: Final = frozenset({"kv_cache_dtype", "seed", "enforce_eager", "max_num_seqs", "disable_log_stats"})
_HARMLESS_PREFIX: Final = "speculative_"
_SHARES: Final = {"vllm": "gpu_memory_utilization", "sglang": "sglang_mem_fraction_static"}
_KEPT: Final = 7 / 8
#: Names and widths, as safetensors has them, of what a dtype setting converts.
_FLOATS: Final = {"F64": (8, ""), "F32": (4, "float32"), "F16": (2, "float16"), "BF16": (2, "bfloat16")}
_LISTED: Final = 5


class Least(NamedTuple):
    """Bytes on one device, or of all ranks on a host."""

    weights_bytes: int
    kv_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes

    def __str__(self) -> str:
        parts = f"weights {bytes_text(self.weights_bytes)}, KV cache {bytes_text(self.kv_bytes)}"
        return f"at least {bytes_text(self.total_bytes)}{f' ({parts})' if self.kv_bytes else ' for the weights'}"


def least(config: BackendConfig, model: ModelInfo) -> Least | None:
    """None where nothing is certain."""
    dtype = (model.dtype if config.dtype == "auto" else config.dtype) or ""
    shape = model.shape
    if shape is None or dtype not in VALUE_BYTES or _may_shrink(config, model):
        return None
    # Of float32 vLLM makes a half where nobody says otherwise.
    width = min(VALUE_BYTES[dtype], 2) if config.dtype == "auto" else VALUE_BYTES[dtype]
    found = _weights(shape, dtype, width, config)
    if config.device == "cpu":
        return Least(int(found))
    return Least(int(found / config.ranks), int(_cache(shape, width, config)))


def short_of(config: BackendConfig, model: ModelInfo, place_bytes: int | None) -> str:
    """Why a worker of this start can't run in `place_bytes`, "" where it may or nobody knows. They are those of the
    slot's largest device, whoever holds them; on a CPU what is free there, swap included."""
    need = least(config, model)
    if need is None or place_bytes is None or need.total_bytes <= _allowed(config, place_bytes):
        return ""
    share = _share(config)
    there = bytes_text(place_bytes) if share is None else f"{share:g} of {bytes_text(place_bytes)}"
    return f"would need {need}, {there} is available"


def problems(
    configs: Sequence[BackendConfig], model: ModelInfo, places_bytes: Sequence[int | None], places: Places
) -> list[Problem]:
    """Of loads that fit no device of the machine, or not the host with its swap. `places_bytes`: of each device that
    is used, or the host's alone; nothing is refused where one is not told."""
    known = [size for size in places_bytes if size is not None]
    largest = max(known) if known and len(known) == len(places_bytes) else None
    found: dict[tuple[str, str], dict[str, None]] = {}
    for config in configs:
        if why := short_of(config, model, largest):
            hint = " or ".join(_ways_out(config, model, largest or 0, len(known)))
            found.setdefault((why, hint), {})[config.method.name] = None
    return [
        places.problem("model", f"{model.name} {why}, in {listed(list(names), _LISTED)}", hint)
        for (why, hint), names in found.items()
    ]


def _ways_out(config: BackendConfig, model: ModelInfo, place_bytes: int, devices: int) -> Iterator[str]:
    need = least(config, model)
    if need and need.total_bytes <= place_bytes:
        yield f"a larger {_SHARES[config.method.engine]}"
    wider = (replace(config, tensor_parallel_size=1 << n) for n in range(devices.bit_length()))
    for one in wider if config.device == "cuda" else ():
        if config.ranks < one.ranks <= devices and not short_of(one, model, place_bytes):
            yield f"tensor_parallel_size {one.tensor_parallel_size}"
            break
    yield "a smaller model"


def _may_shrink(config: BackendConfig, model: ModelInfo) -> bool:
    own = (name for name in config.method.engine_args if not name.startswith(_HARMLESS_PREFIX))
    half = bool(model.vision) and config.input_mode == "text"
    return half or config.method.engine == "scripted" or not _HARMLESS.issuperset(own)


def _weights(shape: ModelShape, dtype: str, width: float, config: BackendConfig) -> float:
    """On all ranks together."""
    shared = shape.vocab_size * shape.hidden_size * width
    if config.method.engine == "hf" and config.device == "cpu":
        return max(0.0, _converted(shape, dtype) * width - shared) * _KEPT
    other = sum(size for name, size in shape.weights.items() if name not in _FLOATS)
    return max(0.0, other + shape.float_values * width - shared) * _KEPT


def _converted(shape: ModelShape, dtype: str) -> float:
    """Values that are stored in another dtype than is asked for."""
    stored = ((_FLOATS[name], size) for name, size in shape.weights.items() if name in _FLOATS)
    return sum(size / width for (width, name), size in stored if name != dtype)


def _cache(shape: ModelShape, width: float, config: BackendConfig) -> float:
    """On the mean rank."""
    if config.method.engine != "vllm":
        return 0
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes
    known = KV_VALUE_BYTES.get(kv_dtype(config), width if kv_dtype(config) == "auto" else 0)
    whole = replace(config, pipeline_parallel_size=1)
    return kv_cache_bytes(shape, config.max_model_len or 0, 1, known, whole) / config.pipeline_parallel_size


def _share(config: BackendConfig) -> float | None:
    """What the sweep says that the engine may take of a device for all this; None where it says nothing."""
    if config.device == "cpu" or config.kv_cache_bytes is not None:
        return None
    name = _SHARES.get(config.method.engine)
    share: float | None = getattr(config, name) if name else None
    return share


def _allowed(config: BackendConfig, place_bytes: int) -> float:
    return place_bytes * (_share(config) or 1)
