"""What a plot is, and what several kinds of them share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.page.theme import DASHES, SERIES, SHAPES, config
from orchestrator.view.pareto import ENDED_BADLY
from orchestrator.view.wording import clean, settings_text

Row = Mapping[str, Any]
#: Each has a look of its own up to here.
MOST_SERIES: Final = 24
#: Bars and cells one below the other; the table has all.
MOST_LINES: Final = 60
WIDTH: Final = 760
#: Of a name in a legend, in pixels: a letter of it, and what stands before it; longer ones are cut.
_LETTER, _SYMBOL, _MOST_LETTERS = 7, 28, 32
#: What figures on an axis take.
_NUMBERS: Final = 48
#: A scale is logarithmic where the largest value is so many times the smallest.
_LOG_FROM: Final = 20
#: Of a logarithmic scale, on either side of its values.
_MARGIN: Final = 1.25


@dataclass(frozen=True)
class Plot:
    """alt   one or two sentences for who can't see it
    spec  Vega-Lite, its data inline; "width" is "container"
    """

    id: str
    title: str
    alt: str
    spec: dict[str, Any]


def spec(
    values: Sequence[Mapping[str, Any]], names: Sequence[str], left: Sequence[str] = (), **rest: Any
) -> dict[str, Any]:
    """One view of `values`, as wide as the page. `names`: in its legend; `left`: of its lines. By these a page of
    another width tells how many names stand side by side ("usermeta", in pixels)."""
    label, beside = _width(names) + _SYMBOL, _width(left) if left else _NUMBERS
    settings = config()
    settings["legend"]["columns"] = max(1, (WIDTH - beside) // label)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "config": settings,
        "usermeta": {"label": label, "left": beside},
        "data": {"values": list(values)},
        **rest,
    }


def _width(names: Sequence[str]) -> int:
    return min(max(map(len, names), default=1), _MOST_LETTERS) * _LETTER


def series_of(row: Row) -> str:
    """What a line connects: the method, at the same settings but for the batch size."""
    others = {name: value for name, value in row["settings"].items() if name != "batch_size"}
    return f"{clean(row['method'])} {settings_text(plain(others))}".rstrip()


def label_of(row: Row) -> str:
    return f"{clean(row['method'])} {settings_text(plain(row['settings']))}".rstrip()


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As they were before they were JSON."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def domain(rows: Sequence[Row]) -> list[str]:
    """All series in the order of the run, by which each looks the same in every plot."""
    return list(dict.fromkeys(map(series_of, rows)))


def present(points: Sequence[Mapping[str, Any]], series: Sequence[str]) -> list[str]:
    """Those of the series that have a point."""
    found = {one["series"] for one in points}
    return [name for name in series if name in found]


def looks(series: Sequence[str], shown: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Encodings that tell series apart by colour and by shape or dash. Neighbours differ in both. `shown`: those that
    the legend names."""
    field = {"field": "series", "type": "nominal", "title": None, "legend": {"values": list(shown)}}
    numbers = [(at, at // len(SERIES)) for at in range(len(series))]
    ranges: dict[str, list[Any]] = {
        "color": [SERIES[at % len(SERIES)] for at, _ in numbers],
        "shape": [SHAPES[(at + 3 * turn) % len(SHAPES)] for at, turn in numbers],  # another one in each turn
        "strokeDash": [list(DASHES[(at + turn) % len(DASHES)]) for at, turn in numbers],
    }
    return {name: {**field, "scale": {"domain": list(series), "range": found}} for name, found in ranges.items()}


def measured(title: str, values: Sequence[float], **axis: Any) -> dict[str, Any]:
    """An axis that holds `values` and nothing else that is drawn: from zero, or, which its title then says, logarithmic
    where they are of several sizes."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    scale: dict[str, Any] = {"domain": [0, most or 1], "nice": True}
    if least > 0 and most / least >= _LOG_FROM:
        scale, title = {"type": "log", "nice": False, "domain": [least / _MARGIN, most * _MARGIN]}, logarithmic(title)
    return {"type": "quantitative", "scale": scale, "axis": {"title": title, "tickCount": 6, **axis}}


def logarithmic(title: str) -> str:
    return f"{title} (logarithmic)"


def comparable(row: Row) -> bool:
    """Its figures may stand beside others'."""
    return not row["marks"] and row["outcome"] not in ENDED_BADLY


def cut(count: int, most: int, what: str) -> str:
    """A sentence for what a plot leaves out; empty where it shows all."""
    return f" The first {most} of {count} {what} are drawn; the table has all." if count > most else ""
