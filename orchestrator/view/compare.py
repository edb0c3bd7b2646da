"""Speeds set against each other: a method's beside the reference's, and the same cell's now and before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.view import stats
from orchestrator.view.metrics import Speed, Unit


@dataclass(frozen=True)
class Versus:
    """Tokens/s / tokens/s of `reference` at the same settings. Without a ratio `reason` says why there is none:
    it is the reference itself, or one of the two has no speed. `doubt`: why a ratio and its interval decide nothing."""

    reference: str
    ratio: stats.Ratio | None = None
    unit: Unit = "batches"
    reason: str = ""
    doubt: str = ""

    def distinguishable(self, confidence: float) -> bool | None:
        return None if self.ratio is None or self.doubt else self.ratio.distinguishable(confidence)


#: An interval round 1 that reaches no further shows that there was no drift to speak of; a wider one shows nothing. And
#: what is below it is told, but warned of nowhere.
HIDDEN_DRIFT = 0.05
DriftVerdict = Literal["drifted", "steady", "unknown"]


@dataclass(frozen=True)
class Drift:
    """A cell measured once more, at the end, beside all its repeats. Tokens/s; None where it did not come to it.
    `pending`: the last measurement has not ended."""

    label: str
    before: float | None
    after: float | None
    ratio: stats.Ratio | None
    pending: bool = False

    def verdict(self, confidence: float) -> DriftVerdict:
        """That it can't be told apart from no drift is "steady" only where no drift of HIDDEN_DRIFT could hide."""
        interval = self.ratio.interval(confidence) if self.ratio else None
        if interval is None:
            return "unknown"
        if not interval.holds(1.0):
            return "drifted"
        return "steady" if _reach(interval) <= HIDDEN_DRIFT else "unknown"


def drift_text(found: Drift, confidence: float) -> str:
    """ "it drifted by -4.1 % (-5.0 % to -3.2 %)", "no drift of more than 1.3 % could hide", "can't tell: …",
    "not measured yet" """
    if found.after is None:
        return "not measured yet" if found.pending else "not measured"
    if found.before is None:
        return "can't tell whether it drifted: it has no speed before"
    interval = found.ratio.interval(confidence) if found.ratio else None
    if found.ratio is None or interval is None:
        return "can't tell whether it drifted: too few repeats or batches for an interval"
    reaches = f"{change_text(interval.low)} to {change_text(interval.high)}"
    return {
        "drifted": f"it drifted by {change_text(found.ratio.value)} ({reaches})",
        "steady": f"no drift of more than {_reach(interval) * 100:.1f} % could hide",
        "unknown": f"can't tell whether it drifted: {change_text(found.ratio.value)}, and {reaches} could hide",
    }[found.verdict(confidence)]


def _reach(interval: stats.Interval) -> float:
    return max(1 - interval.low, interval.high - 1)


def change_text(ratio: float) -> str:
    """0.8 → "-20.0 %" """
    return f"{(ratio - 1) * 100:+.1f} %"


def ratio_values(found: stats.Ratio | None, confidence: float, name: str = "ratio") -> dict[str, Any]:
    """As plain JSON values."""
    interval = found.interval(confidence) if found else None
    return {
        name: found and found.value,
        f"{name}_low": interval and interval.low,
        f"{name}_high": interval and interval.high,
        "distinguishable": found and found.distinguishable(confidence),
    }


IS_REFERENCE = "it is the reference"


def versus(reference: str, method: str, ours: Speed, theirs: Speed | None, doubt: str = "") -> Versus:
    if method == reference:
        return Versus(reference, reason=IS_REFERENCE)
    if theirs is None:
        return Versus(reference, reason=f"{reference} has no row at these settings")
    unit, found = common_unit(ours, theirs), between(ours, theirs)
    return Versus(reference, found, unit, "" if found else "one of the two has no speed", doubt)


def common_unit(ours: Speed, theirs: Speed) -> Unit:
    return "batches" if ours.unit == theirs.unit == "batches" else "repeats"


def between(ours: Speed, theirs: Speed) -> stats.Ratio | None:
    """Of two methods in one run. None where one of them has no speed."""
    return ratio(ours, theirs, common_unit(ours, theirs))


def drift_of(label: str, before: Speed, after: Speed, pending: bool) -> Drift:
    """The last measurement is a single repeat: beside several it has to lie where one more of them would, beside one
    it is compared batch by batch."""
    old, new = before.rate, after.rate
    if old is None or new is None or not old.value:
        return Drift(label, old.value if old else None, new.value if new else None, None, pending)
    found = ratio(after, before, "batches") if before.unit == "batches" else _one_more(old, new)
    return Drift(label, old.value, new.value, found, pending)


def _one_more(repeats: stats.Estimate, one: stats.Estimate) -> stats.Ratio:
    def error() -> stats.LogError | None:
        # The error of their mean is a repeat's own / √n; one more deviates by its own, and from the mean's error.
        own = repeats.error
        return None if own is None else stats.LogError(own * math.sqrt(repeats.units + 1), repeats.units - 1)

    return stats.Ratio(one.value / repeats.value, paired=False, find_error=error)


def ratio(ours: Speed, theirs: Speed, unit: Unit) -> stats.Ratio | None:
    if unit == "repeats":
        return stats.ratio(ours.repeats, theirs.repeats)
    return stats.ratio(ours.batches, theirs.batches, alike=ours.prompts == theirs.prompts)
