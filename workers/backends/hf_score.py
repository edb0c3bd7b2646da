"""Log-probabilities of given continuations: one plain forward pass over prompt and continuation, no new tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from protocol.specs import BackendConfig, PromptBatch
from workers.backends import hf_logprobs, runtime
from workers.backends.base import Output
from workers.backends.hf_generate import Answer
from workers.backends.hf_model import padded, synchronise, vocabulary
from workers.backends.positions import Position

#: Logits are as wide as the vocabulary: rows are passed together only while theirs stay below this, in float32.
LOGITS_BYTES = 1 << 30
#: Positions that are turned into log-probabilities at once.
CHUNK_POSITIONS = 256


def score(config: BackendConfig, model: Any, batch: PromptBatch, prompts: Sequence[Sequence[int]]) -> Answer:
    """An output for each prompt, with a position for each of its tokens from score_from on."""
    starts = [prompt.score_from or 1 for prompt in batch.prompts]
    needs = [len(ids) - start + 1 for ids, start in zip(prompts, starts, strict=True)]
    synchronise(config.device)
    watch = runtime.Stopwatch()
    told: list[list[Position]] = []
    groups = list(grouped(needs, LOGITS_BYTES // (4 * vocabulary(model))))
    for rows in groups:
        told += _of_rows(model, [prompts[row] for row in rows], [starts[row] for row in rows], batch)
    synchronise(config.device)
    wall_s = watch.lap_s()
    outputs = [
        Output(prompt.id, None, latency_s=wall_s, positions=positions)
        for prompt, positions in zip(batch.prompts, told, strict=True)
    ]
    return Answer(outputs, wall_s, {"steps": float(len(groups))})


def grouped(needs: Sequence[int], most: int) -> Iterator[range]:
    """Rows in order, cut so that rows times the longest need of theirs stays within `most`; a single row always may."""
    first = longest = 0
    for row, need in enumerate(needs):
        longest = max(longest, need)
        if row > first and (row - first + 1) * longest > most:
            yield range(first, row)
            first, longest = row, need
    yield range(first, len(needs))


def _of_rows(
    model: Any, prompts: Sequence[Sequence[int]], starts: Sequence[int], batch: PromptBatch
) -> list[list[Position]]:
    import torch

    inputs = padded(prompts, max(map(len, prompts)), batch.call, model.device)
    # Counted from each row's own beginning, as generate does; not every model derives them from the mask.
    inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    inputs["use_cache"] = False
    kept = max(len(one) - start for one, start in zip(prompts, starts, strict=True)) + 1
    if model._supports_logits_to_keep():
        inputs["logits_to_keep"] = kept
    with torch.inference_mode():
        logits = model(**inputs).logits
    # The logits of a position are those of the token after it, so the last ones are of no token that is given.
    tokens = inputs["input_ids"]
    return [
        _of_row(logits[row, -1 - need : -1], tokens[row, -need:], batch.call.logprobs)
        for row, need in enumerate(len(one) - start for one, start in zip(prompts, starts, strict=True))
    ]


def _of_row(logits: Any, ids: Any, k: int) -> list[Position]:
    chunks = zip(logits.split(CHUNK_POSITIONS), ids.split(CHUNK_POSITIONS), strict=True)
    return list(itertools.chain.from_iterable(hf_logprobs.of_tokens(part, some, k) for part, some in chunks))
