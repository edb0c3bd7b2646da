"""The size of a model by its files: the layers that keep keys and values, and the bytes of its weights.

What the files do not tell is told as nothing at all: a wrong size would be worse. No tensor is read.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

Get = Callable[[str], Any]
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
WHOLE = "model.safetensors"
#: No header of a real checkpoint is larger.
MOST_HEADER_BYTES = 100 * 1024 * 1024


def model_shape(path: str, get: Get) -> dict[str, Any] | None:
    """The fields of ModelShape; None where config and weights do not give them all."""
    layers = cache_layers(get)
    weights = stored_weights(path)
    sizes = {name: get(name) for name in ("hidden_size", "vocab_size")}
    sizes["intermediate_size"] = _intermediate(get)
    if not layers or weights is None or not all(isinstance(one, int) and one > 0 for one in sizes.values()):
        return None
    heads = get("num_attention_heads")
    return {
        **sizes,
        "layers": layers,
        "weights": weights[0],
        "float_values": weights[1],
        "attention_heads": heads if isinstance(heads, int) else None,
    }


def cache_layers(get: Get) -> list[dict[str, Any]]:
    """By kind, in the order they first appear; [] where the config does not tell."""
    layers = get("num_hidden_layers")
    if not isinstance(layers, int) or uneven(get):
        return []
    told = get("layer_types") or get("layers_block_type")
    kinds = [str(kind) for kind in told] if isinstance(told, (list, tuple)) and len(told) == layers else []
    if not kinds:
        kinds = ["sliding_attention" if _slides(get) else "full_attention"] * layers
    one = _latent(get) or _heads(get)
    if one is None:
        return []
    return [_part(kind, count, one, get) for kind, count in Counter(map(_plain, kinds[: caching(layers, get)])).items()]


def uneven(get: Get) -> bool:
    """Whether layers have heads of their own number or width, by Transformers' word or by the file's."""
    own = get("per_layer_config")  # of Transformers a view, which even models have
    return bool(get("is_heterogeneous") or get("global_head_dim") or (isinstance(own, dict) and own))


def caching(layers: int, get: Get) -> int:
    """How many of the first layers keep keys and values; the others take those of one before them."""
    shared = get("num_kv_shared_layers")
    return max(0, layers - shared) if isinstance(shared, int) and shared > 0 else layers


def stored_weights(path: str) -> tuple[dict[str, int], int] | None:
    """Bytes by dtype, and how many values of them are plain floats. None if there are no safetensors."""
    sizes: Counter[str] = Counter()
    try:
        for name in _loaded(path):
            sizes.update(_header_bytes(os.path.join(path, name)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None
    floats = sum(size // FLOAT_BYTES[dtype] for dtype, size in sizes.items() if dtype in FLOAT_BYTES)
    return (dict(sizes), floats) if sizes else None


def _loaded(path: str) -> list[str]:
    """The files that engines read: those that the index names, or the one of the usual name, else all. Some makers put
    the same weights beside them once more, in their own format as "consolidated"."""
    index = os.path.join(path, f"{WHOLE}.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            return sorted(set(json.load(file)["weight_map"].values()))
    found = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if WHOLE in found:
        return [WHOLE]
    return [name for name in found if not name.startswith("consolidated")] or found


def _header_bytes(file: str) -> Counter[str]:
    with open(file, "rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header: dict[str, Any] = json.loads(content.read(length))
    found: Counter[str] = Counter()
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            found[str(entry["dtype"])] += end - start
    return found


def _plain(kind: str) -> str:
    """One of "full", "sliding", "state" out of the many words that configs use."""
    if "sliding" in kind or "local" in kind or "chunked" in kind:
        return "sliding"
    if "attention" in kind and "linear" not in kind:
        return "full"
    return "state"


def _part(kind: str, count: int, one: dict[str, Any], get: Get) -> dict[str, Any]:
    if kind == "state":
        return {"kind": "state", "count": count, "values": 0}
    window = get("sliding_window") or get("attention_chunk_size")
    slides = kind == "sliding" and isinstance(window, int)
    return {**one, "count": count, "kind": "sliding" if slides else one["kind"], "window": window if slides else None}


def _slides(get: Get) -> bool:
    """A window for all layers. Some families carry the figure and switch it off."""
    return bool(get("sliding_window")) and get("use_sliding_window") is not False


def _latent(get: Get) -> dict[str, Any] | None:
    """Multi-head latent attention: one vector for all heads, that no head divides."""
    rank, rotary = get("kv_lora_rank"), get("qk_rope_head_dim")
    if not isinstance(rank, int) or not isinstance(rotary, int):
        return None
    return {"kind": "latent", "values": rank + rotary, "heads": 1}


def _heads(get: Get) -> dict[str, Any] | None:
    heads, hidden = get("num_attention_heads"), get("hidden_size")
    kv_heads = get("num_key_value_heads") or heads
    width = get("head_dim") or (hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None)
    if not isinstance(kv_heads, int) or not isinstance(width, int) or kv_heads < 1 or width < 1:
        return None
    values = get("v_head_dim")
    return {
        "kind": "full",
        "values": kv_heads * (width + (values if isinstance(values, int) else width)),
        "heads": kv_heads,
    }


def _intermediate(get: Get) -> Any:
    """Of the widest feed-forward part that one token passes: with experts those that it is sent to."""
    dense, expert, chosen = get("intermediate_size"), get("moe_intermediate_size"), get("num_experts_per_tok")
    if isinstance(expert, int) and isinstance(chosen, int):
        return max(expert * chosen, dense if isinstance(dense, int) else 0)
    return dense
