"""What vLLM and SGLang are both to be told of a vision-language model: they prepare images by themselves."""

from __future__ import annotations

from protocol.specs import BackendConfig
from workers.backends.model_folder import read_config
from workers.vision import Sight


def has_vision(config: BackendConfig) -> bool:
    """Whether the model takes images at all, whatever the input mode makes of it."""
    return bool(read_config(config.model_path).get("vision_config"))


def backend_of(config: BackendConfig) -> str | None:
    """The one way from images to pixels for all engines, where the model's processor leaves a choice. None without
    images. Raises CantSee."""
    return Sight(config.model_path, config.trust_remote_code).backend if config.images_per_prompt else None
