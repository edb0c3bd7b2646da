"""When the tokens of an output came, as an engine tells it. Pure.

What is no duration is left out with a flag. What is one, and can't be true beside the others, is kept with another:
clocks of an engine's children are not always ours, and which one is wrong nobody knows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from protocol.records import FLAG_BAD_TIMES, FLAG_IMPOSSIBLE_TIMES
from protocol.specs import pack_floats
from workers.backends.positions import number

#: What two clocks that agree may differ by: engines stamp the same token at several places, one after the other.
CLOCKS_S, CLOCKS_SHARE = 1e-3, 1e-3


class Times(NamedTuple):
    """As a Generation has them, and their flags. The times between the tokens are packed by `specs.pack_floats`."""

    ttft_s: float | None
    latency_s: float | None
    itl_s: bytes | None
    flags: list[str]


def checked(
    ttft_s: Any, latency_s: Any, times_s: Sequence[Any] | None, count: int, wall_s: float | None = None
) -> Times:
    """Of an output of `count` tokens: seconds from the hand-over to its first and last token, and to each of them; of
    more than `count` times the first ones are its own. `wall_s` is what the whole batch took."""
    first, last, ends = seconds(ttft_s), seconds(latency_s), None
    odd = [told for told, kept in ((ttft_s, first), (latency_s, last)) if told is not None and kept is None]
    gaps: list[float | None] = []
    if times_s is not None:
        ends = [seconds(one) for one in times_s[:count]]
        gaps = [_gap(*pair) for pair in itertools.pairwise(ends)]
        odd += [one for one in (*ends, *gaps) if one is None]
    fits = ends is not None and len(ends) == count
    flags = {
        FLAG_BAD_TIMES: bool(odd) or (ends is not None and not fits),
        FLAG_IMPOSSIBLE_TIMES: any(_impossible(first, last, gaps if fits else None, wall_s)),
    }
    return Times(first, last, pack_floats(gaps) if fits else None, [flag for flag, holds in flags.items() if holds])


def seconds(value: Any) -> float | None:
    """None for what is no duration."""
    found = number(value)
    return found if found is not None and 0 <= found < math.inf else None


def _gap(one: float | None, next_one: float | None) -> float | None:
    return None if one is None or next_one is None or next_one < one else next_one - one


def _impossible(
    first: float | None, last: float | None, gaps: Sequence[float | None] | None, wall_s: float | None
) -> Iterator[bool]:
    """Ended before it began, or after its batch; or the times between its tokens add up to another time."""
    if first is not None and last is not None:
        span = last - first
        yield span < -CLOCKS_S
        if gaps is not None and None not in gaps:
            added = math.fsum(gap for gap in gaps if gap is not None)
            yield abs(added - span) > CLOCKS_S + CLOCKS_SHARE * added
    if wall_s is not None:
        yield any(one > wall_s + CLOCKS_S for one in (first, last) if one is not None)
