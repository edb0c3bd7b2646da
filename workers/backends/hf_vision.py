"""Vision-language models of Transformers: their class, and what their processor adds to a padded batch of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.specs import BackendConfig, PromptInput, unpack_ids
from workers.backends.admission import NotAdmitted
from workers.vision import CantSee, Sight, families

#: What Airlock pads by itself.
_OURS = ("input_ids", "attention_mask")


def model_class(config: BackendConfig) -> Any:
    """The class that loads the checkpoint for this input mode. A vision-language model whose type has no
    text-only class reads text with the whole model."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if config.input_mode == "vision":
        return AutoModelForImageTextToText
    found = AutoConfig.from_pretrained(config.model_path, trust_remote_code=config.trust_remote_code)
    kind, (seeing, reading) = str(found.model_type), families()
    return AutoModelForImageTextToText if kind in seeing and kind not in reading else AutoModelForCausalLM


class Pictures:
    """The processor of a loaded model."""

    def __init__(self, config: BackendConfig) -> None:
        self._sight = Sight(config.model_path, config.trust_remote_code)

    @property
    def processor(self) -> str:
        return self._sight.processor

    def inputs(self, prompts: Sequence[PromptInput], width: int, model: Any) -> dict[str, Any]:
        """What goes into the model beside ids and mask, both `width` columns wide with their padding on the left.

        Raises NotAdmitted, with the prompts, where the processor gives other ids than those that were sent.
        """
        rows = [row for row, prompt in enumerate(prompts) if prompt.images]
        if not rows:
            return {}
        seen = [prompts[row] for row in rows]
        try:
            found = self._sight.features([unpack_ids(one.token_ids) for one in seen], [one.images for one in seen])
        except CantSee as exc:
            raise NotAdmitted(str(exc)) from exc
        _require_same(seen, found)
        shape = found["input_ids"].shape
        beside = {name: value for name, value in found.to(model.device, dtype=model.dtype).items() if name not in _OURS}
        return {
            name: _spread(value, rows, len(prompts), width) if tuple(value.shape[:2]) == tuple(shape) else value
            for name, value in beside.items()
        }


def _require_same(prompts: Sequence[PromptInput], found: Any) -> None:
    pairs = zip(prompts, found["input_ids"], found["attention_mask"], strict=True)
    other = [one.id for one, ids, mask in pairs if ids[mask.bool()].tolist() != unpack_ids(one.widened)]
    if other:
        raise NotAdmitted(f"prompts {', '.join(other)}: the model's processor makes other ids of them here")


def _spread(value: Any, rows: Sequence[int], count: int, width: int) -> Any:
    """Of a kind for each token: prompts without images are text, and so is padding."""
    wide = value.new_zeros((count, width, *value.shape[2:]))
    wide[list(rows), width - value.shape[1] :] = value
    return wide
