"""What methods cost beside their speed: the parts of a load, and memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from orchestrator.page.plot import MOST_LINES, Plot, Row, cut, plain
from orchestrator.page.plot import spec as a_spec
from orchestrator.page.theme import light
from orchestrator.view.wording import bytes_text, clean, listed, seconds_text, settings_text
from protocol.specs import load_fields

#: Part of a start → (name of its figure, colour: the timeline's where it stands there too). All between import and the
#: warm-up batch are inside load_total_s.
_PARTS: Final = {
    "process": ("", "start"),
    "import": ("load_import_s", "import"),
    "tokenizer": ("load_tokenizer_s", "tokenizer"),
    "weights": ("load_weights_s", "weights"),
    "KV cache": ("load_kv_cache_s", "kv"),
    "compile": ("load_compile_s", "compile"),
    "engine's warm-up": ("load_warmup_s", "own"),
    "rest of load": ("", "rest"),
    "warm-up batch": ("warmup_batch_s", "warmup"),
}
_SIZES: Final = {
    "weights": ("weights_bytes", "weights"),
    "KV cache": ("kv_cache_bytes", "kv"),
    "peak": ("peak_bytes", "peak"),
    "held at the end, given back": ("returned_bytes", "back"),
}
#: Of a bar's length; in what is shorter its name has no room.
_ROOM: Final = 0.09
_GIB: Final = 1 << 30
_FIXED: Final = frozenset(load_fields()) - {"batch_size"}
#: Of the longest bar, so that its figure has room at its end.
_BESIDE: Final = 1.45
_LISTED: Final = 8


def of_burden(rows: Sequence[Row], timeline: Mapping[str, Any] | None) -> Iterator[Plot]:
    """`timeline`: where processes were seen to start; None where it is not told."""
    workers = _workers(rows)
    yield from _loads(workers, _starts(timeline))
    yield from _memory(workers)


def _workers(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by what their workers were told when they loaded: they share these."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        fixed = {name: value for name, value in row["settings"].items() if name in _FIXED}
        found.setdefault(f"{clean(row['method'])} {settings_text(plain(fixed))}".rstrip(), []).append(row)
    return found


def _starts(timeline: Mapping[str, Any] | None) -> dict[str, float]:
    """Method → how long its processes took from launch to the first word, the mean. What was merged tells nothing."""
    found: dict[str, list[float]] = {}
    for span in timeline["spans"] if timeline and not timeline["merged"] else ():
        if span["phase"] == "start":
            found.setdefault(span["method"], []).append(span["end_s"] - span["begin_s"])
    return {method: fmean(times) for method, times in found.items()}


def _mean(rows: Iterable[Row], name: str) -> float | None:
    told = [row[name] for row in rows if row[name] is not None]
    return fmean(told) if told else None


def _loads(workers: Mapping[str, Sequence[Row]], starts: Mapping[str, float]) -> Iterator[Plot]:
    values, totals = [], {}
    for label, rows in list(workers.items())[:MOST_LINES]:
        parts = _parts(rows, starts.get(rows[0]["method"]))
        totals[label] = sum(parts.values())
        values += [
            {"label": label, "part": part, "order": at, "seconds": parts[part], "told": seconds_text(parts[part])}
            for at, part in enumerate(_PARTS)
            if part in parts
        ]
    if values:
        longest = max(totals, key=lambda label: totals[label])
        told = listed([f"{label} {seconds_text(total_s)}" for label, total_s in totals.items()], _LISTED)
        begin = "launch" if starts else "the import of the engine"
        alt = f"From {begin} until the first measured batch, by part: {told}. {longest} takes longest."
        alt += cut(len(workers), MOST_LINES, "workers")
        yield Plot("load", "Time to load", alt, _stacked(values, max(totals.values())))


def _parts(rows: Sequence[Row], start_s: float | None) -> dict[str, float]:
    told = {part: _mean(rows, name) for part, (name, _) in _PARTS.items() if name}
    total_s = _mean(rows, "load_total_s")
    if total_s is None:
        return {}
    inside = sum(told[part] or 0.0 for part in ("tokenizer", "weights", "KV cache", "compile", "engine's warm-up"))
    told |= {"process": start_s, "rest of load": max(0.0, total_s - inside)}
    return {part: value for part, value in told.items() if value}


def _stacked(values: Sequence[Mapping[str, Any]], longest_s: float) -> dict[str, Any]:
    used = [part for part in _PARTS if any(one["part"] == part for one in values)]
    y = {"field": "label", "type": "nominal", "sort": None, "axis": _names()}
    x = {"field": "seconds", "type": "quantitative", "stack": "zero", "axis": {"title": "seconds", "tickCount": 6}}
    hint = [{"field": name, "title": name if name != "told" else "time"} for name in ("label", "part", "told")]
    colour = _colour("part", used, _PARTS)
    named = [
        {
            "mark": {"type": "bar", "height": {"band": 0.72}, "stroke": light("paper"), "strokeWidth": 0.75},
            "encoding": {"y": y, "x": x, "color": colour, "order": {"field": "order"}, "tooltip": hint},
        },
        {
            "mark": {"type": "text", "color": light("ink"), "dy": -1, "fontSize": 10, "limit": 90},
            "encoding": {
                "y": y,
                "x": {**x, "bandPosition": 0.5},
                "detail": {"field": "part"},
                "order": {"field": "order"},
                "text": {
                    "condition": {"test": f"datum.seconds > {_ROOM * longest_s}", "field": "told"},
                    "value": "",
                },
            },
        },
    ]
    return a_spec(
        values,
        used,
        list(dict.fromkeys(one["label"] for one in values)),
        height=26 * len({one["label"] for one in values}),
        layer=named,
    )


def _memory(workers: Mapping[str, Sequence[Row]]) -> Iterator[Plot]:
    values = [
        {"label": label, "part": kind, "gib": size / _GIB, "told": bytes_text(size)}
        for label, rows in list(workers.items())[:MOST_LINES]
        for kind, (name, _) in _SIZES.items()
        if (size := max((row[name] for row in rows if row[name] is not None), default=None)) is not None
    ]
    if values:
        peaks = [f"{one['label']} {one['told']}" for one in values if one["part"] == "peak"]
        alt = "The most memory that workers held, of it weights and KV cache as the engine tells them, and what they "
        alt += "held last, just before teardown, and gave back: often less than the peak. "
        alt += f"Peaks: {listed(peaks, _LISTED) or 'not known'}."
        if untold := _untold(values):
            alt += f" Not known: {listed(untold, _LISTED, '; ')}."
        alt += cut(len(workers), MOST_LINES, "workers")
        yield Plot("memory", "Memory", alt, _grouped(values))


def _untold(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """ "weights of vllm_eager, sglang_triton" """
    labels = dict.fromkeys(one["label"] for one in values)
    told = {(one["label"], one["part"]) for one in values}
    gaps = {kind: [label for label in labels if (label, kind) not in told] for kind in _SIZES}
    return [f"{kind} of {listed(missing, _LISTED)}" for kind, missing in gaps.items() if missing]


def _grouped(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    used = [kind for kind in _SIZES if any(one["part"] == kind for one in values)]
    offset = {"field": "part", "scale": {"domain": used, "paddingInner": 0.15}}
    y = {"field": "label", "type": "nominal", "sort": None, "axis": _names(), "scale": {"paddingInner": 0.3}}
    most = max(one["gib"] for one in values)
    room = {"domain": [0, most * _BESIDE or 1], "nice": False}
    x = {"field": "gib", "type": "quantitative", "axis": {"title": "GiB", "tickCount": 6}, "scale": room}
    hint = [{"field": name, "title": name if name != "told" else "size"} for name in ("label", "part", "told")]
    at = {"y": y, "yOffset": offset, "x": x}
    marks = [
        {"mark": {"type": "bar"}, "encoding": {**at, "color": _colour("part", used, _SIZES), "tooltip": hint}},
        {
            "mark": {"type": "text", "align": "left", "dx": 4, "color": light("soft"), "fontSize": 9.5},
            "transform": [{"calculate": "datum.part + ' ' + datum.told", "as": "named"}],
            "encoding": {**at, "text": {"field": "named"}},
        },
    ]
    return a_spec(
        values,
        used,
        list(dict.fromkeys(one["label"] for one in values)),
        height=20 * len(used) * len({one["label"] for one in values}),
        layer=marks,
    )


def _colour(field: str, used: Sequence[str], kinds: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    ground = [light(kinds[name][1]) for name in used]
    return {"field": field, "type": "nominal", "title": None, "scale": {"domain": list(used), "range": ground}}


def _names() -> dict[str, Any]:
    return {"title": None, "labelColor": light("ink"), "ticks": False, "domain": False, "labelPadding": 6}
