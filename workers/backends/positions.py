"""What an engine tells of the log-probabilities at each position of an output. Pure.

Numbers that can't be are left out with a flag; a number of positions that does not fit
the output is an error of that prompt, as nobody could say which token is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.records import FLAG_BAD_LOGPROBS, Logprobs
from protocol.specs import pack_floats, pack_ids

#: Engines' softmax in low precision comes out a little above zero.
ROUNDING_NATS = 1e-3


class Misfit(ValueError):
    """More or fewer positions than tokens, or than were asked for."""


@dataclass(frozen=True)
class Position:
    """Natural log-probability of the token that stands there, None where the engine gives none;
    and of the likeliest ones, the likeliest first."""

    chosen: Any
    top: Sequence[tuple[int, Any]] = ()


def pack(positions: Sequence[Position] | None, count: int, k: int) -> tuple[Logprobs | None, list[str]]:
    """Those of the first `count` tokens with the `k` likeliest of each, and flags. Raises Misfit."""
    if positions is None:
        return None, []
    if len(positions) < count:
        raise Misfit(f"log-probabilities of {len(positions)} positions for {count} tokens")
    kept = positions[:count]
    if short := [at for at, one in enumerate(kept) if len(one.top) < k]:
        raise Misfit(f"position {short[0]} has {len(kept[short[0]].top)} likeliest tokens, {k} were asked for")
    tops = [pair for one in kept for pair in one.top[:k]]
    chosen, top = _checked(one.chosen for one in kept), _checked(value for _, value in tops)
    packed = Logprobs(
        k=k, chosen=pack_floats(chosen), top_ids=pack_ids(int(token) for token, _ in tops), top=pack_floats(top)
    )
    return packed, [FLAG_BAD_LOGPROBS] if None in (*chosen, *top) else []


def _checked(values: Iterable[Any]) -> list[float | None]:
    """Minus infinity, a token that was masked out, has no place in JSON either."""
    numbers = map(number, values)
    return [None if one is None or not -math.inf < one <= ROUNDING_NATS else min(one, 0.0) for one in numbers]


def number(value: Any) -> float | None:
    """Of numpy or torch too; None for what is none."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
