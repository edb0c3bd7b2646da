"""What changed in one figure from one run to another, with an interval over what varies between runs. Pure.

Two runs are told apart only by what varies from one start of a worker to the next, so where both have measured a cell
in two starts or more the interval is over these. Any other says how steady each run was in itself, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from orchestrator.view import stats
from orchestrator.view.results import label
from orchestrator.view.samples import LEAST_STARTS
from orchestrator.view.summary import Row
from orchestrator.view.wording import bytes_text, clean, counted, percent_text, rate_text, seconds_text

#: What an interval is over.
Basis = Literal["starts", "repeats", "batches", "prompts"]
WITHIN: Final = "within the runs only"
_UNITS: Final[dict[Basis, tuple[str, str]]] = {
    "starts": ("start", ""),
    "repeats": ("repeat", ""),
    "batches": ("batch", "batches"),
    "prompts": ("prompt", ""),
}


@dataclass(frozen=True)
class Metric:
    """`name`: as it is asked for; `unit`: of its values in JSON; `higher`: that is better; `of_workers`: one value for
    each worker, whatever cells it served."""

    name: str
    title: str
    unit: str
    text: Callable[[float], str]
    higher: bool = False
    of_workers: bool = False


METRICS: Final = {
    one.name: one
    for one in (
        Metric("tokens_per_s", "tokens/s", "tokens/s", rate_text, higher=True),
        Metric("ttft", "TTFT p50", "s", seconds_text),
        Metric("tpot", "TPOT p50", "s", seconds_text),
        Metric("itl", "ITL p50", "s", seconds_text),
        Metric("latency", "end to end p50", "s", seconds_text),
        Metric("load", "load", "s", seconds_text, of_workers=True),
        Metric("peak_memory", "peak memory", "bytes", bytes_text, of_workers=True),
        Metric("accuracy", "accuracy", "share", percent_text, higher=True),
    )
}
#: Where none is asked for.
USUAL: Final = ("tokens_per_s",)


@dataclass(frozen=True)
class Gap:
    """A difference of shares, which have no ratio worth telling: the second run's less the first's."""

    value: float
    interval: stats.Interval
    p_value: float


@dataclass(frozen=True)
class Change:
    """Of one figure of one cell, or of the workers of a method. `ratio`: the second run's by the first's, or in its
    place `gap`; None where one has no value. `units`: how many the interval is over. `doubt`: why nothing follows."""

    metric: Metric
    subject: str
    before: float | None
    after: float | None
    ratio: stats.Ratio | None
    basis: Basis
    units: tuple[int, int]
    confidence: float
    doubt: str = ""
    gap: Gap | None = None

    @property
    def within(self) -> bool:
        """The interval says nothing of another run."""
        return self.basis in ("repeats", "batches")

    @property
    def size(self) -> float | None:
        """By how much it changed: -0.2 for a fifth less."""
        return self.gap.value if self.gap else self.ratio.value - 1 if self.ratio else None

    @property
    def span(self) -> stats.Interval | None:
        """The interval of `size`."""
        found = self.ratio.interval(self.confidence) if self.ratio else None
        return self.gap.interval if self.gap else found and stats.Interval(found.low - 1, found.high - 1)

    @property
    def p_value(self) -> float | None:
        """None where nothing may be told."""
        if self.doubt or self.within:
            return None
        return self.gap.p_value if self.gap else self.ratio.p_value if self.ratio else None

    def text(self, size: float) -> str:
        """ "-20.0 %", "+1.2 points" """
        return f"{size * 100:+.1f} {'points' if self.gap else '%'}"

    @property
    def unit_text(self) -> str:
        """ "3 and 4 starts", "6 batches, within the runs" """
        one, many = _UNITS[self.basis]
        before, after = self.units
        count = counted(after, one, many) if before == after else f"{before} and {counted(after, one, many)}"
        return f"{count}, within the runs" if self.within else count


Both = tuple[Row, Row]


def change(metric: Metric, both: Both, *, alike: bool, doubt: str) -> Change:
    """`alike`: batches of one name are of the same prompts in both."""
    match metric.name:
        case "tokens_per_s":
            found = _speed(metric, both, alike)
        case "load":
            found = _load(metric, both)
        case "peak_memory":
            found = _apart(metric, both, (both[0].samples.peaks, both[1].samples.peaks))
        case name:
            found = _time(metric, name, both)
    return replace(found, doubt=doubt or found.doubt)


def _speed(metric: Metric, both: Both, alike: bool) -> Change:
    before, after = both
    values = _value(before.rate), _value(after.rate)
    starts = before.starts, after.starts
    if min(map(len, starts)) >= LEAST_STARTS:
        return _of_starts(metric, both, starts, values)
    basis: Basis = "repeats" if "repeats" in (before.speed.unit, after.speed.unit) else "batches"
    old, new = (getattr(row.speed, basis) for row in both)
    # Repeats of two runs share nothing but their number.
    same = alike and basis == "batches" and before.speed.prompts == after.speed.prompts
    return _change(metric, both, values, stats.ratio(new, old, same), basis, (len(old), len(new)))


def _time(metric: Metric, name: str, both: Both) -> Change:
    old, new = (getattr(row, name).median for row in both)
    values = _value(old), _value(new)
    starts = tuple(row.samples.times.get(name, {}) for row in both)
    if min(map(len, starts)) >= LEAST_STARTS:
        return _of_starts(metric, both, (starts[0], starts[1]), values)
    basis: Basis = "repeats" if "repeats" in (both[0].speed.unit, both[1].speed.unit) else "batches"
    units = old.units if old else 0, new.units if new else 0
    return _change(metric, both, values, stats.over(new, old), basis, units)


def _load(metric: Metric, both: Both) -> Change:
    """Of starts alike, cold or warm: of the kind of which both have most."""
    before, after = (row.samples.loads for row in both)
    kinds = [kind for kind in before if kind in after]
    if not kinds:
        found = _apart(metric, both, ({}, {}))
        cold = before and after
        return replace(found, doubt="one started cold, the other warm" if cold else "")
    kind = max(kinds, key=lambda kind: min(len(before[kind]), len(after[kind])))
    named = replace(metric, title=f"{metric.title}, {kind}" if kind else metric.title)
    return _apart(named, both, (before[kind], after[kind]))


def _apart(metric: Metric, both: Both, starts: tuple[stats.Pairs, stats.Pairs]) -> Change:
    old, new = (stats.rate(*stats.columns(one)) if one else None for one in starts)
    return _of_starts(metric, both, starts, (_value(old), _value(new)))


def _value(found: stats.Estimate | None) -> float | None:
    return None if found is None else found.value


_Values = tuple[float | None, float | None]


def _of_starts(metric: Metric, both: Both, starts: tuple[stats.Pairs, stats.Pairs], values: _Values) -> Change:
    """Its value is the rows' own: a measurement for drift tells how starts vary, and is in no row's figures."""
    found = stats.ratio_apart(starts[1], starts[0])
    before, after = values
    if found and before and after:
        found = stats.Ratio(after / before, False, found.find_error)
    return _change(metric, both, values, found, "starts", (len(starts[0]), len(starts[1])))


def _change(
    metric: Metric, both: Both, values: _Values, ratio: stats.Ratio | None, basis: Basis, units: tuple[int, int]
) -> Change:
    return Change(metric, label(both[0]), *values, ratio, basis, units, both[0].confidence)


def workers_of(metric: Metric, both: Both) -> Any:
    """What is the same for all cells that the same workers served; None for what each cell has of its own."""
    if not metric.of_workers:
        return None
    served = (frozenset(name for one in row.samples.loads.values() for name in one) for row in both)
    return metric.name, both[0].method, *served


def of_method(found: Change, row: Row, cells: int) -> Change:
    """Said once of all cells that its workers served."""
    return replace(found, subject=f"{clean(row.method)}, {counted(cells, 'cell')}") if cells > 1 else found
