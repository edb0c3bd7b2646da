"""Who is the fastest at each combination of settings. Pure.

Only rows that may be compared take part: unmarked ones that are through, have a speed and did not fail. One is called
the fastest where its interval against every other row there tells the two apart; that is a test of all of them
together, at the level of each (Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics 1982).
Where several can't be told from the one with the highest estimate, they lead together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.view import stats
from orchestrator.view.compare import between
from orchestrator.view.pareto import ENDED_BADLY
from orchestrator.view.summary import Row
from orchestrator.view.wording import settings_text


@dataclass(frozen=True)
class Lead:
    """At one combination of settings, which is `place`. Tokens/s.

    best     the method with the highest estimate, `rate` its own
    equal    methods that can't be told from it
    untold   methods of which nothing tells: too few units for an interval
    next     the fastest of all others; `ratio`, `interval`: the best one's speed by that one's
    """

    place: str
    best: str
    rate: float
    equal: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    next: str | None = None
    ratio: float | None = None
    interval: stats.Interval | None = None

    @property
    def alone(self) -> bool:
        """It is the fastest of several."""
        return self.next is not None and not self.equal and not self.untold


def place_of(row: Row) -> str:
    """ "batch_size=4": what rows are told apart by, beside their method"""
    return settings_text(row.settings)


def comparable(row: Row) -> bool:
    """Its speed may stand beside another's."""
    return row.outcome not in ENDED_BADLY and not row.marks and row.rate is not None and row.rate.value > 0


def leads(rows: Sequence[Row], places: Iterable[Sequence[int]]) -> Iterator[Lead]:
    """`places`: of each combination of settings, which rows are there and may be compared. The rows of one are in
    memory at a time."""
    return (_lead([rows[number] for number in numbers]) for numbers in places if numbers)


def _lead(here: Sequence[Row]) -> Lead:
    best, *others = sorted(here, key=_speed, reverse=True)
    ratios = [(row, between(best.speed, row.speed)) for row in others]
    told = [(row, ratio and ratio.distinguishable(best.confidence)) for row, ratio in ratios]
    runner, ratio = ratios[0] if ratios else (None, None)
    return Lead(
        place_of(best),
        best.method,
        _speed(best),
        equal=tuple(row.method for row, apart in told if apart is False),
        untold=tuple(row.method for row, apart in told if apart is None),
        next=None if runner is None else runner.method,
        ratio=ratio.value if ratio else None,
        interval=ratio.interval(best.confidence) if ratio else None,
    )


def _speed(row: Row) -> float:
    return row.rate.value if row.rate else 0.0
