"""Tool: what all engines must agree on about a model: its stop ids, its context, the size of its KV cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from workers.tokenizing import tokenizer_of
from workers.tools.model_shape import caching, model_shape, uneven
from workers.vision import families

Get = Callable[[str], Any]

_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"path": folder, "trust_remote_code": bool} → the fields of ModelInfo that only the model's files tell."""
    path, trust = request["path"], request["trust_remote_code"]
    tokenizer = tokenizer_of(path, trust, local_files_only=True)
    raw = _read_json(path, "config.json")
    generation = _read_json(path, "generation_config.json")
    get = _getter(path, trust, raw)
    text_config = raw.get("text_config")
    configured = [raw.get("eos_token_id"), text_config.get("eos_token_id") if isinstance(text_config, dict) else None]
    return {
        "stop_token_ids": stop_ids([tokenizer.eos_token_id, generation.get("eos_token_id"), *configured]),
        "context_length": context_length(get),
        "kv_bytes_per_token": kv_bytes_per_token(get),
        "dtype": dtype_name(get),
        "shape": model_shape(path, get),
        "vision": takes_images(raw, *families()),
    }


def takes_images(raw: Mapping[str, Any], vision: Mapping[str, str], text: Container[str]) -> bool:
    """Whether a checkpoint is a vision-language model. `vision`: the class of each type of them; `text`: the types
    that a text-only class can load. Some types are both, and their text part saved by itself has another class."""
    kind, classes = str(raw.get("model_type")), raw.get("architectures") or []
    seeing = vision.get(kind)
    if not seeing or not raw.get("vision_config"):
        return False
    return bool(classes[0] == seeing) if classes and kind in text else True


def stop_ids(given: Iterable[Any]) -> list[int]:
    """The union of ids and lists of ids; None and the −1 that some configs use for "none" are left out."""
    found: set[int] = set()
    for one in given:
        found.update(i for i in (one if isinstance(one, (list, tuple)) else [one]) if isinstance(i, int) and i >= 0)
    return sorted(found)


def context_length(get: Get) -> int | None:
    """Tokens; None where the config does not tell."""
    lengths = (get(name) for name in _CONTEXT_NAMES)
    return next((n for n in lengths if isinstance(n, int) and n > 0), None)


def kv_bytes_per_token(get: Get) -> int | None:
    """Keys and values of all attention layers, in the checkpoint's dtype, for one token. An upper
    bound where layers have a sliding window. None where the shape is another (latent attention,
    heads that differ by layer) or the config does not tell."""
    if get("kv_lora_rank") or uneven(get):
        return None
    heads = get("num_attention_heads")
    kv_heads = get("num_key_value_heads") or heads
    hidden = get("hidden_size")
    head_dim = get("head_dim") or (hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None)
    layers, width = _attention_layers(get), _DTYPE_BYTES.get(dtype_name(get) or "")
    product = 2
    for part in (layers, kv_heads, head_dim, width):
        if not isinstance(part, int) or part < 1:
            return None
        product *= part
    return product


def dtype_name(get: Get) -> str | None:
    dtype = get("dtype") or get("torch_dtype")
    return str(dtype).rsplit(".", 1)[-1] if dtype else None


def _attention_layers(get: Get) -> Any:
    kinds = get("layer_types")
    if not isinstance(kinds, (list, tuple)):
        layers = get("num_hidden_layers")
        return caching(layers, get) if isinstance(layers, int) else None
    kept = kinds[: caching(len(kinds), get)]
    return sum("attention" in str(kind) and "linear" not in str(kind) for kind in kept)


def _getter(path: str, trust: bool, raw: dict[str, Any]) -> Get:
    """Attributes of the text model's config, by transformers' common names where it can read the
    model's, else straight from the file: an engine may know models that transformers does not."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
    except Exception:  # of any class: its checks of single fields have their own
        nested = raw.get("text_config")
        merged = {**raw, **nested} if isinstance(nested, dict) else raw
        return merged.get
    # A nested config may leave the dtype to the outer one.
    return attributes(config.get_text_config(), config)


def attributes(*configs: Any) -> Get:
    """Of the first of them that tells one. Transformers raises for what is each layer's own."""

    def told(config: Any, name: str) -> Any:
        try:
            return getattr(config, name, None)
        except RuntimeError:
            return None

    return lambda name: next((value for one in configs if (value := told(one, name))), None)


def _read_json(path: str, name: str) -> dict[str, Any]:
    """{} if there is no such file."""
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}
