"""Vision-language models in vLLM: what it is told at load, and prompts with their images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.specs import BackendConfig, PromptInput, unpack_ids
from workers.backends.engine_vision import backend_of, has_vision
from workers.vision import class_of_pixels, decoded


def engine_args(config: BackendConfig) -> dict[str, Any]:
    """LLM's arguments for a model that takes images, whether it may or not; none for any other."""
    if not has_vision(config):
        return {}
    args: dict[str, Any] = {"skip_tokenizer_init": False}  # its processors of images are made with a tokenizer
    if config.input_mode != "vision":
        return {**args, "language_model_only": True}
    return {
        **args,
        "limit_mm_per_prompt": {"image": config.images_per_prompt, "video": 0, "audio": 0},
        # With it a repeat would find its images ready made.
        "mm_processor_cache_gb": 0,
        **({"mm_processor_kwargs": {"backend": backend}} if (backend := backend_of(config)) else {}),
    }


def inputs(prompts: Sequence[PromptInput]) -> list[dict[str, Any]]:
    """vLLM widens the placeholders by itself, and tells what it made of them. Raises CantSee."""
    return [
        {
            "prompt_token_ids": unpack_ids(one.token_ids),
            **({"multi_modal_data": {"image": [decoded(image) for image in one.images]}} if one.images else {}),
        }
        for one in prompts
    ]


def processor(config: BackendConfig, model_config: Any) -> str | None:
    """The class that makes pixels of images, as vLLM has it; None without images."""
    if not config.images_per_prompt:
        return None
    from vllm.transformers_utils.processor import cached_processor_from_config

    return class_of_pixels(cached_processor_from_config(model_config))
