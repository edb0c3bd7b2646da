"""What Transformers runs `generate` with, out of the GenerationConfig that it completed and of the model itself, by
names that mean the same for all engines. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.records import EngineSettings
from workers.backends import hf_compile, hf_model

#: The word of a GenerationConfig for a cache of fewer bits than the model.
QUANTIZED = "quantized"


#: It has no other.
SAMPLER = "torch"


def settings(model: Any, told: Any, ran: bool) -> EngineSettings:
    """`told`: the GenerationConfig that a batch ran with, or, where none has run yet, the one that it will be given."""
    drafts = told.prompt_lookup_num_tokens
    mode = compile_mode(model, told, ran)
    return EngineSettings(
        batching="static",
        prefix_caching=False,  # a cache lives for one call, or is emptied before it
        chunked_prefill=told.prefill_chunk_size is not None,
        cuda_graphs=hf_compile.cuda_graphs(mode, model.device.type),
        compile_mode=mode,
        speculation="ngram" if drafts else "none",
        ngram_min=1 if drafts else None,  # it goes down to single tokens, whatever it is told
        ngram_max=told.max_matching_ngram_size if drafts else None,
        draft_tokens=drafts,
        sampler=SAMPLER,
        kv_cache_dtype=QUANTIZED if told.cache_implementation == QUANTIZED else dtype_of(model),
    )


def compile_mode(model: Any, told: Any, ran: bool) -> str | None:
    """By the compiled call that `generate` made of the model. None while none has been made that may be yet."""
    used = getattr(model, "_last_compile_config", None)
    if used is not None:
        return str(used.mode or "default")
    return "none" if ran or told.disable_compile else None


def compiled(mode: str | None) -> bool | None:
    """Of the decode step, by dynamo's own count of graphs; None while nothing has run yet."""
    return False if mode == "none" else (mode is not None and hf_compile.graphs() > 0) or None


def ends(criteria: Iterable[Any]) -> set[int]:
    """The ids at which these stopping criteria end an output."""
    stops = (one.eos_token_id for one in criteria if hasattr(one, "eos_token_id"))
    return {int(one) for ids in stops for one in ids.flatten().tolist() if one >= 0}


def dtype_of(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def usable_length(model: Any, asked: int | None) -> int | None:
    """What was asked for, as far as the model was made for it. `generate` itself knows no limit, and runs past it."""
    known = [one for one in (asked, hf_model.context_length(model)) if one is not None]
    return min(known, default=None)
