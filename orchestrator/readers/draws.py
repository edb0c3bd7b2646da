"""Random prompts: lengths out of a distribution, token ids out of a vocabulary, the same on every machine. Pure.

All of it comes from `random.Random(text).random()`, whose sequence Python guarantees not to change. Engines get the
ids, so that a length is exact: text that random ids are decoded to comes back as more or fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist

from msgspec import Struct

from orchestrator.definition.promptuse import MOST_TOKENS, Lengths, LogNormal, Normal, SharedPrefix
from protocol.specs import pack_ids

_STANDARD = NormalDist()


class Segment(Struct, frozen=True):
    """So many random ids. Equal streams give equal ids: the longer of two begins with the shorter."""

    stream: str
    tokens: int


def ids(segments: Sequence[Segment], vocabulary: Sequence[int]) -> bytes:
    """Packed. `vocabulary`: the ids to draw from, each as likely as any other."""
    size = len(vocabulary)
    return b"".join(
        pack_ids([vocabulary[int(number() * size)] for _ in range(one.tokens)])
        for one in segments
        for number in (Random(one.stream).random,)
    )


def lengths(wanted: int | Lengths, count: int, stream: str, given: Sequence[int] = ()) -> tuple[list[int], int]:
    """`count` lengths, and how many of them were cut to `min` or `max`. `given`: those of `Lengths.file`."""
    if isinstance(wanted, int):
        return [wanted] * count, 0
    found = list(given[:count]) if wanted.file is not None else _drawn(wanted, count, Random(stream))
    most = MOST_TOKENS if wanted.max is None else wanted.max
    bounded = [min(max(length, wanted.min), most) for length in found]
    return bounded, sum(one != other for one, other in zip(found, bounded, strict=True))


def _drawn(wanted: Lengths, count: int, source: Random) -> list[int]:
    if wanted.fixed is not None:
        return [wanted.fixed] * count
    if wanted.uniform is not None:
        low, high = wanted.uniform
        return [low + int(source.random() * (high - low + 1)) for _ in range(count)]
    curve = wanted.normal or wanted.lognormal
    assert curve is not None
    return [_length(curve, _normal(source)) for _ in range(count)]


def _normal(source: Random) -> float:
    """Standard normal: the inverse of its distribution function at a number strictly between 0 and 1."""
    return _STANDARD.inv_cdf(max(source.random(), 2**-54))


def _length(curve: Normal | LogNormal, deviation: float) -> int:
    if isinstance(curve, Normal):
        # Beyond both bounds it is cut to them anyway.
        return round(min(max(curve.mean + curve.stddev * deviation, -1.0), MOST_TOKENS + 1.0))
    return round(min(curve.median * math.exp(min(curve.sigma * deviation, 100.0)), MOST_TOKENS))


def shuffled(count: int, stream: str) -> list[int]:
    """0 to `count` - 1, in random order."""
    places = list(range(count))
    source = Random(stream)
    for last in range(count - 1, 0, -1):
        other = int(source.random() * (last + 1))
        places[last], places[other] = places[other], places[last]
    return places


def order(made: SharedPrefix) -> list[tuple[int, int]]:
    """Group and number of each prompt."""
    pairs = [(group, number) for group in range(made.groups) for number in range(made.prompts_per_group)]
    if made.order == "grouped":
        return pairs
    return [pairs[place] for place in shuffled(len(pairs), f"{made.seed}/order")]
