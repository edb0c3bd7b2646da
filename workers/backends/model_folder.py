"""What a model's config.json says, for arguments that an engine can't be trusted to derive the same way."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from typing import Any

from protocol.specs import BackendConfig

#: Bytes of one value of the KV cache.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class UnknownCacheShape(ValueError):
    """The size of a token in the KV cache does not follow from config.json."""


def read_config(model_path: str) -> dict[str, Any]:
    """The text part of config.json, with what the whole says where the part is silent. Raises OSError, ValueError."""
    with open(os.path.join(model_path, "config.json"), encoding="utf-8") as file:
        whole: dict[str, Any] = json.load(file)
    part = whole.get("text_config")
    return {**whole, **part} if isinstance(part, dict) else whole


def dtype_of(config: BackendConfig) -> str:
    """The dtype to ask for. "auto" means the checkpoint's own, and engines differ:
    some halve a float32 checkpoint. "auto" again where the folder does not say."""
    if config.dtype != "auto":
        return config.dtype
    shape = read_config(config.model_path)
    found = str(shape.get("dtype") or shape.get("torch_dtype"))
    return found if found in DTYPE_BYTES else "auto"


def has_two_formats(model_path: str) -> bool:
    """Whether Mistral's own weights lie beside shards that an index names, so that each format can be told apart."""
    own = glob.glob(os.path.join(glob.escape(model_path), "consolidated*.safetensors"))
    return bool(own) and os.path.exists(os.path.join(model_path, "model.safetensors.index.json"))


def context_length(shape: Mapping[str, Any]) -> int | None:
    """Tokens that the model was made for, without any scaling that an engine may apply."""
    length = shape.get("max_position_embeddings")
    return length if isinstance(length, int) else None


def kv_bytes_per_token(
    shape: Mapping[str, Any], dtype: str, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> int:
    """Bytes of one token's keys and values on one device, all layers being full attention.

    Raises UnknownCacheShape for compressed or hybrid caches and missing figures.
    """
    if shape.get("kv_lora_rank") or not _all_full_attention(shape):
        raise UnknownCacheShape(
            "the KV cache of this architecture is compressed or mixed, so that its size in tokens does not follow from "
            "kv_cache_bytes; on a GPU leave that out"
        )
    try:
        heads = int(shape.get("num_key_value_heads") or shape["num_attention_heads"])
        width = int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])
        layers, value_bytes = int(shape["num_hidden_layers"]), DTYPE_BYTES[dtype]
    except KeyError as exc:
        raise UnknownCacheShape(f"config.json and dtype {dtype!r} do not give {exc}") from exc
    return 2 * -(-layers // pipeline_parallel) * max(1, heads // tensor_parallel) * width * value_bytes


def _all_full_attention(shape: Mapping[str, Any]) -> bool:
    return set(shape.get("layer_types") or ["full_attention"]) == {"full_attention"}
