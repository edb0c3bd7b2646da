"""Whether a run is worse than another: a verdict on each change, and the exit code that follows. Pure.

A change is named (regressed, improved) if it is told apart from none and its estimate is past the threshold. Told apart
means a two-sided test (of figures on the ratio's logarithm with Welch's degrees of freedom, of accuracies McNemar's)
at 1 − confidence for all changes together: p values are adjusted after Holm (A simple sequentially rejective multiple
test procedure, Scandinavian Journal of Statistics 1979), which holds however the figures hang together. A gate that
cries wolf for one cell in a hundred is switched off, so it is the chance of any false alarm that is held, and not the
share of false ones (Benjamini and Hochberg). A change is "unchanged" only if its interval lies within the threshold on
both sides, as in a test of equivalence (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 1987). What is
neither can't be told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.paired.changes import WITHIN, Change
from orchestrator.view.wording import percent_text

Word = Literal["regressed", "improved", "unchanged", "can't tell"]
#: A change for the worse by less is none that anybody asked about.
THRESHOLD: Final = 0.05
#: More starts than that are no advice.
_MOST_STARTS: Final = 100


@dataclass(frozen=True)
class Verdict:
    """`p_value` and, adjusted for all that was looked at, `p_adjusted`: None where nothing may be told. `starts`: about
    how many on each side would tell; None where that is not the question, or too many."""

    word: Word
    why: str = ""
    p_value: float | None = None
    p_adjusted: float | None = None
    starts: int | None = None

    @property
    def text(self) -> str:
        """ "can't tell: the interval is too wide; about 9 starts on each side would tell" """
        advice = f"about {self.starts} starts on each side would tell" if self.starts else ""
        reason = "; ".join(filter(None, (self.why, advice)))
        return f"{self.word}: {reason}" if reason else self.word


def judge(changes: Sequence[Change], threshold: float) -> list[Verdict]:
    """Of all changes that are looked at together. `threshold`: a share, 0.05 for 5 %; of shares, 5 points."""
    found = [one.p_value for one in changes]
    adjusted = iter(holm([p for p in found if p is not None]))
    return [
        Verdict("can't tell", _no_test(one)) if p is None else _tested(one, threshold, p, next(adjusted))
        for one, p in zip(changes, found, strict=True)
    ]


def holm(found: Sequence[float]) -> list[float]:
    """p values adjusted so that any below a level is named with no more than that chance of one false among them."""
    adjusted, least = [0.0] * len(found), 0.0
    for rank, place in enumerate(sorted(range(len(found)), key=found.__getitem__)):
        least = max(least, min(1.0, (len(found) - rank) * found[place]))
        adjusted[place] = least
    return adjusted


def _no_test(one: Change) -> str:
    if one.doubt:
        return one.doubt
    if one.before is None or one.after is None:
        sides = [side for side, value in zip("AB", (one.before, one.after), strict=True) if value is None]
        return f"no value in {' and '.join(sides)}"
    if one.within:
        return WITHIN
    return f"too few starts ({one.unit_text}): two on each side are the least"


def _tested(one: Change, threshold: float, p_value: float, adjusted: float) -> Verdict:
    size, span, level = one.size, one.span, 1 - one.confidence
    assert size is not None
    assert span is not None
    if adjusted <= level and abs(size) > threshold:
        word: Word = "improved" if (size > 0) == one.metric.higher else "regressed"
        return Verdict(word, "", p_value, adjusted)
    if max(span.high, -span.low) <= threshold:
        return Verdict("unchanged", "", p_value, adjusted)
    if adjusted <= level:
        why = f"it changed, but whether by more than {percent_text(threshold)} is open"
    elif p_value <= level:
        why = "told apart on its own, but not among so many comparisons"
    else:
        why = "the interval is too wide"
    return Verdict("can't tell", why, p_value, adjusted, _starts_needed(one, threshold))


def _starts_needed(one: Change, threshold: float) -> int | None:
    """By how an interval narrows, with the root of its units."""
    interval = one.ratio.interval(one.confidence) if one.ratio else None
    if one.ratio is None or interval is None:
        return None
    half, away = math.log(interval.high / one.ratio.value), abs(math.log(one.ratio.value))
    goal = max(away, math.log1p(threshold) - away)
    needed = math.ceil(max(one.units) * (half / goal) ** 2) if goal > 0 else _MOST_STARTS + 1
    return max(needed, max(one.units) + 1) if needed <= _MOST_STARTS else None
