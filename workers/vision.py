"""A vision-language model's own processor: images and the ids of a prompt, brought together in one way for all.

A prompt travels with one placeholder id for each image. What the model sees is wider: the processor puts as many
ids there as the image has features. It does so in text, so the ids are spelled out and read again; ids that do not
survive this are found out here, never passed on.
"""

from __future__ import annotations

import io
from collections.abc import Container, Mapping, Sequence
from typing import Any

#: Resizing by torchvision and by Pillow gives other pixels; every environment has Pillow.
PIL_BACKEND = "pil"


class CantSee(ValueError):
    """A sentence on why images can't be joined to a prompt, or why a model takes none."""


class Sight:
    """Raises CantSee, at once, where the model has no processor for images or the interpreter no Pillow."""

    def __init__(self, model_path: str, trust_remote_code: bool = False) -> None:
        self._processor, self.backend = _load(model_path, trust_remote_code)
        self.placeholder, self.placeholder_id = _placeholder(self._processor)

    @property
    def processor(self) -> str:
        return class_of_pixels(self._processor)

    @property
    def chat_template(self) -> Any:
        return getattr(self._processor, "chat_template", None)

    def widen(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """The ids as the model sees them. Raises CantSee."""
        count = list(ids).count(self.placeholder_id)
        if count != len(images):
            places = f"{_count(count, 'place')} for one ({self.placeholder})"
            raise CantSee(f"has {_count(len(images), 'image')}, and its text has {places}")
        again = self._processor.tokenizer(self._spelled(ids), add_special_tokens=False)["input_ids"]
        if list(again) != list(ids):
            raise CantSee("its ids can't be spelled out and read again, which the processor of the model needs")
        return [int(one) for one in self.features([ids], [images])["input_ids"][0]]

    def features(self, prompts: Sequence[Sequence[int]], images: Sequence[Sequence[bytes]]) -> Any:
        """What the processor makes of prompts that all have images: tensors by name, rows padded on the left."""
        tokenizer = self._processor.tokenizer
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:  # only a filler under the mask
            tokenizer.pad_token = tokenizer.eos_token
        return self._processor(
            text=[self._spelled(ids) for ids in prompts],
            images=[[decoded(one) for one in some] for some in images],
            add_special_tokens=False,
            padding=True,
            return_tensors="pt",
        )

    def _spelled(self, ids: Sequence[int]) -> str:
        spelled: str = self._processor.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return spelled


def class_of_pixels(processor: Any) -> str:
    """Of a processor's two parts the one that makes pixels of images."""
    return type(processor.image_processor).__name__


def families() -> tuple[Mapping[str, str], Container[str]]:
    """By type of model: the class of those that take images and text; and the types that a text-only class can load."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as VISION

    return VISION, TEXT


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' if number > 1 else ''}"


def decoded(image: bytes) -> Any:
    """A Pillow image, its pixels read. Raises CantSee for a file that is broken."""
    from PIL import Image

    try:
        found = Image.open(io.BytesIO(image))
        found.load()
    except MemoryError:
        raise
    except Exception as exc:  # decoders raise whatever they like
        raise CantSee(f"an image can't be decoded: {exc}") from exc
    return found


def _load(model_path: str, trust_remote_code: bool) -> tuple[Any, str | None]:
    """The processor, and the backend that was asked for: None where the model's has no other than its own."""
    try:
        import PIL  # noqa: F401
    except ImportError as exc:
        raise CantSee("this environment has no Pillow, by which images are read") from exc
    from transformers import AutoProcessor

    args = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    try:
        return AutoProcessor.from_pretrained(model_path, backend=PIL_BACKEND, **args), PIL_BACKEND
    except (ImportError, ValueError, TypeError):  # a processor of videos, say, that knows torchvision alone
        pass
    try:
        return AutoProcessor.from_pretrained(model_path, **args), None
    except Exception as exc:
        raise CantSee(f"its processor can't be loaded: {exc}") from exc


def _placeholder(processor: Any) -> tuple[str, int]:
    """What stands for an image in the text of a prompt."""
    if getattr(processor, "image_processor", None) is None or getattr(processor, "tokenizer", None) is None:
        raise CantSee(f"{type(processor).__name__} takes no images")
    token = getattr(processor, "image_token", None)
    found = processor.tokenizer.convert_tokens_to_ids(str(token)) if token else None
    if not isinstance(found, int) or found == processor.tokenizer.unk_token_id:
        raise CantSee(f"{type(processor).__name__} does not tell what stands for an image in a prompt")
    return str(token), found
