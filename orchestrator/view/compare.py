"""Speeds set against each other: a method's beside the reference's, and the same cell's now and before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.view import stats
from orchestrator.view.metrics import Speed, Unit


@dataclass(frozen=True)
class Versus:
    """Tokens/s / tokens/s of `reference` at the same settings. Without a ratio `reason` says why there is none:
    it is the reference itself, or one of the two has no speed."""

    reference: str
    ratio: stats.Ratio | None = None
    unit: Unit = "batches"
    reason: str = ""


@dataclass(frozen=True)
class Drift:
    """A cell measured once more, at the end, beside all its repeats. Tokens/s; None where it did not come to it."""

    label: str
    before: float | None
    after: float | None
    ratio: stats.Ratio | None


IS_REFERENCE = "it is the reference"


def versus(reference: str, method: str, ours: Speed, theirs: Speed | None) -> Versus:
    if method == reference:
        return Versus(reference, reason=IS_REFERENCE)
    if theirs is None:
        return Versus(reference, reason=f"{reference} has no row at these settings")
    unit: Unit = "batches" if ours.unit == theirs.unit == "batches" else "repeats"
    found = ratio(ours, theirs, unit)
    return Versus(reference, found, unit, "" if found else "one of the two has no speed")


def drift_of(label: str, before: Speed, after: Speed) -> Drift:
    """The last measurement is a single repeat: beside several it has to lie where one more of them would, beside one
    it is compared batch by batch."""
    old, new = _rate(before), _rate(after)
    if old is None or new is None or not old.value:
        return Drift(label, old.value if old else None, new.value if new else None, None)
    found = ratio(after, before, "batches") if before.unit == "batches" else _one_more(old, new)
    return Drift(label, old.value, new.value, found)


def _one_more(repeats: stats.Estimate, one: stats.Estimate) -> stats.Ratio:
    ratio = one.value / repeats.value
    if repeats.error is None:
        return stats.Ratio(ratio, paired=False)
    # The error of their mean is a repeat's own / √n; one more deviates by its own, and from the mean's error.
    error = repeats.error * math.sqrt(repeats.units + 1)
    return stats.Ratio(ratio, paired=False, error=error, freedom=repeats.units - 1)


def ratio(ours: Speed, theirs: Speed, unit: Unit) -> stats.Ratio | None:
    if unit == "repeats":
        return stats.ratio(ours.repeats, theirs.repeats)
    return stats.ratio(ours.batches, theirs.batches, alike=ours.prompts == theirs.prompts)


def _rate(speed: Speed) -> stats.Estimate | None:
    pairs = speed.repeats if speed.unit == "repeats" else speed.batches
    return stats.rate(*stats.columns(dict(pairs))) if pairs else None
