"""Whether each method says what the reference says, and what explains it where it does not. Pure.

Comparison(plan, …)   goes through a run row by row: one `Agreement` per method and cell, all its repeats together,
                      and how each method agrees with itself over repeats and over batch sizes. Of the reference it
                      needs one point at a time, of all else one record
agreements(plan, …)   the same of records in any order, with all of the reference's at hand
base_points(plan)     the points whose records that needs at hand
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.judge.consistency import Consistency, Selves
from orchestrator.judge.distance import Distance, distance
from orchestrator.judge.reference import bases, cell_of, is_float32, reference_method
from orchestrator.judge.told import Told, told
from orchestrator.judge.verdict import BAD, Tally, Verdict, judge
from orchestrator.plan import Plan, SweepPoint
from orchestrator.record.output import Record

#: `agreement_gap` is what rounding may do to one side. One that is not float32 moves the gap as much on its own.
BOTH_ROUND: Final = 2
#: exp of more is no number any more.
MOST_NATS: Final = 700.0


@dataclass(frozen=True)
class Agreement:
    """One method in one cell, its repeats together.

    base         the reference's point; None if there is none that does the same work
    base_repeat  which repeat that is, from 0: a later one where the first has fewer outputs
    own          that is one of this very row, whose other repeats are held against it
    outputs      outputs compared: a prompt counts once for each repeat
    same         of these; scores count as the same where they differ by rounding only
    tied         outputs that differ by no more than `measurement.agreement_gap`, twice that where neither is float32
    undecided    outputs that differ by an amount that the log-probabilities do not tell
    failed       records that are errors, on this side or the reference's
    prefix       mean share of tokens before the first difference; None for scores
    differences  the outputs that differ, what is furthest apart first
    kl_mean      over all positions compared
    perplexity   exp(mean -log p) of the given continuations, this method's and the reference's, over the same tokens
    """

    method: str
    points: tuple[str, ...]
    verdict: Verdict
    why: str
    base: str | None = None
    base_repeat: int | None = None
    own: bool = False
    outputs: int = 0
    same: int = 0
    tied: int = 0
    undecided: int = 0
    failed: int = 0
    degenerate: int = 0
    prefix: float | None = None
    differences: Sequence[Distance] = ()
    kl_mean: float | None = None
    kl_max: float | None = None
    delta_max: float | None = None
    perplexity: float | None = None
    reference_perplexity: float | None = None

    @property
    def bad(self) -> bool:
        """Its speed means nothing."""
        return self.verdict in BAD

    @property
    def first(self) -> int | None:
        """The earliest position at which an output differs; None for scores, whose tokens are given."""
        return min((d.at for d in self.differences if d.at is not None and d.kind != "scored"), default=None)

    @property
    def gap_max(self) -> float | None:
        return max((d.gap for d in self.differences if d.gap is not None), default=None)

    @property
    def perplexity_ratio(self) -> float | None:
        if self.perplexity is None or not self.reference_perplexity:
            return None
        return self.perplexity / self.reference_perplexity


@dataclass(frozen=True)
class Agreements:
    """`reference`: the method that the others are held against."""

    reference: str | None
    rows: tuple[Agreement, ...] = ()
    consistency: tuple[Consistency, ...] = ()


def base_points(plan: Plan, against: Plan | None = None, outputs: Mapping[str, int] | None = None) -> set[str]:
    """Points of the reference whose records are needed at hand; of `against`, another run's plan, if given.
    `outputs`: how many each point of the reference's run has, see `bases`."""
    return {base.id for base in bases(plan.points, against or plan, outputs).values()}


def agreements(
    plan: Plan,
    references: Iterable[Record],
    records: Iterable[Record],
    *,
    against: Plan | None = None,
    outputs: Mapping[str, int] | None = None,
) -> Agreements:
    """`references` are the records of `base_points`, which was given the same `outputs`; `records` all of the run, both
    in any order. With `against` the reference is that other run's, its own points included."""
    found = Comparison(plan, against=against, outputs=outputs)
    found.hold(references)
    for place, record in enumerate(records):
        found.add(record, place)
    return found.result(found.row(key) for key in found.rows)


#: A method and its cell.
RowKey = tuple[Any, ...]
#: Where the differences of a row are kept: a run may have many.
Keep = Callable[[Iterable[Distance]], Sequence[Distance]]


