"""Log-probabilities from logits, in float32, of the model's own distribution.

Only the k likeliest and the chosen one of each position leave the device: a
position's whole distribution is as large as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.backends.positions import Position


def of_tokens(logits: Any, ids: Any, k: int) -> list[Position]:
    """Positions of the tokens `ids` (n), each from its row of `logits` (n × vocabulary)."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(-1, ids[:, None]).squeeze(-1).tolist()
    top = logprobs.topk(k, dim=-1)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    tops = [list(zip(tokens, values, strict=True)) for tokens, values in pairs]
    return [Position(value, likeliest) for value, likeliest in zip(chosen, tops, strict=True)]


def of_steps(steps: Sequence[Any], ids: Any, k: int) -> list[list[Position]]:
    """For each row of `ids` (rows × steps) its positions, from each step's logits (rows × vocabulary)."""
    found = [of_tokens(logits[: len(ids)], ids[:, step], k) for step, logits in enumerate(steps)]
    return [list(row) for row in zip(*found, strict=True)]
