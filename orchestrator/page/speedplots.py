"""Speed against latency with the Pareto front, and speed by batch size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.judge.reference import WORK
from orchestrator.page.plot import (
    MOST_SERIES,
    Plot,
    Row,
    comparable,
    cut,
    domain,
    label_of,
    logarithmic,
    looks,
    measured,
    plain,
    present,
    series_of,
)
from orchestrator.page.plot import spec as a_spec
from orchestrator.page.theme import light
from orchestrator.view.pareto import Candidate, front
from orchestrator.view.wording import counted, joined, listed, rate_text, seconds_text, settings_text

_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT"}
_WHAT: Final = {"ttft": "time to the first token", "tpot": "time per output token after the first"}
_LISTED: Final = 8
#: Past so many times its estimate, or less than that part, an interval is cut.
_WIDE: Final = 3
#: Marks with their batch size beside them; more of them would lie over each other.
_NUMBERED: Final = 60


def of_speed(rows: Sequence[Row]) -> Iterator[Plot]:
    series = domain(rows)
    drawn = [row for row in rows if series_of(row) in series[:MOST_SERIES]]
    left_out = cut(len(series), MOST_SERIES, "series")
    yield from (plot for name in _NAMES if (plot := _against(name, drawn, series[:MOST_SERIES], left_out)))
    yield from _curves(drawn, series[:MOST_SERIES], left_out)


def speed_of(row: Row) -> dict[str, float | None]:
    """The figure by which rows are compared, with its interval."""
    name = row["compared_by"]
    return {"speed": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}


def pareto(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The Pareto front of those that may be compared, by rising latency: of the most tokens/s and the shortest time.
    Empty where they did not all do the same work."""
    rows = {one["label"]: one for one in points if one["comparable"]}
    if not _same_work(rows.values()):
        return []
    best = front(Candidate(label, one["speed"], one["p50_s"]) for label, one in rows.items())
    return [rows[one.label] for one in reversed(best)]


def _same_work(points: Iterable[Mapping[str, Any]]) -> bool:
    return len({one["work"] for one in points}) <= 1


def reach(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """What a scale of speeds has to hold: they and their intervals, of a very wide one the middle."""
    ends = [(one["low"] or one["speed"], one["high"] or one["speed"], one["speed"]) for one in points]
    return [end for low, high, at in ends for end in (max(low, at / _WIDE), min(high, at * _WIDE))]


def cut_off(points: Sequence[Mapping[str, Any]]) -> str:
    """A sentence where an interval does not end in the frame."""
    top = max(reach(points), default=0.0)
    beyond = any((one["high"] or 0) > top for one in points)
    return " Intervals that end at the frame go on beyond it: the table has them." if beyond else ""


def _against(name: str, rows: Sequence[Row], series: Sequence[str], left_out: str) -> Plot | None:
    points = [one for row in rows if (one := _point(name, row))]
    if not points:
        return None
    best = pareto(points)
    title = f"Tokens/s against {_NAMES[name]}"
    alt = f"{_alt(name, points, best)}{cut_off(points)}{left_out}"
    return Plot(f"speed-{name}", title, alt, _spec(name, points, best, series))


def _point(name: str, row: Row) -> dict[str, Any] | None:
    speed, p50_s = speed_of(row), row[f"{name}_p50_s"]
    if speed["speed"] is None or p50_s is None:
        return None
    return {
        "series": series_of(row),
        "label": label_of(row),
        "batch_size": row["settings"].get("batch_size"),
        **speed,
        "p50_s": p50_s,
        "p95_s": row[f"{name}_p95_s"],
        "comparable": comparable(row),
        "work": settings_text({one: value for one, value in plain(row["settings"]).items() if one in WORK}),
        "told": rate_text(speed["speed"]),
        "p50": seconds_text(p50_s),
        "p95": "not known" if row[f"{name}_p95_s"] is None else seconds_text(row[f"{name}_p95_s"]),
        "compared": _compared(row),
    }


def _compared(row: Row) -> str:
    if not comparable(row):
        return "; ".join(row["marks"]) or str(row["outcome"])
    return "yes, though it lost some prompts" if row["outcome"] == "partial" else "yes"


def _alt(name: str, points: Sequence[Row], best: Sequence[Row]) -> str:
    fair = [one for one in points if one["comparable"]]
    joins = len({one["series"] for one in points}) < len(points)
    parts = (
        f"Speed by {_WHAT[name]} of {counted(len(points), 'row')}.",
        _leaders(name, fair) if fair and _same_work(fair) else "",
        _front_text(best) if best else "There is no Pareto front, as rows did different work." if fair else "",
        "" if len(fair) == len(points) else "Hollow: rows that may not be compared as they are.",
        "Lines join the batch sizes of a series." if joins else "",
    )
    return " ".join(filter(None, parts))


def _leaders(name: str, fair: Sequence[Row]) -> str:
    fastest, quickest = max(fair, key=lambda one: one["speed"]), min(fair, key=lambda one: one["p50_s"])
    return (
        f"By the estimates {fastest['label']} has the most tokens/s, {fastest['told']}, and {quickest['label']} the "
        f"lowest median {_NAMES[name]}, {quickest['p50']}."
    )


def _front_text(best: Sequence[Row]) -> str:
    named = [str(one["label"]) for one in best]
    if len(best) > _LISTED:
        return f"{len(best)} rows are on the Pareto front (the pale band): {listed(named, _LISTED)}."
    band = " (the pale band)" if len(best) > 1 else ""  # there is none to a lone row
    return f"No row that may be compared is better in both than {joined(named)}{band}."


def _spec(name: str, points: Sequence[Row], best: Sequence[Row], series: Sequence[str]) -> dict[str, Any]:
    shown = present(points, series)
    look = looks(series, shown)
    latencies = [one[key] for one in points for key in ("p50_s", "p95_s") if one[key] is not None]
    x = measured(f"{_NAMES[name]} in seconds: p50, to p95", latencies, format="~g")
    y = measured("tokens/s", reach(points))
    at = {"x": {**x, "field": "p50_s"}, "y": {**y, "field": "speed"}}
    color = look["color"]
    hint = [
        {"field": field, "title": title}
        for field, title in (
            ("label", "row"),
            ("told", "tokens/s"),
            ("p50", f"{_NAMES[name]} p50"),
            ("p95", f"{_NAMES[name]} p95"),
            ("compared", "may be compared"),
        )
    ]
    told = {"p95_s", "low"} & {key for one in points for key in one if one[key] is not None}
    faint = {"type": "rule", "opacity": 0.35, "clip": True}
    marks: list[dict[str, Any]] = []
    if "p95_s" in told:
        marks.append({"mark": faint, "encoding": {**at, "x2": {"field": "p95_s"}, "color": color}})
    if "low" in told:
        marks.append(
            {
                "mark": faint,
                "transform": [{"filter": "isValid(datum.low)"}],
                "encoding": {"x": at["x"], "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": color},
            }
        )
    if best:
        marks.append(
            {
                "data": {"values": list(best)},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 5, "opacity": 0.55},
                "encoding": {**at, "color": {"value": light("front")}},
            }
        )
    marks.append(
        {
            "mark": {"type": "line", "strokeWidth": 1.25, "opacity": 0.8},
            "encoding": {**at, "color": color, "detail": {"field": "series"}, "order": {"field": "batch_size"}},
        }
    )
    marks += [
        {
            "mark": {"type": "point", "filled": filled, "size": 75, "opacity": 1, "strokeWidth": 1.5},
            "transform": [{"filter": f"datum.comparable === {str(filled).lower()}"}],
            "encoding": {**at, "color": color, "shape": look["shape"], "tooltip": hint},
        }
        for filled in sorted({one["comparable"] for one in points})
    ]
    if len(points) <= _NUMBERED:
        marks.append(
            {
                "mark": {"type": "text", "dx": 7, "dy": -8, "align": "left", "color": light("soft"), "fontSize": 10},
                "encoding": {**at, "text": {"field": "batch_size"}},
            }
        )
    return a_spec(points, shown, height=340, layer=marks)


