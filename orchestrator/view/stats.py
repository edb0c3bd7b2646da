"""Estimates with intervals, from units that are independent of each other: repeats, or batches.

All that is estimated here is positive and spreads by factors, so it is done on the logarithm: an interval is
estimate × / ÷ exp(t × error), and that of a ratio turned round is the ratio's, turned round. `error` is the
bootstrap's standard error of the logarithm: whole units are drawn with replacement, so what hangs together
inside one (the prompts of a batch, the batches of a repeat) stays together. It is widened by √(n / (n − 1)) and
t is Student's with n − 1 degrees of freedom: percentiles of the bootstrap are far too narrow with few units
(with 3 of them a 95 % interval holds the truth 3 times in 4).

Errors are worked out when they are asked for. What needs numpy and scipy for that is in `resample`, which is imported
then and not before: most figures of a table have no interval in it, and no other command has any.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from orchestrator.definition.measurement import INTERVAL_REPEATS

#: Fewer say nothing about how much they differ.
LEAST_UNITS = INTERVAL_REPEATS
#: As Tukey draws them: this many interquartile ranges beyond the quartiles.
_FENCE = 1.5
_LEAST_FOR_FENCES = 4
#: So many values are sorted sooner than numpy is imported.
_FEW = 20_000
_WORTH_AN_ARRAY = 100
#: Two sums of the same numbers may differ by so much.
_ROUNDING = 1e-12
#: A factor of a million either way says as little as any wider one, which JSON and a table might not hold.
_WIDEST = math.log(1e6)

#: Unit → amount, time.
Pairs = dict[Any, tuple[float, float]]


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def _unknown() -> None:
    return None


@dataclass(frozen=True)
class Estimate:
    """A figure from `units` independent units."""

    value: float
    units: int
    find_error: Callable[[], float | None] = field(default=_unknown, repr=False, compare=False)

    @cached_property
    def error(self) -> float | None:
        """The standard error of its logarithm, None where there are too few units, or one of them is zero."""
        return self.find_error()

    def __getstate__(self) -> dict[str, Any]:
        """With its error, without what that is made of."""
        return {"value": self.value, "units": self.units, "find_error": _unknown, "error": self.error}

    def interval(self, confidence: float) -> Interval | None:
        return None if self.error is None else _around(self.value, self.error, self.units - 1, confidence)


@dataclass(frozen=True)
class LogError:
    """The standard error of a logarithm, with its degrees of freedom."""

    size: float
    freedom: float


@dataclass(frozen=True)
class Ratio:
    """Of two estimates."""

    value: float
    paired: bool
    find_error: Callable[[], LogError | None] = field(default=_unknown, repr=False, compare=False)

    @cached_property
    def error(self) -> LogError | None:
        return self.find_error()

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value, "paired": self.paired, "find_error": _unknown, "error": self.error}

    def interval(self, confidence: float) -> Interval | None:
        found = self.error
        return None if found is None else _around(self.value, found.size, found.freedom, confidence)

    def distinguishable(self, confidence: float) -> bool | None:
        """None: too few units to say."""
        interval = self.interval(confidence)
        return None if interval is None else not interval.holds(1.0)

    @property
    def p_value(self) -> float | None:
        """How likely a logarithm at least so far from 0 is by Student's t where the truth is 1; None: no error."""
        found, reach = self.error, abs(math.log(self.value))
        if found is None or not found.size:
            return None if found is None else float(reach <= _ROUNDING)
        from orchestrator.view import resample

        return 2 * resample.student_share(found.freedom, -reach / found.size)


def rate(amounts: Sequence[float], times_s: Sequence[float], *, least: int = LEAST_UNITS) -> Estimate | None:
    """Sum of amounts / sum of times; a pair of them for each unit. None without time. `least`: for an interval."""
    if sum(times_s) <= 0:
        return None
    return Estimate(sum(amounts) / sum(times_s), len(amounts), lambda: _rate_error(amounts, times_s, least))


def ratio_apart(ours: Pairs, others: Pairs) -> Ratio | None:
    """As `ratio`, of units that have nothing to do with each other. Two on each side will do for an interval: they
    have as many degrees of freedom as three of one."""
    return _unpaired(*(rate(*columns(one), least=LEAST_UNITS - 1) for one in (ours, others)))


def ratio(ours: Pairs, others: Pairs, alike: bool = True) -> Ratio | None:
    """Of our rate to the others'. Where both have the same units (the same batches of prompts, say) they are drawn
    together, and what makes a unit slow for both cancels out. None where one of them has no rate, or is zero.
    `alike`: units of one name are the same in both."""
    found = _unpaired(*(rate(*columns(one)) for one in (ours, others)))
    if found is None or not alike or ours.keys() != others.keys():
        return found
    return Ratio(found.value, True, lambda: _paired(columns(ours), columns(others)))


