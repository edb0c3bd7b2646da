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

from orchestrator.view.summary import Row
from orchestrator.view.wording import UNKNOWN, bytes_text, clean, or_unknown, seconds_text, setting_text, settings_text

#: What a narrow terminal goes without, the first one first.
DROPPED = ("given back", "peak", "load", "TPOT")
#: Where a cell may be broken: (at, into).
_BREAKS = {"prompts": (", ", ",\n"), "outcome": (" (", "\n(")}
_LEFT = ("method", "outcome")
_OUTCOME_STYLE = {"ok": "green", "failed": "red", "incomplete": "red", "partial": "yellow"}
#: Only to ask how wide a table would like to be.
_ANY_WIDTH = 100_000
_NO_BREAK = "\u00a0"
_NARROWEST = 10


@dataclass(frozen=True)
class Results:
    """One line per row, and below them one line per cause of a failure. Fits itself into the width it is given."""

    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grids = (_grid(self.rows, columns) for columns in _layouts(_columns(self.rows)))
        fitting = (grid for grid in grids if _width(grid, console, options) <= options.max_width)
        grid = next(fitting, None)
        yield from _stacked(self.rows, options.max_width) if grid is None else [grid]
        for row in self.rows:
            if row.cause:
                yield Text(f"{label(row)}: {row.cause}", overflow="fold")


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
    method, *figures = (_Column(name, tuple(text[name] for text in texts)) for name in _NAMES)
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
    for row in rows:
        yield Text(label(row), style="bold", overflow="fold")
        values = ((name, text.replace(" ", _NO_BREAK)) for name, text in _texts(row).items() if name not in _LEFT)
        yield Text(_packed(", ".join(f"{name} {value}" for name, value in values), width), overflow="fold")
        yield Text(f"  {row.outcome_text}", style=_OUTCOME_STYLE.get(row.outcome, ""), overflow="fold")


def _packed(figures: str, width: int) -> str:
    """Lines that end between figures, never inside one that fits."""
    indent = "  " if width > _NARROWEST else ""
    lines = textwrap.wrap(figures, max(width, 1), initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines).replace(_NO_BREAK, " ")


_NAMES = ("method", "tokens/s", "TTFT", "TPOT", "load", "peak", "given back", "prompts", "outcome")


def _texts(row: Row) -> dict[str, str]:
    spread = "" if row.tokens_per_s_sd is None else f" ± {row.tokens_per_s_sd:.1f}"
    texts = (
        clean(row.method),
        or_unknown(row.tokens_per_s, lambda v: f"{v:.1f}{spread}"),
        or_unknown(row.ttft_median_s, seconds_text),
        or_unknown(row.tpot_mean_s, seconds_text),
        or_unknown(row.load_s, seconds_text),
        or_unknown(row.peak_bytes, bytes_text),
        given_back(row),
        prompts_text(row),
        row.outcome_text,
    )
    return dict(zip(_NAMES, texts, strict=True))


def label(row: Row) -> str:
    """ "hf_sdpa batch_size=4" """
    return f"{clean(row.method)} {settings_text(row.settings)}".rstrip()


def given_back(row: Row) -> str:
    if row.returned is None:
        return UNKNOWN
    amount = or_unknown(row.returned_bytes, bytes_text)
    return f"{amount} in {or_unknown(row.return_wait_s, seconds_text)}" if row.returned else "NOT RETURNED"


def prompts_text(row: Row) -> str:
    """ "12", or "10 ok, 1 failed, 1 missing" """
    parts = [(row.prompts_ok, "ok"), (row.prompts_failed, "failed"), (row.prompts_missing, "missing")]
    if not row.prompts_failed and not row.prompts_missing:
        return str(row.prompts_ok)
    return ", ".join(f"{count} {what}" for count, what in parts if count)
