"""The timeline of the slots. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.page.plot import MOST_LINES, Plot, cut
from orchestrator.page.plot import spec as a_spec
from orchestrator.page.theme import light
from orchestrator.view.wording import clean, counted, seconds_text

#: Phase → (its name, its colour, how high its bar is): work is high, waiting a thin line.
_PHASES: Final = {
    "start": ("process starts", "start", 0.25),
    "import": ("import", "import", 0.4),
    "held": ("waits for the slot", "held", 0.15),
    "load": ("load", "load", 0.6),
    "warm-up": ("warm-up", "warmup", 0.6),
    "generate": ("generate", "generate", 0.9),
    "teardown": ("teardown", "teardown", 0.4),
    "waiting": ("waiting", "waiting", 0.15),
}
_MINUTES_FROM_S: Final = 600


def of_time(timeline: Mapping[str, Any] | None) -> Iterator[Plot]:
    if timeline and timeline["spans"]:
        lanes = list(dict.fromkeys(map(_lane_of(timeline), timeline["spans"])))
        yield Plot("timeline", "Timeline", _alt(timeline, lanes), _spec(timeline, lanes[:MOST_LINES]))


def _lane_of(timeline: Mapping[str, Any]) -> Any:
    """A line for each method on each slot; for each slot, where these would be too many."""
    several = len(timeline["slots"]) > 1
    pairs = {(span["slot"], span["method"]) for span in timeline["spans"]}

    def lane(span: Mapping[str, Any]) -> str:
        slot, method = clean(span["slot"]) or "all slots", clean(span["method"])
        if not method or len(pairs) > MOST_LINES:
            return slot
        return f"{slot}, {method}" if several else method

    return lane


def _alt(timeline: Mapping[str, Any], lanes: Sequence[str]) -> str:
    taken: dict[str, float] = {}
    for span in timeline["spans"]:
        taken[span["phase"]] = taken.get(span["phase"], 0.0) + span["end_s"] - span["begin_s"]
    told = ", ".join(f"{_PHASES[phase][0]} {seconds_text(taken[phase])}" for phase in _PHASES if taken.get(phase))
    alt = f"What each slot did in {seconds_text(timeline['length_s'])}; all together: {told}."
    if timeline["breaks"]:
        away = ", ".join(seconds_text(one["away_s"]) for one in timeline["breaks"])
        alt += f" Left out, at the dashed lines, is the time until the run was resumed: {away}."
    if timeline["merged"]:
        what = f"{counted(timeline['merged'], 'span')}, none longer than {seconds_text(timeline['resolution_s'])},"
        alt += f" {what} are drawn together with their neighbours, under the phase that took most of their time."
    return alt + cut(len(lanes), MOST_LINES, "lines")


def _spec(timeline: Mapping[str, Any], lanes: Sequence[str]) -> dict[str, Any]:
    unit, divisor = ("minutes", 60.0) if timeline["length_s"] > _MINUTES_FROM_S else ("seconds", 1.0)
    lane = _lane_of(timeline)
    spans = [
        {
            "lane": lane(span),
            "phase": _PHASES[span["phase"]][0],
            "height": _PHASES[span["phase"]][2],
            "begin": round(span["begin_s"] / divisor, 4),
            "end": round(span["end_s"] / divisor, 4),
            "method": clean(span["method"]) or "no method",
            "told": seconds_text(span["end_s"] - span["begin_s"]),
            "spans": span["count"],
        }
        for span in timeline["spans"]
        if lane(span) in lanes
    ]
    used = [(name, light(colour)) for name, colour, _ in _PHASES.values() if any(one["phase"] == name for one in spans)]
    step = 24 if len(lanes) <= 20 else 14
    breaks = [{"at": one["at_s"] / divisor} for one in timeline["breaks"]]
    names = {"title": None, "labelColor": light("ink"), "ticks": False, "domain": False, "grid": True}
    y = {"field": "lane", "type": "nominal", "sort": list(lanes), "axis": names}
    x = {"type": "quantitative", "axis": {"title": f"{unit} since the start", "tickCount": 8}, "scale": {"nice": False}}
    colour = {"domain": [name for name, _ in used], "range": [value for _, value in used]}
    hint = [
        {"field": name, "title": "time" if name == "told" else name} for name in ("method", "phase", "told", "spans")
    ]
    marks = [
        {
            "mark": {"type": "bar", "minBandSize": 1},
            "encoding": {
                "y": y,
                "x": {**x, "field": "begin"},
                "x2": {"field": "end"},
                "size": {
                    "field": "height",
                    "type": "quantitative",
                    "legend": None,
                    "scale": {"domain": [0, 1], "range": [0, step], "zero": True},
                },
                "color": {"field": "phase", "type": "nominal", "title": None, "scale": colour},
                "tooltip": hint,
            },
        },
        {
            "data": {"values": breaks},
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": light("soft")},
            "encoding": {"x": {**x, "field": "at"}},
        },
    ]
    return a_spec(spans, [name for name, _ in used], lanes, height=step * len(lanes), layer=marks[: 2 if breaks else 1])