def over(ours: Estimate | None, others: Estimate | None) -> Ratio | None:
    """Of two estimates that have nothing to do with each other."""
    return _unpaired(ours, others)


def columns(pairs: Pairs) -> tuple[list[float], list[float]]:
    """Amounts and times, in the order of the units' names: "10" comes after "9"."""
    ordered = sorted(pairs, key=lambda unit: (len(str(unit)), str(unit)))
    return [pairs[unit][0] for unit in ordered], [pairs[unit][1] for unit in ordered]


def _rate_error(amounts: Sequence[float], times_s: Sequence[float], least: int) -> float | None:
    if not _usable(amounts, times_s, least):
        return None
    if _alike([amount / time_s for amount, time_s in zip(amounts, times_s, strict=True)]):
        return 0.0
    from orchestrator.view import resample

    return resample.rate_error(amounts, times_s)


Columns = tuple[Sequence[float], Sequence[float]]


def _paired(ours: Columns, others: Columns) -> LogError | None:
    if not (_usable(*ours, LEAST_UNITS) and _usable(*others, LEAST_UNITS)):
        return None
    from orchestrator.view import resample

    return LogError(resample.ratio_error(ours, others), len(ours[0]) - 1)


def _unpaired(mine: Estimate | None, theirs: Estimate | None) -> Ratio | None:
    if mine is None or theirs is None or not theirs.value or not mine.value:
        return None
    return Ratio(mine.value / theirs.value, False, lambda: _apart(mine, theirs))


def _apart(*sides: Estimate) -> LogError | None:
    errors = [side.error for side in sides if side.error is not None]
    return LogError(math.hypot(*errors), _freedom(*sides)) if len(errors) == len(sides) else None


def _freedom(*sides: Estimate) -> float:
    """Welch and Satterthwaite's, of the sum of two errors."""
    parts = [((side.error or 0.0) ** 2, side.units - 1) for side in sides]
    spread = sum(part**2 / freedom for part, freedom in parts)
    return sum(part for part, _ in parts) ** 2 / spread if spread else min(freedom for _, freedom in parts)


def _usable(amounts: Sequence[float], times_s: Sequence[float], least: int) -> bool:
    """A unit without amount or time has no logarithm."""
    return len(amounts) >= least and min(amounts) > 0 and min(times_s) > 0


def median(groups: Sequence[Sequence[float]]) -> Estimate | None:
    """Of all values together; a group of them for each unit. None without values."""
    units = [group for group in groups if len(group)]
    if not units:
        return None
    if sum(map(len, units)) <= _FEW:
        value = _quantile(_ordered(units), 0.5)
    else:
        from orchestrator.view import resample

        value = resample.median(units)
    return Estimate(value, len(units), lambda: _median_error(units))


def _median_error(units: Sequence[Sequence[float]]) -> float | None:
    if len(units) < LEAST_UNITS:
        return None
    from orchestrator.view import resample

    error = resample.median_error(units)
    return error if math.isfinite(error) else None


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float | None]:
    """Linear between ranks, as numpy's default. None if there are no values."""
    if not len(values):
        return [None] * len(shares)
    if len(values) <= _FEW:
        ordered = _ordered([values])
        return [_quantile(ordered, share) for share in shares]
    from orchestrator.view import resample

    return [*resample.quantiles(values, shares)]


def _ordered(parts: Sequence[Sequence[float]]) -> Sequence[float]:
    """By numpy where something has brought it in already: both sort the same numbers the same way."""
    if "numpy" in sys.modules and sum(map(len, parts)) > _WORTH_AN_ARRAY:
        from orchestrator.view import resample

        return resample.ordered(parts)
    return sorted(chain.from_iterable(parts))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def outliers(values: Sequence[float]) -> list[int]:
    """Where values lie outside Tukey's fences. Of fewer than four none does."""
    if len(values) < _LEAST_FOR_FENCES:
        return []
    low, high = (one or 0.0 for one in quantiles(values, (0.25, 0.75)))
    reach = _FENCE * (high - low)
    return [place for place, value in enumerate(values) if not low - reach <= value <= high + reach]


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _ROUNDING * max(values)


def _around(value: float, error: float, freedom: float, confidence: float) -> Interval:
    reach = _ROUNDING
    if error:
        from orchestrator.view import resample

        reach += resample.student_t(freedom, (1 + confidence) / 2) * error
    factor = math.exp(min(reach, _WIDEST))
    return Interval(value / factor, value * factor)
