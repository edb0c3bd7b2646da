"""The table of results: the same texts as on a terminal, with what a browser sorts by, and why a figure is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.view import answered
from orchestrator.view.results import (
    causes,
    compared,
    given_back,
    legend,
    load_text,
    outputs_text,
    speed_name,
    speed_text,
    versus_text,
)
from orchestrator.view.summary import Row
from orchestrator.view.wording import UNKNOWN, are_figures, bytes_text, clean, or_unknown, seconds_text, setting_text

_GLYPH: Final = 88
_NO_BREAK: Final = "\u00a0"


@dataclass(frozen=True)
class Cell:
    """sort    what it is ordered by; None last
    why      the number of the reason why it is not known
    reason   the same in words
    signs    of a method's name, with what they say
    """

    text: str
    sort: float | str | None = None
    why: int | None = None
    reason: str = ""
    signs: tuple[tuple[str, str], ...] = ()
    glyph: Glyph | None = None


@dataclass(frozen=True)
class Glyph:
    """An interval to scale, in a box of 88 by 12; `at` alone where there is none."""

    low: float | None
    at: float
    high: float | None


@dataclass(frozen=True)
class Column:
    name: str
    numeric: bool = True
    sorts: bool = True


@dataclass(frozen=True)
class Table:
    columns: list[Column]
    rows: Sequence[tuple[str, list[Cell]]]
    reasons: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)


def table(found: Sequence[Row], figures: Sequence[Mapping[str, Any]]) -> Table:
    """`figures`: of the same rows, as `figures.row_figures` gives them. A row is (its outcome, its cells)."""
    if not found:
        return Table([], [])
    making = _Making(found, figures)
    rows = [(row.outcome, list(making.cells(row, told))) for row, told in zip(found, figures, strict=True)]
    return Table(making.columns(), rows, list(making.reasons), [*legend(found), *causes(found)])


class _Making:
    def __init__(self, found: Sequence[Row], figures: Sequence[Mapping[str, Any]]) -> None:
        self.names = list(found[0].settings)
        self.numbers = {name for name in self.names if are_figures([setting_text(row.settings[name]) for row in found])}
        self.speed = speed_name(found)
        self.compared = compared(found)
        self.accuracy = any(row.accuracy for row in found)
        self.reasons: dict[str, int] = {}
        ends = (told[name] for told in figures for name in (told["compared_by"], f"{told['compared_by']}_high"))
        self.most = max((end for end in ends if end is not None), default=0.0)

    def columns(self) -> list[Column]:
        settings = [Column(name, numeric=name in self.numbers) for name in self.names]
        versus = [Column("vs reference")] if self.compared else []
        times = [Column("TTFT p50"), Column("TPOT p50"), Column("load"), Column("peak memory"), Column("given back")]
        accuracy = [Column(answered.NAME)] if self.accuracy else []
        head = [
            Column("method", numeric=False),
            *settings,
            Column(self.speed),
            Column("interval", numeric=False, sorts=False),
        ]
        return [*head, *versus, *times, *accuracy, Column("outputs"), Column("outcome", numeric=False)]

    def cells(self, row: Row, told: Mapping[str, Any]) -> Iterator[Cell]:
        yield Cell(clean(row.method), clean(row.method), signs=tuple(_signs(row)))
        yield from (Cell(setting_text(value), _sortable(value)) for value in row.settings.values())
        by = told["compared_by"]
        yield self._cell(_broken(speed_text(row), " ("), told, by)
        yield Cell("", glyph=self._glyph(told[f"{by}_low"], told[by], told[f"{by}_high"]))
        if self.compared:
            yield self._cell(_whole(versus_text(row)), told, "speed_ratio")
        for name in ("ttft", "tpot"):
            key = f"{name}_p50_s"
            yield self._cell(_whole(or_unknown(told[key], seconds_text)), told, key)
        yield self._cell(_broken(load_text(row), ", "), told, "load_total_s")
        yield self._cell(_whole(or_unknown(row.memory.peak, bytes_text)), told, "peak_bytes")
        yield self._cell(_broken(given_back(row), " in"), told, "returned_bytes")
        if self.accuracy:
            yield self._cell(_broken(answered.text(row.accuracy), " ("), told, "accuracy", *_accuracy(row))
        yield Cell(_broken(outputs_text(row), ", "), row.outputs_ok)
        yield Cell(row.outcome_text, row.outcome)

    def _cell(self, text: str, told: Mapping[str, Any], name: str, sort: float | None = None, why: str = "") -> Cell:
        if text != UNKNOWN:
            return Cell(text, told[name] if sort is None else sort)
        reason = why or str(told["reasons"].get(name, "not known"))
        return Cell(text, None, self.reasons.setdefault(reason, len(self.reasons) + 1), reason)

    def _glyph(self, low: float | None, at: float | None, high: float | None) -> Glyph | None:
        if at is None or not self.most:
            return None
        low, at, high = (value and round(4 + (_GLYPH - 8) * value / self.most, 1) for value in (low, at, high))
        return Glyph(low, at or 0.0, high)


def _signs(row: Row) -> Iterator[tuple[str, str]]:
    signs = row.shown_method.removeprefix(clean(row.method)).strip()
    said = {"*": "; ".join(row.marks), "!": "; ".join(row.warnings)}
    yield from ((sign, clean(said.get(sign, "other slots were at work"))) for sign in signs)


def _broken(text: str, at: str) -> str:
    """With one place where a narrow column may break it."""
    return at.join(map(_whole, text.split(at)))


def _whole(text: str) -> str:
    return text.replace(" ", _NO_BREAK)


def _sortable(value: object) -> float | str:
    return float(value) if isinstance(value, (int, float)) else setting_text(value)


def _accuracy(row: Row) -> tuple[float | None, str]:
    """What it is sorted by, and why it is not known."""
    return (row.accuracy.value, row.accuracy.reason) if row.accuracy else (None, "")
