"""How many answers are right, against speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.page.plot import (
    MOST_SERIES,
    Plot,
    Row,
    comparable,
    cut,
    domain,
    label_of,
    looks,
    measured,
    present,
    series_of,
)
from orchestrator.page.plot import spec as a_spec
from orchestrator.page.speedplots import speed_of
from orchestrator.view.scores import MEASURES, value_text
from orchestrator.view.wording import counted, rate_text

#: Kind → the end of its axis, as its figures are told, and what they are. Of a part of an axis little would seem much.
_AXES: Final = {"share": (100, ", %"), "mean": (1, ""), "corpus": (100, ", of 100")}
_ENDS: Final = {"accuracy": "value", "low": "low", "high": "high"}


def of_answers(rows: Sequence[Row]) -> Iterator[Plot]:
    series = domain(rows)
    points = [one for row in rows if (one := _point(row)) and one["series"] in series[:MOST_SERIES]]
    if points:
        alt = (
            f"Accuracy ({MEASURES[points[0]['kind']]}) by {points[0]['judge']}, with its interval, "
            f"against tokens/s of {counted(len(points), 'row')}. {_best(points)}"
            f"{cut(len(series), MOST_SERIES, 'series')}"
        )
        yield Plot("accuracy", "Accuracy against tokens/s", alt, _spec(points, series[:MOST_SERIES]))


def _best(points: Sequence[Mapping[str, Any]]) -> str:
    best, worst = (pick(points, key=lambda one: one["accuracy"]) for pick in (max, min))
    if best["accuracy"] == worst["accuracy"]:
        return f"All have {best['told']}."
    return f"The highest estimate has {best['label']}: {best['told']}."


def _point(row: Row) -> dict[str, Any] | None:
    found, speed = row.get("accuracy"), speed_of(row)
    if not found or found["value"] is None or speed["speed"] is None:
        return None
    most, _ = _AXES[found["kind"]]
    return {
        "series": series_of(row),
        "label": label_of(row),
        "judge": found["judge"],
        **{name: found[key] and found[key] * most for name, key in _ENDS.items()},
        "kind": found["kind"],
        "told": value_text(found["kind"], found["value"]),
        "speed": speed["speed"],
        "tokens": rate_text(speed["speed"]),
        "comparable": comparable(row),
    }


def _spec(points: Sequence[Mapping[str, Any]], series: Sequence[str]) -> dict[str, Any]:
    shown = present(points, series)
    look = looks(series, shown)
    x = {"field": "speed", **measured("tokens/s", [one["speed"] for one in points])}
    (most, unit), what = _AXES[points[0]["kind"]], MEASURES[points[0]["kind"]]
    y = {
        "field": "accuracy",
        "type": "quantitative",
        "scale": {"domain": [0, most]},
        "axis": {"title": f"{what}{unit}"},
    }
    titles = {"label": "row", "told": "accuracy", "judge": "judge", "tokens": "tokens/s"}
    hint = [{"field": name, "title": title} for name, title in titles.items()]
    marks: list[dict[str, Any]] = [
        {
            "mark": {"type": "point", "filled": filled, "size": 75, "opacity": 1, "strokeWidth": 1.5},
            "transform": [{"filter": f"datum.comparable === {str(filled).lower()}"}],
            "encoding": {"x": x, "y": y, "color": look["color"], "shape": look["shape"], "tooltip": hint},
        }
        for filled in sorted({one["comparable"] for one in points})
    ]
    if any(one["low"] is not None for one in points):
        reach = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": look["color"]}
        known = [{"filter": "isValid(datum.low)"}]
        marks.insert(0, {"mark": {"type": "rule", "opacity": 0.5}, "transform": known, "encoding": reach})
    return a_spec(points, shown, height=300, layer=marks)