def _curves(rows: Sequence[Row], series: Sequence[str], left_out: str) -> Iterator[Plot]:
    points = [
        {"series": series_of(row), "label": label_of(row), "batch_size": row["settings"].get("batch_size"), **found}
        for row in rows
        if (found := speed_of(row))["speed"] is not None and row["settings"].get("batch_size") is not None
    ]
    sizes = sorted({int(one["batch_size"]) for one in points})
    if len(sizes) < 2:
        return
    shown = present(points, series)
    look = looks(series, shown)
    x = {
        "field": "batch_size",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "nice": False, "padding": 12},
        "axis": {"title": logarithmic("prompts in a batch"), "values": sizes, "format": "d", "grid": False},
    }
    y = {
        "field": "speed",
        "type": "quantitative",
        "axis": {"title": "tokens/s"},
        "scale": {"domain": [0, max(reach(points))], "nice": True},
    }
    hint = [
        {"field": "label", "title": "row"},
        {"field": "speed", "title": "tokens/s", "format": ".4~g"},
        {"field": "low", "title": "from", "format": ".4~g"},
        {"field": "high", "title": "to", "format": ".4~g"},
    ]
    at = {"x": x, "y": y}
    marks: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.75},
            "encoding": {**at, **_only(look, "color"), "strokeDash": look["strokeDash"]},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {**at, **_only(look, "color", "shape"), "tooltip": hint},
        },
    ]
    if any(one["low"] is not None for one in points):
        band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": look["color"]}
        known = [{"filter": "isValid(datum.low)"}]
        marks.insert(0, {"mark": {"type": "area", "opacity": 0.14, "clip": True}, "transform": known, "encoding": band})
    drawn = a_spec(points, shown, height=300, layer=marks)
    drawn["config"]["legend"]["symbolStrokeWidth"] = 0  # dashes are of lines
    alt = f"Tokens/s at batch sizes {joined(list(map(str, sizes)))}, a line for each series. "
    alt += f"{_growth(points)}{cut_off(points)}{left_out}"
    yield Plot("batch-sizes", "Tokens/s by batch size", alt.strip(), drawn)


def _only(look: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: look[name] for name in names}


def _growth(points: Sequence[Mapping[str, Any]]) -> str:
    """What each series gains from its smallest to its largest batch."""
    told = []
    for name in dict.fromkeys(one["series"] for one in points):
        mine = sorted((one for one in points if one["series"] == name), key=lambda one: one["batch_size"])
        first, last = mine[0], mine[-1]
        if last is not first and first["speed"]:
            gain = rate_text(last["speed"] / first["speed"])
            told.append(f"{name} × {gain} from {first['batch_size']} to {last['batch_size']}")
    return f"{listed(told, _LISTED)}." if told else ""
