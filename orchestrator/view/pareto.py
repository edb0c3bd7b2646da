"""Rows by their speed and a time at once, and which of them no other beats in both. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Outcomes whose speed may not stand beside another's: that of what failed half-way is of the easier half, and of what
#: is not through nobody knows which half it is.
ENDED_BADLY: Final = ("failed", "incomplete", "unfinished")


@dataclass(frozen=True)
class Candidate:
    """A row by its speed in tokens/s, which is to be high, and a time in seconds, which is to be low."""

    label: str
    rate: float
    time_s: float


def front(found: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other is at least as good as in both, and better in one (Pareto): by their estimates, the fastest
    first. Of equals the first."""
    best: list[Candidate] = []
    for one in sorted(found, key=lambda one: (-one.rate, one.time_s)):
        if not best or one.time_s < best[-1].time_s:
            best.append(one)
    return best
