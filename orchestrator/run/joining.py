"""Results joined to prompts by id, never by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.view.wording import counted
from protocol.records import Generation
from protocol.specs import PromptBatch


@dataclass(frozen=True)
class Joined:
    """`good` in the order of the batch; `bad` maps a prompt id to what is wrong
    with its result; `surplus` holds ids that nobody asked for."""

    good: tuple[Generation, ...]
    bad: Mapping[str, str] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()


def join(batch: PromptBatch, generations: list[Generation], digests: Mapping[str, str]) -> Joined:
    """Missing, duplicate, foreign and unusable results are errors of those prompts alone; their order means nothing.

    `digests` maps each prompt id to the digest of the token ids that were sent,
    so that an engine which was given others is found out.
    """
    asked = [prompt.id for prompt in batch.prompts]
    seen = Counter(g.prompt_id for g in generations)
    by_id = {g.prompt_id: g for g in generations}
    bad: dict[str, str] = {}
    good: list[Generation] = []
    for prompt_id in asked:
        fault = _fault(by_id.get(prompt_id), seen[prompt_id], digests[prompt_id])
        if fault:
            bad[prompt_id] = fault
        else:
            good.append(by_id[prompt_id])
    return Joined(tuple(good), bad, tuple(sorted(set(seen) - set(asked))))


def _fault(generation: Generation | None, times: int, digest: str) -> str | None:
    if generation is None:
        return "the engine gave no result for this prompt"
    if times > 1:
        return f"the engine gave {times} results for this prompt"
    if generation.error:
        return f"the engine's result can't be used: {generation.error}"
    if generation.prompt_digest != digest:
        return f"the engine was given other token ids (digest {generation.prompt_digest}, sent {digest})"
    if generation.finish_reason == "error":  # half an answer, or none, that would count as one
        return f"the engine gave this prompt up after {counted(generation.generated_tokens, 'token')}"
    return _miscounted(generation)


def _miscounted(generation: Generation) -> str | None:
    count, odd_bytes = divmod(len(generation.token_ids), 4)
    if odd_bytes:
        return f"{len(generation.token_ids)} bytes of token ids are not a multiple of 4"
    if generation.token_ids and generation.generated_tokens != count:
        return f"{generation.generated_tokens} tokens counted, {count} ids given"
    return _misshapen(generation)


def _misshapen(generation: Generation) -> str | None:
    """Floats and ids that do not come in the numbers they must, or could not be taken apart."""
    itl, told = generation.itl_s, generation.logprobs
    if itl is not None and len(itl) != 4 * max(generation.generated_tokens - 1, 0):
        return f"{len(itl)} bytes of times between {generation.generated_tokens} tokens"
    if told is None:
        return None
    cells = len(told.chosen) * told.k
    if len(told.chosen) % 4 or len(told.top_ids) != cells or len(told.top) != cells:
        sizes = f"{len(told.chosen)}, {len(told.top_ids)} and {len(told.top)} bytes"
        return f"log-probabilities of {sizes} do not belong together with {told.k} for each position"
    return None
