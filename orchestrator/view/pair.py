"""Two runs side by side: everything that differs between them first, then the cells that both have.

A cell is a method at its settings. Ratios are of output tokens/s (to score: of all tokens), the second run's by the
first's, with the intervals of `stats.ratio`; no threshold is applied to them. A cell that either run marks, or that
did not end well there, says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import json, to_builtins

from orchestrator.view import stats
from orchestrator.view.compare import ratio
from orchestrator.view.marks import MARK
from orchestrator.view.markup import cell, grid
from orchestrator.view.origins import differences
from orchestrator.view.results import label
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row, rows
from orchestrator.view.wording import or_unknown, rate_text

Difference = tuple[str, str, str]


@dataclass(frozen=True)
class Pair:
    """A cell of both runs. `ratio`: None where one of them has no speed."""

    before: Row
    after: Row
    ratio: stats.Ratio | None


@dataclass(frozen=True)
class Comparison:
    """`only`: cells that one of the runs lacks, with the name of the run that has them."""

    names: tuple[str, str]
    differences: list[Difference]
    pairs: list[Pair]
    only: list[tuple[str, str]]


def compare(before: Path, after: Path) -> Comparison:
    """Raises JournalError if one of them is no run, or damaged."""
    views = RunView.load(before), RunView.load(after)
    cells = [{_key(view, row): row for row in rows(view)} for view in views]
    both = [key for key in cells[0] if key in cells[1]]
    names = (str(before), str(after))
    return Comparison(
        names=names,
        differences=_differences(views),
        pairs=[_pair(cells[0][key], cells[1][key]) for key in both],
        only=[
            (label(row), name)
            for name, own, other in zip(names, cells, reversed(cells), strict=True)
            for key, row in own.items()
            if key not in other
        ],
    )


def _differences(views: tuple[RunView, RunView]) -> list[Difference]:
    first, second = ((view.origins[0] if view.origins else None) for view in views)
    return differences((views[0].plan, views[1].plan), (first, second))


def _key(view: RunView, row: Row) -> tuple[str, bytes]:
    """By the method's name and all call-time and load-time settings; what its method means may have changed, which
    then stands among the differences."""
    config = to_builtins(view.points[row.points[0]].config)
    settings = {name: value for name, value in config.items() if name not in ("method", "model_path", "stop_token_ids")}
    return row.method, json.encode(settings, order="sorted")


def _pair(before: Row, after: Row) -> Pair:
    by_repeat = "repeats" in (before.speed.unit, after.speed.unit)
    return Pair(before, after, ratio(after.speed, before.speed, "repeats" if by_repeat else "batches"))


def markdown(found: Comparison) -> Iterator[str]:
    yield f"# {cell(found.names[1])} beside {cell(found.names[0])}"
    yield ""
    yield "## What differs"
    yield ""
    if found.differences:
        yield from grid(["what", "before", "after"], found.differences)
    else:
        yield "Nothing that is recorded."
    yield ""
    yield "## Tokens/s"
    yield ""
    yield "Generated tokens, or where the task is to score all of them."
    yield ""
    yield from grid(["cell", "before", "after", "ratio", "interval", ""], [_line(pair) for pair in found.pairs])
    yield from (f"- {cell(line)}" for pair in found.pairs for line in _doubts(pair))
    yield from (f"- {cell(name)} is in {cell(run)} only" for name, run in found.only)


def _doubts(pair: Pair) -> Iterator[str]:
    for when, row in (("before", pair.before), ("after", pair.after)):
        if row.marks:
            yield f"{MARK} {label(row)}, {when}: not to be compared as it is: {'; '.join(row.marks)}"
        if row.outcome != "ok":
            yield f"{label(row)}, {when}: {row.outcome_text}"


def _rate(row: Row) -> float | None:
    found = row.speed.total if row.scores else row.speed.output
    return found.value if found else None


def _line(pair: Pair) -> list[str]:
    speeds = [or_unknown(_rate(row), rate_text) for row in (pair.before, pair.after)]
    interval = pair.ratio.interval(pair.before.confidence) if pair.ratio else None
    marked = f"{label(pair.before)} {MARK}" if pair.before.marks or pair.after.marks else label(pair.before)
    return [
        marked,
        *speeds,
        or_unknown(pair.ratio, lambda one: rate_text(one.value)),
        or_unknown(interval, lambda one: f"{rate_text(one.low)} to {rate_text(one.high)}"),
        _verdict(pair),
    ]


def _verdict(pair: Pair) -> str:
    told = pair.ratio.distinguishable(pair.before.confidence) if pair.ratio else None
    return {True: "", False: "not distinguishable", None: "too few units"}[told]


def as_json(found: Comparison) -> dict[str, Any]:
    return {
        "before": found.names[0],
        "after": found.names[1],
        "differences": [{"what": what, "before": old, "after": new} for what, old, new in found.differences],
        "cells": [_cell(pair) for pair in found.pairs],
        "only": [{"cell": name, "run": run} for name, run in found.only],
    }


def _cell(pair: Pair) -> dict[str, Any]:
    interval = pair.ratio.interval(pair.before.confidence) if pair.ratio else None
    return {
        "method": pair.before.method,
        "settings": to_builtins(pair.before.settings),
        "before_tokens_per_s": _rate(pair.before),
        "after_tokens_per_s": _rate(pair.after),
        "before_outcome": pair.before.outcome,
        "after_outcome": pair.after.outcome,
        "before_marks": list(pair.before.marks),
        "after_marks": list(pair.after.marks),
        "ratio": pair.ratio.value if pair.ratio else None,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "distinguishable": pair.ratio.distinguishable(pair.before.confidence) if pair.ratio else None,
    }
