"""What is wrong with a sweep for its machine, engines and prompts, found before any environment is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator import devices
from orchestrator.config import Draft
from orchestrator.definition import attentions, fits, modality
from orchestrator.definition.inputs import ModelInfo
from orchestrator.errors import Problem
from orchestrator.judge import answerkeys
from orchestrator.methods import refuse
from orchestrator.stores.promptraw import RawPrompt


def machine_problems(
    draft: Draft, machine: devices.Machine, cells: Sequence[Mapping[str, Any]] | None = None
) -> list[Problem]:
    """Methods that can't run here or not with these settings or images, and more GPUs than there are; nothing of a
    machine whose driver fails, as it is not known what it would have. `cells`: those of `draft` with their images."""
    if machine.fault:
        return []
    cells = draft.cells if cells is None else cells
    found = fits.problems(draft.methods, cells, machine.kind, draft.places, machine.gpus, draft.all_methods)
    if machine.kind == "cuda" and draft.launcher == "local":
        found += fits.too_many_devices(draft.cells, len(machine.devices), draft.places)
        if any(device.uuid.startswith("MIG-") for device in machine.devices):
            found += fits.split_over_slices(draft.cells, draft.places)
    return found


def pictured(draft: Draft, raw: Sequence[RawPrompt], model: ModelInfo | None) -> list[dict[str, Any]]:
    """The cells, each with the images that its engine would get."""
    most = modality.most_images(raw)
    return [{**c, "images_per_prompt": modality.images_of(c, model, most) if model else most} for c in draft.cells]


def continuation_problems(draft: Draft, raw: Sequence[RawPrompt]) -> list[Problem]:
    """Nothing to score, though the sweep is to."""
    without = [f"{one.id} ({one.where})" for one in raw if one.continuation is None]
    return fits.scoring_problems(draft.cells, without, len(raw), draft.places)


def answer_problems(draft: Draft, raw: Sequence[RawPrompt]) -> list[Problem]:
    """Answers that can't be judged."""
    named = ((one, one.fields.get(answerkeys.EXPECTED)) for one in raw)
    expecting = [(one.where, one.id, expected) for one, expected in named if expected is not None]
    return answerkeys.problems(draft.answers, expecting, draft.cells, draft.places)


def attention_problems(draft: Draft, machine: devices.Machine) -> list[Problem]:
    """Attention that an engine as its recipe has it does not know; of environments that are named nothing is known."""
    able = (one for one in draft.methods if one.engine not in draft.environments and not refuse(one, machine.kind))
    return [draft.places.of_method(one.name, why) for one in able if (why := attentions.unknown(one))]
