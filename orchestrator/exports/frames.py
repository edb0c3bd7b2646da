"""Runs as data frames, for notebooks: the columns and types of the Parquet export, without a file in between.

    from orchestrator.exports import frames

    frames.records("runs/mine")                               # pandas; one line for each output
    frames.rows(["runs/mine", "runs/later"], engine="polars") # several runs: the column `run` tells them apart

Needs the extra `data`, and pandas or polars, which are imported when they are asked for. All of a frame is in memory.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import InputError, Problem
from orchestrator.exports import parquet
from orchestrator.exports.extras import needed
from orchestrator.exports.source import Source
from orchestrator.exports.tables import TABLES, lines_of
from orchestrator.exports.values import lost_text

Engine = Literal["pandas", "polars"]
Runs = str | PathLike[str] | Sequence[str | PathLike[str]]


def records(runs: Runs, engine: Engine = "pandas") -> Any:
    """One line for each output. Raises JournalError if a run is damaged, InputError where a library is missing."""
    return _frame("records", runs, engine)


def rows(runs: Runs, engine: Engine = "pandas") -> Any:
    """The figures of the report, one line for each method at one combination of settings. Raises as `records`."""
    return _frame("rows", runs, engine)


def batches(runs: Runs, engine: Engine = "pandas") -> Any:
    """One line for each batch. Raises as `records`."""
    return _frame("batches", runs, engine)


def events(runs: Runs, engine: Engine = "pandas") -> Any:
    """The journal, one line for each event. Raises as `records`."""
    return _frame("events", runs, engine)


def _frame(what: str, runs: Runs, engine: Engine) -> Any:
    if engine not in ("pandas", "polars"):
        raise InputError([Problem("", "engine", f"{engine!r} is none", "one of pandas, polars")])
    library = needed(engine, "the frame", of=engine)
    found = arrow(what, runs)
    return library.from_arrow(found) if engine == "polars" else found.to_pandas(types_mapper=_nullable(library).get)


def arrow(what: str, runs: Runs) -> Any:
    """The same as a pyarrow.Table. `what`: a name in `TABLES`."""
    paths = [runs] if isinstance(runs, (str, PathLike)) else list(runs)
    table, pa = TABLES[what], parquet.arrow()
    schema = parquet.schema(table, {})
    lost = Counter[str]()
    lines = lines_of(table, (Source.of(Path(path)) for path in paths), lost)
    # Each group has a dictionary of its own.
    found = pa.Table.from_batches(parquet.groups(table, lines, schema), schema).unify_dictionaries()
    if lost:
        warnings.warn(lost_text(lost), stacklevel=4)
    return found


def _nullable(pandas: Any) -> dict[Any, Any]:
    """Whole numbers and flags stay what they are though some are null."""
    pa = parquet.arrow()
    return {pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype(), pa.string(): pandas.StringDtype()}
