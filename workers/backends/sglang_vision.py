"""Vision-language models in SGLang: what it is told at load, and images beside the ids of a batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from protocol.specs import BackendConfig, PromptInput, unpack_ids
from workers.backends.engine_vision import backend_of, has_vision
from workers.vision import class_of_pixels

#: Its scheduler's store of what came out of the vision part of a model. With it a repeat would do less work.
CACHE_MIB = "SGLANG_VLM_CACHE_SIZE_MB"


def set_environment() -> None:
    """Before SGLang is imported, in this process and so in its children."""
    os.environ.setdefault(CACHE_MIB, "0")


def engine_args(config: BackendConfig) -> dict[str, Any]:
    """Engine's arguments for a model that takes images, whether it may or not; none for any other.
    Some of these models take text only unless SGLang is told otherwise."""
    if not has_vision(config):
        return {}
    if config.input_mode != "vision":
        return {"enable_multimodal": False}
    return {
        "enable_multimodal": True,
        "mm_preprocess_cache_size_mb": 0,
        **({"image_processor_backend": backend} if (backend := backend_of(config)) else {}),
    }


def sent_ids(prompts: Sequence[PromptInput], seen: Sequence[list[int]]) -> list[list[int]]:
    """SGLang widens the placeholders by itself."""
    return [unpack_ids(one.token_ids) if one.images else ids for one, ids in zip(prompts, seen, strict=True)]


def call_args(prompts: Sequence[PromptInput]) -> dict[str, Any]:
    """Beside input_ids, in which an image has one placeholder."""
    if not any(one.images for one in prompts):
        return {}
    return {"image_data": [list(one.images) or None for one in prompts]}


def miscounted(prompt: PromptInput, prompt_tokens: int | None) -> str:
    """SGLang widens the placeholders by itself, for some models by reading the ids anew from text. It tells how
    many ids came of it: another number than the model's processor gives is an error of that prompt, "" is none."""
    expected = len(prompt.seen) // 4
    if not prompt.images or prompt_tokens == expected:
        return ""
    return f"SGLang made {prompt_tokens} tokens of a prompt with images that comes to {expected}"


def processor(config: BackendConfig, tokenizer_manager: Any) -> str | None:
    """The class that makes pixels of images, as SGLang has it; None without images."""
    if not config.images_per_prompt:
        return None
    found = getattr(tokenizer_manager.mm_processor, "_processor", None)
    return None if found is None else class_of_pixels(found)