class Comparison:
    """`base_of`: point → the reference's point that it is held against. `rows`: in the order of the sweep file, each
    with its points."""

    def __init__(self, plan: Plan, *, against: Plan | None = None, outputs: Mapping[str, int] | None = None) -> None:
        self.base_of = bases(plan.points, against or plan, outputs)
        self._own = against is None
        self._reference = against or plan
        self._row_of = {point.id: _row(point) for point in _measured(plan)}
        self._points = {point.id: point for point in _measured(plan)}
        self._tallies = _tallies(plan, self.base_of, self._reference, self._row_of)
        self._selves = Selves(self._points.values())
        self._held: dict[tuple[str, str], Told] = {}

    @property
    def rows(self) -> dict[RowKey, list[SweepPoint]]:
        return {key: tally.points for key, tally in self._tallies.items()}

    def hold(self, references: Iterable[Record]) -> None:
        """What is compared from here on is held against these."""
        self._held = {(record.point, record.prompt_id): told(record) for record in references}

    def add(self, record: Record, place: int) -> None:
        """`place` is in the order of the file."""
        point = self._points.get(record.point)
        if point is None:
            return
        said = told(record)
        self._selves.add(point, said, place)
        base = self.base_of.get(point.id)
        if base is not None and not (self._own and base.id == point.id):
            tally = self._tallies[self._row_of[point.id]]
            _compare(tally, self._held.get((base.id, said.prompt_id)), said, point)

    def row(self, key: RowKey, keep: Keep = tuple) -> Agreement:
        """Once all its records were added. What they added up to is given away, its differences to `keep`."""
        tally = self._tallies[key]
        found = _agreement(tally, keep)
        self._tallies[key] = Tally(tally.most, points=tally.points)
        self._selves.close(point.id for point in tally.points)
        return found

    def result(self, rows: Iterable[Agreement]) -> Agreements:
        told = tuple(rows)
        return Agreements(reference_method(self._reference), told, tuple(self._selves.lines()))


def _tallies(
    plan: Plan, of_point: Mapping[str, SweepPoint], reference: Plan, row_of: Mapping[str, RowKey]
) -> dict[RowKey, Tally]:
    found: dict[RowKey, Tally] = {}
    for point in _measured(plan):
        key = row_of[point.id]
        if key not in found:
            base = of_point.get(point.id)
            exact = is_float32(point.config, plan.model.dtype) or (
                base is not None and is_float32(base.config, reference.model.dtype)
            )
            most = plan.measurement.agreement_gap * (1 if exact else BOTH_ROUND)
            own = reference is plan and base is not None and row_of.get(base.id) == key
            found[key] = Tally(most, base=base, own=own)
        found[key].points.append(point)
    return found


def _measured(plan: Plan) -> list[SweepPoint]:
    """Without the cell that is measured once more for drift: it is no repeat of any row."""
    return [point for point in plan.listed if point.role == "measure"]


def _row(point: SweepPoint) -> tuple[Any, ...]:
    return (point.method, *cell_of(point.config))


def _compare(tally: Tally, reference: Told | None, said: Told, point: SweepPoint) -> None:
    if said.failed:
        tally.fail(said.failed)
    elif reference is None or reference.failed:
        tally.fail("the reference has no output")
    else:
        stop = () if point.config.ignore_eos else point.config.stop_token_ids
        tally.add(reference, said, distance(reference, said, stop))


def _agreement(tally: Tally, keep: Keep) -> Agreement:
    verdict, why = judge(tally)
    return Agreement(
        method=tally.points[0].method,
        points=tuple(point.id for point in tally.points),
        verdict=verdict,
        why=why,
        base=None if tally.base is None else tally.base.id,
        base_repeat=None if tally.base is None else tally.base.repeat,
        own=tally.own,
        outputs=tally.outputs,
        same=tally.same,
        tied=tally.tied,
        undecided=tally.undecided,
        failed=tally.failed,
        degenerate=tally.degenerate,
        prefix=tally.prefixes / tally.outputs if tally.outputs and not tally.scored else None,
        differences=keep(sorted(tally.apart, key=_nearness)),
        kl_mean=tally.kl_sum / tally.positions if tally.positions else None,
        kl_max=tally.kl_max,
        delta_max=tally.delta_max,
        perplexity=_perplexity(tally.nll, tally.scored),
        reference_perplexity=_perplexity(tally.reference_nll, tally.scored),
    )


def _nearness(found: Distance) -> tuple[float, int]:
    """The furthest first: what no tie explains, then by gap or difference, then the earliest."""
    size = found.delta_max if found.kind == "scored" else found.gap
    known = -(0.0 if size is None else size)
    return (-math.inf if found.kind in ("cut short", "runs on") else known, found.at or 0)


def _perplexity(nll: float, tokens: int) -> float | None:
    """exp of the mean negative log-probability of a token (Jelinek, Mercer, Bahl and Baker, 1977); None without
    tokens, and where it is past all numbers: engines call a token impossible by the least float there is."""
    mean = nll / tokens if tokens else math.inf
    return math.exp(mean) if mean < MOST_NATS else None
