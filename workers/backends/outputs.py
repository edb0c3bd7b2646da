"""From what an engine gives back to Generations, by the same rules for every engine."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.records import (
    FLAG_NO_TOKEN_IDS,
    FLAG_UNCLEAN_TEXT,
    BatchStats,
    FinishReason,
    Generation,
)
from protocol.specs import PromptBatch, PromptInput, pack_ids
from workers.text import clean_text

DIGEST_CHARACTERS = 16
_REPORTED: dict[str | None, FinishReason] = {"stop": "stop", "length": "length", "error": "error", "abort": "error"}

Decode = Callable[[list[int]], str]


class WrongOutputs(Exception):
    """The engine answered a prompt twice, or one that it was never asked, or gave no count."""


@dataclass(frozen=True)
class Output:
    """One prompt's result, as the engine gave it.

    token_ids         generated ids, the prompt's own left out; None if the engine tells text only
    text              the engine's own text; used only where there are no ids
    finish            the engine's own word for why it stopped
    ttft_s, latency_s seconds from hand-over of the batch to this prompt's first and last token
    prompt_token_ids  the prompt as the engine says it got it; None if it does not say
    generated_tokens  the engine's own count; needed only where there are no ids
    """

    prompt_id: str
    token_ids: Sequence[int] | None
    text: str | None = None
    finish: str | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    prompt_token_ids: Sequence[int] | None = None
    generated_tokens: int | None = None
    flags: tuple[str, ...] = ()


def assemble(
    batch: PromptBatch, outputs: Iterable[Output], decode: Decode | None, eos: Collection[int]
) -> list[Generation]:
    """The Generations in the batch's order, joined by prompt id.

    Ids are cut after the first of `eos`, which stays and counts, unless the
    batch says ignore_eos. Text is decoded from the ids that are left, by the
    same `decode` for every engine. A prompt that the engine left out has none
    here: the coordinator sees that and records it for this prompt alone.
    Raises WrongOutputs for an answer too many.
    """
    by_id = _by_prompt_id(batch, list(outputs))
    stop = frozenset() if batch.call.ignore_eos else frozenset(eos)
    limit = batch.call.max_new_tokens
    return [
        _generation(prompt, by_id[prompt.id], decode, stop, limit) for prompt in batch.prompts if prompt.id in by_id
    ]


def _by_prompt_id(batch: PromptBatch, outputs: Sequence[Output]) -> Mapping[str, Output]:
    asked, got = Counter(p.id for p in batch.prompts), Counter(o.prompt_id for o in outputs)
    if surplus := sorted((got - asked).elements()):
        raise WrongOutputs(f"batch {batch.batch_id}: more answers than asked for {surplus}")
    return {o.prompt_id: o for o in outputs}


def _generation(
    prompt: PromptInput, output: Output, decode: Decode | None, stop: frozenset[int], limit: int
) -> Generation:
    ids, count, finish, flags = _counted(output, stop, limit)
    text, unclean = clean_text(decode(ids) if decode and ids is not None else output.text or "")
    given = prompt.token_ids if output.prompt_token_ids is None else pack_ids(map(int, output.prompt_token_ids))
    return Generation(
        prompt_id=prompt.id,
        text=text,
        token_ids=pack_ids(ids or ()),
        generated_tokens=count,
        finish_reason=finish,
        prompt_tokens=len(given) // 4,
        prompt_digest=hashlib.sha256(given).hexdigest()[:DIGEST_CHARACTERS],
        ttft_s=_seconds(output.ttft_s),
        latency_s=_seconds(output.latency_s),
        flags=[*output.flags, *flags, *([FLAG_UNCLEAN_TEXT] if unclean else [])],
    )


def _counted(
    output: Output, stop: frozenset[int], limit: int
) -> tuple[list[int] | None, int, FinishReason, tuple[str, ...]]:
    if output.token_ids is None:
        if output.generated_tokens is None:
            raise WrongOutputs(f"prompt {output.prompt_id}: neither token ids nor a count")
        finish = _REPORTED.get(output.finish, "unknown")
        return None, output.generated_tokens, finish, (FLAG_NO_TOKEN_IDS,)
    ids = cut_at_eos(_python_ints(output.token_ids), stop)
    return ids, len(ids), _finish_reason(ids, output.finish, stop, limit), ()


def _python_ints(ids: Sequence[int]) -> Sequence[int]:
    """numpy's and torch's become Python's; an engine gives one kind throughout."""
    return ids if len(ids) == 0 or type(ids[0]) is int else [int(one) for one in ids]


def cut_at_eos(ids: Iterable[int], stop: Collection[int]) -> list[int]:
    """`ids` up to and with the first that is in `stop`. Batched engines pad
    finished rows, often with the very id that ended them."""
    kept = list(ids)
    if frozenset(stop).isdisjoint(kept):  # the common case, for a tenth of the loop's time
        return kept
    end = next(place for place, one in enumerate(kept) if one in stop)
    return kept[: end + 1]


def _finish_reason(ids: Sequence[int], reported: str | None, stop: Collection[int], limit: int) -> FinishReason:
    """From the ids, so that it means the same for every engine; engines disagree on the word for one event."""
    if _REPORTED.get(reported) == "error":
        return "error"
    if ids and ids[-1] in stop:
        return "stop"
    return "length" if len(ids) == limit else "unknown"


def _seconds(value: float | None) -> float | None:
    """None for what is no duration: clocks of an engine's children are not always ours."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def batch_stats(
    generations: Iterable[Generation],
    wall_s: float,
    peak_memory_bytes: int | None = None,
    extra: Mapping[str, float] | None = None,
) -> BatchStats:
    """`wall_s` is measured round the engine's own call, device synchronised, and nothing else."""
    return BatchStats(
        wall_s=wall_s,
        generated_tokens=sum(g.generated_tokens for g in generations),
        peak_memory_bytes=peak_memory_bytes,
        extra=dict(extra or {}),
    )


def plain(value: Any) -> Any:
    """`value` as the wire can carry it: numbers of numpy and torch become Python's,
    text is cleaned, whatever else is unknown becomes its repr."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):  # numpy's float64 too
        return float(value)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return clean_text(str(value))[0]
    if isinstance(value, Mapping):
        return {clean_text(str(key))[0]: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    try:
        item = value.item()
    except Exception:  # no such method, or more than one element; its repr says as much
        item = None
    return plain(item) if isinstance(item, (bool, int, float, str)) else clean_text(repr(value))[0]
