"""Text or vision: which of them each cell of a sweep comes to, and the prompts with images that it excludes. Pure.

It is decided once, by the model's config, so that every engine does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from orchestrator.definition import sizes
from orchestrator.definition.inputs import ModelInfo, Prompt
from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from orchestrator.view.wording import listed
from protocol.codec import MAX_MESSAGE_BYTES
from protocol.specs import InputMode

LISTED_PROMPTS: Final = 10
#: Of a batch's message, for all else.
ROOM_BYTES: Final = 16 * sizes.MIB


class Pictured(Protocol):
    """A prompt, tokenised or not."""

    @property
    def id(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def images(self) -> tuple[bytes, ...]: ...


def natural(model: ModelInfo) -> InputMode:
    """What "auto" stands for; "auto" again while nothing is known of the model."""
    if model.vision is None:
        return "auto"
    return "vision" if model.vision else "text"


def resolved(cell: Mapping[str, Any], model: ModelInfo) -> dict[str, Any]:
    return {**cell, "input_mode": _mode(cell, model)}


def _mode(cell: Mapping[str, Any], model: ModelInfo) -> InputMode:
    mode: InputMode = sizes.of(cell, "input_mode")
    return natural(model) if mode == "auto" else mode


def images_of(cell: Mapping[str, Any], model: ModelInfo, most: int) -> int:
    """The most images of a prompt that an engine gets in this cell, if the prompts have `most`."""
    return 0 if _mode(cell, model) == "text" else most


def most_images(prompts: Sequence[Pictured]) -> int:
    """Of a single prompt."""
    return max((len(one.images) for one in prompts), default=0)


def problems(
    cells: Sequence[Mapping[str, Any]], model: ModelInfo, prompts: Sequence[Pictured], places: Places
) -> list[Problem]:
    """A mode that the model does not have, images where only text goes in, and batches too large to send."""
    modes = dict.fromkeys(_mode(cell, model) for cell in sizes.distinct(cells, "input_mode"))
    found = []
    if "vision" in modes and model.vision is False:
        why = f"vision, and {model.name} is no vision-language model by its config"
        found.append(places.of_field("input_mode", why, "leave it out"))
    pictured = [f"{one.id} ({one.where})" if one.where else one.id for one in prompts if one.images]
    if "text" in modes and pictured:
        found.append(_unseen(model, pictured, places))
    return found + list(_too_large(cells, prompts, places))


def _unseen(model: ModelInfo, pictured: Sequence[str], places: Places) -> Problem:
    which = listed(pictured, LISTED_PROMPTS)
    if model.vision is not False:
        hint = "leave input_mode out, or the images"
        return places.of_field("input_mode", f"text, and there are prompts with images: {which}", hint)
    message = f"{model.name} takes text only, and there are prompts with images: {which}"
    return places.problem("prompts", message, "a vision-language model has a vision_config in its config.json")


def _too_large(cells: Sequence[Mapping[str, Any]], prompts: Sequence[Pictured], places: Places) -> Iterator[Problem]:
    """A batch travels as one message. Token ids are known once they are made."""
    limit_mib = (MAX_MESSAGE_BYTES - ROOM_BYTES) // sizes.MIB
    images = [sum(map(len, one.images)) for one in prompts]
    ids = [sum(map(len, (p.token_ids, p.widened, p.continuation))) for p in prompts if isinstance(p, Prompt)]
    for weights, what, hint in (
        (images, "images", "smaller batches or smaller images"),
        (ids, "token ids", "smaller batches"),
    ):
        for size, most in _over(cells, weights):
            why = f"{size}: a batch has {most // sizes.MIB} MiB of {what}, and {limit_mib} MiB can be sent"
            yield places.of_field("batch_size", why, hint)


def _over(cells: Sequence[Mapping[str, Any]], weights: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Batch sizes whose heaviest batch is too much, and how much that is."""
    limit = MAX_MESSAGE_BYTES - ROOM_BYTES
    if sum(weights) <= limit:
        return
    for size in sorted({int(sizes.of(cell, "batch_size")) for cell in cells}):
        most = max(sum(weights[at : at + size]) for at in range(0, len(weights), size))
        if most > limit:
            yield size, most
