"""How outputs agree with the reference's, a cell for each method and setting. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.page.plot import MOST_LINES, Plot, Row, cut, plain
from orchestrator.page.plot import spec as a_spec
from orchestrator.page.theme import light
from orchestrator.view.wording import UNKNOWN, clean, setting_text, settings_text

#: Verdict → (its sign, its colour).
SIGNS: Final = {
    "reference": ("R", "base"),
    "agrees": ("=", "same"),
    "agrees within ties": ("≈", "tied"),
    "diverges": ("≠", "apart"),
    "garbage": ("✗", "garbage"),
    "other prompts": ("P", "other"),
    "unknown": ("?", "unsure"),
}
#: Cells have room for figures up to here.
_WIDE: Final = 8
#: Names of columns, in letters, that need not be turned.
_SHORT: Final = 6
MOST_COLUMNS: Final = 40


def of_agreement(rows: Sequence[Row], agreement: Mapping[str, Any]) -> Iterator[Plot]:
    """`rows` tell the settings of the points that `agreement` is about."""
    settings = _telling({point: plain(row["settings"]) for row in rows for point in row["points"]})
    lone = {tuple(one) for one in settings.values()}
    name = next(iter(lone))[0] if len(lone) == 1 and len(next(iter(lone))) == 1 else None
    judged = [one for one in agreement["rows"] if one["points"][0] in settings]
    cells = [_cell(one, _column(settings[one["points"][0]], name)) for one in judged]
    if any(one["same"] for one in cells):
        methods, columns = (list(dict.fromkeys(one[key] for one in cells)) for key in ("method", "column"))
        others = _counted(one["verdict"] for one in judged if not one["own"])
        itself = _counted(one["verdict"] for one in judged if one["own"])
        alt = f"Verdicts on the outputs of each method beside those of {clean(agreement['reference'] or '')}, "
        alt += f"by settings: {others or 'there is no other'}."
        alt += f" R: the reference itself, whose repeats are held against its own first: {itself}." if itself else ""
        alt += cut(len(methods), MOST_LINES, "methods") + cut(len(columns), MOST_COLUMNS, "settings")
        found = _spec(cells, methods[:MOST_LINES], columns[:MOST_COLUMNS], name)
        yield Plot("agreement", "Agreement of the outputs", alt, found)


def _counted(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{verdict}: {count}" for verdict, count in Counter(verdicts).items())


def _telling(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that tell columns apart; all where there is one column."""
    values: dict[str, set[str]] = {}
    for one in settings.values():
        for name, value in one.items():
            values.setdefault(name, set()).add(setting_text(value))
    kept = [name for name, found in values.items() if len(found) > 1] or list(values)
    return {point: {name: one[name] for name in kept if name in one} for point, one in settings.items()}


def _column(settings: Mapping[str, Any], name: str | None) -> str:
    """`name`: of the only setting, which the axis tells."""
    return settings_text(settings) if name is None else setting_text(settings[name])


def _cell(one: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Repeats of the reference that agree with its own first one are the reference, no verdict on another method."""
    verdict = "reference" if one["own"] and one["verdict"] == "agrees" else one["verdict"]
    beside = " of its own" if one["own"] else ""
    return {
        "method": clean(one["method"]),
        "column": column,
        "verdict": verdict,
        "sign": SIGNS[verdict][0] if verdict == "reference" or not one["own"] else f"R {SIGNS[verdict][0]}",
        "same": f"{one['same']} of {one['outputs']}{beside}" if one["outputs"] else "",
        "why": clean(one["why"]) or UNKNOWN,
    }


def _spec(
    cells: Sequence[Mapping[str, Any]], methods: Sequence[str], columns: Sequence[str], name: str | None
) -> dict[str, Any]:
    shown = [one for one in cells if one["method"] in methods and one["column"] in columns]
    used = [verdict for verdict in SIGNS if any(one["verdict"] == verdict for one in shown)]
    wide = len(columns) <= _WIDE
    level = wide or max(map(len, columns)) <= _SHORT
    axis = {"title": None, "labelColor": light("ink"), "ticks": False, "domain": False}
    across = {"orient": "top", "title": name, "labelAngle": 0 if level else -40, "labelLimit": 160}
    at = {
        "y": {"field": "method", "type": "nominal", "sort": list(methods), "axis": axis},
        "x": {"field": "column", "type": "nominal", "sort": list(columns), "axis": {**axis, **across}},
    }
    look = {"domain": used, "range": [light(SIGNS[verdict][1]) for verdict in used]}
    titles = {"method": "method", "column": name or "settings", "verdict": "verdict", "same": "same", "why": "why"}
    hint = [{"field": field, "title": title} for field, title in titles.items()]
    colour = {
        "field": "verdict",
        "type": "nominal",
        "title": None,
        "scale": look,
        "legend": {"labelExpr": _labels(used), "symbolType": "square", "symbolStrokeColor": light("line")},
    }
    marks: list[dict[str, Any]] = [
        {
            "mark": {"type": "rect", "stroke": light("paper"), "strokeWidth": 2},
            "encoding": {**at, "color": colour, "tooltip": hint},
        },
        {
            "mark": {"type": "text", "fontSize": 15, "dy": -7 if wide else 0, "color": light("ink")},
            "encoding": {**at, "text": {"field": "sign"}},
        },
    ]
    if wide:
        text = {"type": "text", "fontSize": 10, "dy": 9, "color": light("ink")}
        marks.append({"mark": text, "encoding": {**at, "text": {"field": "same"}}})
    return a_spec(
        shown, [f"  {verdict}" for verdict in used], methods, height=(44 if wide else 26) * len(methods), layer=marks
    )


def _labels(used: Sequence[str]) -> str:
    """The sign before each word of the legend. The words are ours."""
    pairs = ", ".join(f"'{verdict}': '{SIGNS[verdict][0]} {verdict}'" for verdict in used)
    return f"({{{pairs}}})[datum.value]"
