"""What takes reading all records of a run: its table, its plots and a summary in words.

Bounded like the Markdown: of a long run the first rows, with what the others came to in words.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from orchestrator.page.drawing import data_of
from orchestrator.page.plots import absent, plots
from orchestrator.page.theme import themed
from orchestrator.report import table
from orchestrator.view import words
from orchestrator.view.markdown import SHOWN
from orchestrator.view.results import legend
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.wording import are_figures

#: Below the table, of each kind.
MOST_LINES: Final = 30


def prepare() -> None:
    """Imports what is imported when it is needed first, so that it is charged to no run."""
    importlib.import_module("orchestrator.view.resample")
    importlib.import_module("scipy.special")


def figures(view: RunView) -> dict[str, Any]:
    """Plain JSON values. Raises JournalError if records are damaged.

    as_of     when the last event was written that is in it
    table     columns of cells as the terminal shows them, with what their signs mean, and what is not shown
    plots     Vega-Lite specifications with CSS variables for colours
    absent    why others are not there, a sentence each
    """
    found = rows(view)
    return {
        "state": view.state,
        "as_of": view.last_at,
        "summary": words.summary(view, found),
        "table": _table(found),
        **_plots(view, found[:SHOWN]),
    }


def _table(found: Sequence[Row]) -> dict[str, Any]:
    shown = table(found)
    causes = {row.cause: f"{row.shown_method}: {row.cause}" for row in shown.rows if row.cause}
    return {
        "columns": [{"name": name, "cells": cells, "number": are_figures(cells)} for name, cells in shown.columns],
        "legend": list(_first(legend(shown.rows))),
        "causes": list(_first(iter(causes.values()))),
        "left_out": list(shown.beside),
    }


def _first(lines: Iterator[str]) -> Iterator[str]:
    yield from islice(lines, MOST_LINES)
    if more := sum(1 for _ in lines):
        yield f"and {more} more like these: the whole report has them"


def _plots(view: RunView, found: Sequence[Row]) -> dict[str, Any]:
    data = data_of(view, found)
    return {
        "plots": json.loads(themed(json.dumps(list(map(asdict, plots(data)))))),
        "absent": list(absent(data).values()),
    }
