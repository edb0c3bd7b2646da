"""What a plan notes of sizes, batches, repeats and ranks: what was decided, and what won't be as it is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.config import SweepConfig
from orchestrator.definition import sizes
from orchestrator.definition.inputs import PromptSet
from orchestrator.view.wording import bytes_text, counted
from protocol.specs import BackendConfig


def of_length(need: int, length: int) -> str:
    rounded = f", in whole blocks of {sizes.BLOCK_TOKENS}" if length % sizes.BLOCK_TOKENS == 0 else ""
    return f"max_model_len {length}: {need} needed for the longest prompt and its new tokens{rounded}"


def of_cache(need: int, size: int, ranks: int) -> str:
    least = "the least that is set; " if size == sizes.KV_LEAST_BYTES else ""
    which = " on each rank" if ranks > 1 else ""
    told = f"the largest batch needs {bytes_text(need)} at full length" if need else "what a token takes is not known"
    return f"kv_cache_bytes {size} ({bytes_text(size)}{which}): {least}{told}"


def of_batches(cells: Sequence[dict[str, Any]], prompts: PromptSet) -> list[str]:
    total = len(prompts.prompts)
    asked = sorted({sizes.of(c, "batch_size") for c in cells})
    over = [f"with {counted(total, 'prompt')} no batch is ever that large" if size > total else "" for size in asked]
    ragged = [
        f"the last batch has {counted(total % size, 'prompt')}" if 0 < total % size < total else "" for size in asked
    ]
    return [f"batch_size {n}: {a or b}" for n, a, b in zip(asked, over, ragged, strict=True) if a or b]


def of_repeats(config: SweepConfig) -> list[str]:
    least = config.measurement.least
    if config.measurement.stop_early is None:
        return []
    notes = {
        f"stop_early can't act: it needs {counted(least, 'repeat')} of a cell before it may save another one": (
            config.repeats <= least
        ),
        "stop_early can't act where task is score: no tokens are made, so there is no speed to judge by": any(
            sizes.of(cell, "task") == "score" for cell in config.cells
        ),
    }
    return [note for note, holds in notes.items() if holds]


def of_ranks(configs: Sequence[BackendConfig], cpus: int | None) -> list[str]:
    """vLLM and SGLang refuse this when they load: their ranks spin."""
    over = [one for one in configs if cpus and one.device == "cpu" and one.method.engine == "hf" and one.ranks > cpus]
    told = (f"{one.method.name}: {one.ranks} ranks take turns on {counted(cpus or 0, 'CPU')}" for one in over)
    return list(dict.fromkeys(told))
