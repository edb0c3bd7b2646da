"""Two runs side by side: everything that differs between them first, then the cells that both have.

A cell is a method at its settings. Ratios are of output tokens/s (to score: of all tokens), the second run's by the
first's; no threshold is applied to them. A cell that either run marks, or that did not end well there, says so.

Two runs are told apart only by what varies from one start of a worker to the next, so where both have measured a cell
in two starts or more the interval is over these. Any other says how steady each run was in itself, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import json, to_builtins

from orchestrator.view import stats
from orchestrator.view.compare import ratio_values
from orchestrator.view.marks import MARK
from orchestrator.view.markup import cell, grid
from orchestrator.view.origins import differences
from orchestrator.view.results import label
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.teardown import moment
from orchestrator.view.unpaired import Difference, same_place, settings, unlike, unlike_text
from orchestrator.view.unrest import WARNING
from orchestrator.view.wording import counted, or_unknown, rate_text

#: What an interval is over.
Basis = Literal["starts", "repeats", "batches"]
LEAST_STARTS = 2
SIDES = ("A", "B")
STARTS = """\
Over starts: the interval holds what differs from one start of a worker to the next in these runs (a cell measured once
more for drift is one of them), not what may differ between days and machines."""
WITHIN = """\
Within the runs: the interval is over repeats or batches that shared a worker. It holds nothing of what differs from one
run to the next, so two equal runs may well lie outside of it. For an interval between runs, give both of them two
repeats or more with `order: interleaved` or `random`, or `drift: true`."""


@dataclass(frozen=True)
class Pair:
    """A cell of both runs. `ratio`: None where one of them has no speed. `units`: how many the interval is over."""

    before: Row
    after: Row
    ratio: stats.Ratio | None
    basis: Basis
    units: tuple[int, int]

    @property
    def within(self) -> bool:
        """The interval says nothing of another run."""
        return self.basis != "starts"

    @property
    def interval(self) -> stats.Interval | None:
        return self.ratio.interval(self.before.confidence) if self.ratio else None

    @property
    def split(self) -> bool:
        """One of the two ran in smaller batches than asked."""
        return bool(self.before.split or self.after.split)

    @property
    def distinguishable(self) -> bool | None:
        """None: nothing tells."""
        if self.within or self.split or not self.ratio:
            return None
        return self.ratio.distinguishable(self.before.confidence)


@dataclass(frozen=True)
class Side:
    """One of the runs. `began_at`: seconds since 1970."""

    name: str
    path: str
    began_at: float | None


@dataclass(frozen=True)
class Comparison:
    """`apart`: cells of both that are not compared, with what differs in them. `only`: cells that one of the runs
    lacks, with the side that has them."""

    sides: tuple[Side, Side]
    differences: list[Difference]
    pairs: list[Pair]
    apart: list[tuple[str, list[Difference]]]
    only: list[tuple[str, Side]]


def compare(before: Path, after: Path) -> Comparison:
    """Raises JournalError if one of them is no run, or damaged."""
    views = RunView.load(before), RunView.load(after)
    cells = [{_key(view, row): row for row in rows(view)} for view in views]
    lacking = [{k: r for k, r in own.items() if k not in other} for own, other in (cells, reversed(cells))]
    apart = same_place(views, lacking)
    first, second = (_side(name, view) for name, view in zip(SIDES, views, strict=True))
    return Comparison(
        sides=(first, second),
        differences=_differences(views),
        pairs=[_pair(views, (cells[0][key], cells[1][key])) for key in cells[0] if key in cells[1]],
        apart=[(label(both[0]), unlike(views, both)) for both in apart],
        only=[
            (label(row), side)
            for number, (side, own) in enumerate(zip((first, second), lacking, strict=True))
            for row in own.values()
            if all(row is not both[number] for both in apart)
        ],
    )


def _side(name: str, view: RunView) -> Side:
    return Side(name, str(view.run_dir), view.starts[0].at if view.starts else None)


def _differences(views: tuple[RunView, RunView]) -> list[Difference]:
    first, second = ((view.origins[0] if view.origins else None) for view in views)
    return differences((views[0].plan, views[1].plan), (first, second))


def _key(view: RunView, row: Row) -> tuple[str, bytes]:
    """By the method's name and all call-time and load-time settings; what its method means may have changed, which
    then stands among the differences."""
    return row.method, json.encode(settings(view, row), order="sorted")


def _pair(views: tuple[RunView, RunView], both: tuple[Row, Row]) -> Pair:
    before, after = both
    first, second = (row.starts for row in both)
    if min(len(first), len(second)) >= LEAST_STARTS:
        found, plain = stats.ratio_apart(second, first), _of_rows(before, after)
        if found and plain:  # a measurement for drift tells how starts vary, and is in no row's figures
            found = stats.Ratio(plain, False, found.find_error)
        return Pair(before, after, found, "starts", (len(first), len(second)))
    basis: Basis = "repeats" if "repeats" in (before.speed.unit, after.speed.unit) else "batches"
    old, new = (getattr(row.speed, basis) for row in both)
    return Pair(before, after, stats.ratio(new, old, _alike(views, both, basis)), basis, (len(old), len(new)))


def _of_rows(before: Row, after: Row) -> float | None:
    return after.rate.value / before.rate.value if before.rate and after.rate and before.rate.value else None


def _alike(views: tuple[RunView, RunView], both: tuple[Row, Row], basis: Basis) -> bool:
    """Batches of the same prompts. Repeats of two runs share nothing but their number."""
    same = views[0].plan.prompts_digest == views[1].plan.prompts_digest
    return basis == "batches" and same and both[0].speed.prompts == both[1].speed.prompts


def markdown(found: Comparison) -> Iterator[str]:
    yield "# Two runs: B beside A"
    yield ""
    for side in found.sides:
        yield f"- {side.name}: {cell(side.path)}, began {or_unknown(side.began_at, moment)}"
    yield ""
    yield "## What differs"
    yield ""
    if found.differences:
        yield from grid(["what", *SIDES], found.differences)
    else:
        yield "Nothing that is recorded."
    yield ""
    yield "## Tokens/s"
    yield ""
    yield "Generated tokens, or where the task is to score all of them."
    yield ""
    head = ["cell", *SIDES, "B ÷ A", "interval", "interval over", ""]
    yield from grid(head, [_line(pair) for pair in found.pairs])
    yield ""
    yield from _explained(found.pairs)
    yield from (f"- {cell(line)}" for pair in found.pairs for line in _doubts(pair))
    yield from (f"- {cell(name)}: in both, but not compared: {cell(unlike_text(why))}" for name, why in found.apart)
    yield from (f"- {cell(name)} is in {side.name} only" for name, side in found.only)


def _explained(pairs: list[Pair]) -> Iterator[str]:
    kinds = {pair.within for pair in pairs if pair.interval}
    told = [text for within, text in ((False, STARTS), (True, WITHIN)) if within in kinds]
    yield from (line for text in told for line in (text, ""))


def _doubts(pair: Pair) -> Iterator[str]:
    for side, row in zip(SIDES, (pair.before, pair.after), strict=True):
        if row.marks:
            yield f"{MARK} {label(row)}, {side}: not to be compared as it is: {'; '.join(row.marks)}"
        if row.warnings:
            yield f"{WARNING} {label(row)}, {side}: {'; '.join(row.warnings)}"
        if row.outcome != "ok":
            yield f"{label(row)}, {side}: {row.outcome_text}"


def _line(pair: Pair) -> list[str]:
    both = (pair.before, pair.after)
    marked = f"{label(pair.before)} {MARK}" if any(row.marks for row in both) else label(pair.before)
    return [
        marked,
        *(or_unknown(row.rate, lambda one: rate_text(one.value)) for row in both),
        or_unknown(pair.ratio, lambda one: rate_text(one.value)),
        or_unknown(pair.interval, lambda one: f"{rate_text(one.low)} to {rate_text(one.high)}"),
        or_unknown(pair.interval, lambda _: _over(pair)),
        _verdict(pair),
    ]


def _over(pair: Pair) -> str:
    """ "3 and 4 starts", "6 batches, within the runs" """
    before, after = pair.units
    one, many = {"starts": ("start", ""), "repeats": ("repeat", ""), "batches": ("batch", "batches")}[pair.basis]
    count = counted(after, one, many) if before == after else f"{before} and {counted(after, one, many)}"
    return f"{count}, within the runs" if pair.within else count


def _verdict(pair: Pair) -> str:
    if pair.interval is None:
        return "too few units"
    if pair.split:
        return "can't tell: one ran in smaller batches than asked"
    told = {True: "distinguishable", False: "not distinguishable", None: "can't tell: within the runs only"}
    return told[pair.distinguishable]


def as_json(found: Comparison) -> dict[str, Any]:
    before, after = found.sides
    return {
        "before": before.path,
        "after": after.path,
        "before_began_at": before.began_at,
        "after_began_at": after.began_at,
        "differences": _plain(found.differences),
        "cells": [_cell(pair) for pair in found.pairs],
        "apart": [{"cell": name, "differences": _plain(why)} for name, why in found.apart],
        "only": [{"cell": name, "run": side.path, "side": side.name} for name, side in found.only],
    }


def _plain(found: Sequence[Difference]) -> list[dict[str, str]]:
    return [{"what": what, "before": old, "after": new} for what, old, new in found]


def _cell(pair: Pair) -> dict[str, Any]:
    before, after = pair.before, pair.after
    return {
        "method": before.method,
        "settings": to_builtins(before.settings),
        "before_tokens_per_s": before.rate and before.rate.value,
        "after_tokens_per_s": after.rate and after.rate.value,
        "before_outcome": before.outcome,
        "after_outcome": after.outcome,
        "before_marks": list(before.marks),
        "after_marks": list(after.marks),
        "before_warnings": list(before.warnings),
        "after_warnings": list(after.warnings),
        **ratio_values(pair.ratio, before.confidence),
        "distinguishable": pair.distinguishable,
        "interval_over": pair.basis,
        "interval_units": list(pair.units),
        "within_runs_only": pair.within,
    }
