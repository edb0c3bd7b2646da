"""The figures of a run for a terminal of any width. No figure is ever cut: columns go first, then the grid itself."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator.events import is_standby
from orchestrator.view import answered
from orchestrator.view.answered import NAME as ANSWERS
from orchestrator.view.compare import IS_REFERENCE
from orchestrator.view.marks import COMPANY, MARK
from orchestrator.view.stats import LEAST_UNITS
from orchestrator.view.summary import Row
from orchestrator.view.unrest import WARNING
from orchestrator.view.wording import (
    UNKNOWN,
    bytes_text,
    clean,
    count_text,
    listed,
    or_unknown,
    percent_text,
    rate_text,
    seconds_text,
    setting_text,
    settings_text,
)

#: What a narrow terminal goes without, the first one first.
DROPPED = ("given back", "peak", "load", "TPOT p50")
#: Where a cell may be broken: (at, into).
_BREAKS = {"outputs": (", ", ",\n"), ANSWERS: (" (", "\n("), "outcome": (" (", "\n("), "load": (", ", ",\n")}
_LEFT = ("method", "outcome")
_OUTCOME_STYLE = {"ok": "green", "failed": "red", "incomplete": "red", "partial": "yellow"}
#: Only to ask how wide a table would like to be.
_ANY_WIDTH = 100_000
_NO_BREAK = "\u00a0"
_NARROWEST = 10
_LISTED_COMPANY = 8
#: Of the rows that one cause failed.
_LISTED_FAILED = 8


@dataclass(frozen=True)
class Results:
    """One line per row, below them what the signs in them mean, and one line per cause of a failure. Fits itself
    into the width it is given.

    beside  what is said of rows that are not shown, and of all, a sentence each
    """

    rows: Sequence[Row]
    beside: Sequence[str] = ()

    @property
    def columns(self) -> list[tuple[str, tuple[str, ...]]]:
        """Name and cells of each, for who shows them elsewhere."""
        return [(column.name, column.cells) for column in _columns(self.rows)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grids = (_grid(self.rows, columns) for columns in _layouts(_columns(self.rows)))
        fitting = (grid for grid in grids if _width(grid, console, options) <= options.max_width)
        grid = next(fitting, None)
        yield from _stacked(self.rows, options.max_width) if grid is None else [grid]
        for line in legend(self.rows):
            yield Text(line, style="dim", overflow="fold")
        for line in (*causes(self.rows), *self.beside):
            yield Text(line, overflow="fold")


@dataclass(frozen=True)
class _Column:
    name: str
    cells: tuple[str, ...]

    def broken(self) -> _Column:
        """The same on more and shorter lines."""
        at, into = _BREAKS.get(self.name, ("\n", "\n"))
        name = re.sub(r"_(?=.)", "_\n", self.name.replace(" ", "\n"))
        return _Column(name, tuple(cell.replace(at, into) for cell in self.cells))


def _columns(rows: Sequence[Row]) -> list[_Column]:
    names = list(rows[0].settings) if rows else []
    texts = [_texts(row) for row in rows]
    settings = [_Column(name, tuple(setting_text(row.settings[name]) for row in rows)) for name in names]
    idle = {_VERSUS: not compared(rows), ANSWERS: not any(row.accuracy for row in rows)}
    shown = (name for name in _NAMES if not idle.get(name))
    called = {_SPEED: speed_name(rows)}
    method, *figures = (_Column(called.get(name, name), tuple(text[name] for text in texts)) for name in shown)
    return [method, *settings, *figures]


def _layouts(columns: Sequence[_Column]) -> Iterator[Sequence[_Column]]:
    """From the one with all there is to the narrowest."""
    yield columns
    for count in range(len(DROPPED) + 1):
        yield [column.broken() for column in columns if column.name not in DROPPED[:count]]


def _grid(rows: Sequence[Row], columns: Sequence[_Column]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    settings = {*rows[0].settings} if rows else set()
    for column in columns:
        left = column.name in _LEFT or column.name.replace("\n", "") in settings
        grid.add_column(Text(column.name), justify="left" if left else "right", no_wrap=True)
    for number, row in enumerate(rows):
        *cells, outcome = (column.cells[number] for column in columns)
        grid.add_row(*map(Text, cells), Text(outcome, style=_OUTCOME_STYLE.get(row.outcome, "")))
    return grid


def _width(grid: Table, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update_width(_ANY_WIDTH), grid).maximum


def _stacked(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """A paragraph per row, with everything in it."""
    left = (*_LEFT, *(() if any(row.accuracy for row in rows) else (ANSWERS,)))
    for row in rows:
        yield Text(label(row), style="bold", overflow="fold")
        values = ((name, text.replace(" ", _NO_BREAK)) for name, text in _texts(row).items() if name not in left)
        yield Text(_packed(", ".join(f"{name} {value}" for name, value in values), width), overflow="fold")
        yield Text(f"  {row.outcome_text}", style=_OUTCOME_STYLE.get(row.outcome, ""), overflow="fold")


def _packed(figures: str, width: int) -> str:
    """Lines that end between figures, never inside one that fits."""
    indent = "  " if width > _NARROWEST else ""
    lines = textwrap.wrap(figures, max(width, 1), initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines).replace(_NO_BREAK, " ")


_SPEED, _VERSUS = "tokens/s", "vs reference"
_NAMES = (
    *("method", _SPEED, _VERSUS, ANSWERS, "TTFT p50", "TPOT p50"),
    *("load", "peak", "given back", "outputs", "outcome"),
)
#: Behind a ratio.
_TIE, _UNSURE = "~", "?"


def _texts(row: Row) -> dict[str, str]:
    texts = (
        row.shown_method,
        speed_text(row),
        versus_text(row),
        answered.text(row.accuracy),
        or_unknown(row.ttft.median, lambda found: seconds_text(found.value)),
        or_unknown(row.tpot.median, lambda found: seconds_text(found.value)),
        load_text(row),
        or_unknown(row.memory.peak, bytes_text),
        given_back(row),
        outputs_text(row),
        row.outcome_text,
    )
    return dict(zip(_NAMES, texts, strict=True))


#: Intervals are estimate × / ÷ a factor: past such a share of the estimate, half of one is no distance on either side.
_WIDE = 0.25


def speed_text(row: Row) -> str:
    """ "49.4 ± 0.6"; "3.3 (0.5 to 21.5)" where the interval is so wide that its sides differ; "49.4 (n=1)" where there
    are too few units for one"""
    found = row.rate
    if found is None:
        return UNKNOWN
    interval = found.interval(row.confidence)
    if interval is not None and interval.half > _WIDE * found.value:
        return f"{rate_text(found.value)} ({rate_text(interval.low)} to {rate_text(interval.high)})"
    if interval is not None:
        return rate_text(found.value, interval.half)
    return rate_text(found.value) + (f" (n={found.units})" if found.units < LEAST_UNITS else "")


def versus_text(row: Row) -> str:
    """ "1.51", "1.02 ~" """
    if row.versus is None or row.versus.ratio is None:
        return "reference" if row.versus and row.versus.reason == IS_REFERENCE else UNKNOWN
    distinguishable = row.versus.distinguishable(row.confidence)
    sign = {True: "", False: f" {_TIE}", None: f" {_UNSURE}"}[distinguishable]
    return f"{rate_text(row.versus.ratio.value)}{sign}"


def load_text(row: Row) -> str:
    """ "12 s", or where workers were lent compiled artefacts "31 s cold, 12 s warm" """
    kinds = {"cold": row.load.cold_s, "warm": row.load.warm_s}
    told = [f"{seconds_text(value)} {kind}" for kind, value in kinds.items() if value is not None]
    return ", ".join(told) or or_unknown(row.load.total_s, seconds_text)


def compared(rows: Sequence[Row]) -> bool:
    return any(row.versus and row.versus.ratio for row in rows)


def legend(rows: Sequence[Row]) -> Iterator[str]:
    """What the signs in these rows mean."""
    speeds, ratios = " ".join(map(speed_text, rows)), " ".join(map(versus_text, rows))
    level = percent_text(rows[0].confidence) if rows else ""
    if "±" in speeds:
        yield f"±: half of the {level} interval"
    if " to " in speeds:
        yield f"(… to …): the {level} interval"
    if any(row.speed.unit == "batches" and row.rate and row.rate.interval(row.confidence) for row in rows):
        yield "an interval of a lone repeat is over its batches, and says nothing of another run"
    if "(n=" in speeds:
        yield f"n: repeats, or batches of a lone one; an interval needs {LEAST_UNITS} of them"
    if compared(rows):
        reference = next(row.versus.reference for row in rows if row.versus)
        tie = f"; {_TIE} not distinguishable from it at {level}" if _TIE in ratios else ""
        unsure = f"; {_UNSURE} can't tell: {' or '.join(_unsure(rows))}" if _UNSURE in ratios else ""
        yield clean(f"vs reference: {speed_name(rows)} ÷ those of {reference} at the same settings{tie}{unsure}")
    if any(len(row.points) > 1 for row in rows):
        yield "outputs: one of each prompt in each repeat"
    yield from answered.legend(rows)
    yield from _asides(rows)
    if company := list(dict.fromkeys(name for row in rows for name in row.company if not is_standby(name))):
        yield clean(f"{COMPANY}: measured while other slots were at work: {listed(company, _LISTED_COMPANY)}")
    for row in rows:
        if row.marks:
            yield f"{MARK} {label(row)}: not to be compared as it is: {'; '.join(row.marks)}"
    for row in rows:
        if row.warnings:
            yield f"{WARNING} {label(row)}: {'; '.join(row.warnings)}"


def _unsure(rows: Sequence[Row]) -> list[str]:
    beside = (row.versus for row in rows if row.versus and row.versus.distinguishable(row.confidence) is None)
    return list(dict.fromkeys(one.doubt or "too few repeats or batches" for one in beside if one.ratio))


def speed_name(rows: Sequence[Row]) -> str:
    """Of the figure by which these rows are compared: "total tokens/s" where all of them score."""
    return f"total {_SPEED}" if rows and all(row.scores for row in rows) else _SPEED


def _asides(rows: Sequence[Row]) -> Iterator[str]:
    """What the speeds of some rows are of, where that is not what one would think."""
    scoring = [row for row in rows if row.scores]
    if scoring:
        which = speed_name(rows) if len(scoring) == len(rows) else f"{_SPEED} where the task is to score"
        yield f"{which}: of prompt and continuation, as nothing is generated"
    some, none = (
        [row for row in rows if row.uneven and full is (row.config.batch_size in row.sizes)] for full in (True, False)
    )
    if some:
        yield f"batches of several sizes: not all had batch_size prompts, and {_SPEED} is over all of them"
    if none:
        yield f"batches of other sizes: none had batch_size prompts, and {_SPEED} is over those that ran"
    if any(row.cold for row in rows):
        yield "no warm-up: what only the first batch of a worker pays for is in the figures"


def label(row: Row) -> str:
    """ "hf_sdpa batch_size=4" """
    return f"{clean(row.method)} {settings_text(row.settings)}".rstrip()


def causes(rows: Sequence[Row]) -> Iterator[str]:
    """Each once, with the rows that failed by it."""
    failed: dict[str, list[str]] = {}
    for row in rows:
        if row.cause:
            failed.setdefault(row.cause, []).append(label(row))
    yield from (f"{listed(labels, _LISTED_FAILED)}: {cause}" for cause, labels in failed.items())


def given_back(row: Row) -> str:
    """ "all (3.3 GiB) in 9.51 ms", "3.1 GiB of 3.3 GiB in 9.51 ms": of what was held last, which is no peak."""
    if row.returned.ok is None:
        return UNKNOWN
    if not row.returned.ok:
        return "NOT RETURNED"
    amount, held = (or_unknown(size, bytes_text) for size in (row.returned.amount, row.returned.held))
    told = amount if UNKNOWN in (amount, held) else f"all ({amount})" if amount == held else f"{amount} of {held}"
    return f"{told} in {or_unknown(row.returned.wait_s, seconds_text)}"


def outputs_text(row: Row) -> str:
    """ "12", or "10 ok, 1 failed, 1 missing" """
    parts = [(row.outputs_ok, "ok"), (row.outputs_failed, "failed"), (row.outputs_missing, "missing")]
    if not row.outputs_failed and not row.outputs_missing:
        return count_text(row.outputs_ok)
    return ", ".join(f"{count_text(count)} {what}" for count, what in parts if count)
