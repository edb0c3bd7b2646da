"""The rows of the comparison: one for each method and combination of settings.

What the figures are, and how they are made, is in `metrics` (speed and latency), `burden` (load and memory),
`counters` and `stats`; docs/metrics.md has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec.structs import fields

from orchestrator.plan import Plan, SweepPoint
from orchestrator.view import burden, metrics
from orchestrator.view.compare import Drift, Versus, drift_of, versus
from orchestrator.view.counters import Counters, together
from orchestrator.view.hardware import Hardware, hardware
from orchestrator.view.marks import MARK, marks
from orchestrator.view.measures import has_slo
from orchestrator.view.narrator import cause_text
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.wording import clean, counted, settings_text
from protocol.records import FLAG_SPLIT_BATCH
from protocol.specs import BackendConfig

#: The worst first: a row is as good as its worst repeat.
_WORST: tuple[PointState, ...] = ("failed", "incomplete", "partial", "unfinished", "ok", "skipped")


@dataclass(frozen=True)
class Row:
    """One method at one combination of settings, all repeats together. Seconds and bytes.

    rates     tokens/s of each repeat that has one, in their order
    versus    its speed beside the reference's at the same settings
    outliers  batches far from the others, of `compared`; they are in all figures
    skipped   repeats that were not needed, as those before them were enough
    marks     why its figures may not be compared as they are
    """

    method: str
    settings: dict[str, Any]
    points: tuple[str, ...]
    outcome: PointState
    worst_count: int
    cause: str
    confidence: float = 0.95
    scores: bool = False
    speed: metrics.Speed = field(default_factory=metrics.Speed)
    ttft: metrics.Spread = field(default_factory=metrics.Spread)
    itl: metrics.Spread = field(default_factory=metrics.Spread)
    tpot: metrics.Spread = field(default_factory=metrics.Spread)
    latency: metrics.Spread = field(default_factory=metrics.Spread)
    load: burden.Load = field(default_factory=burden.Load)
    memory: burden.Memory = field(default_factory=burden.Memory)
    returned: burden.Returned = field(default_factory=burden.Returned)
    counters: Counters = field(default_factory=Counters)
    hardware: Hardware = field(default_factory=Hardware)
    versus: Versus | None = None
    outliers: tuple[metrics.Outlier, ...] = ()
    compared: int = 0
    prompts_ok: int = 0
    prompts_failed: int = 0
    prompts_missing: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    batches_lost: int = 0
    skipped: int = 0
    marks: tuple[str, ...] = ()

    @property
    def shown_method(self) -> str:
        return f"{clean(self.method)} {MARK}" if self.marks else clean(self.method)

    @property
    def rates(self) -> dict[int, float]:
        return {repeat: amount / wall_s for repeat, (amount, wall_s) in sorted(self.speed.repeats.items())}

    @property
    def outcome_text(self) -> str:
        """With what the figures suffered: prompts that ran in smaller batches than the row says, or after a restart."""
        split = self.flags[FLAG_SPLIT_BATCH]
        run = len(self.points) - self.skipped
        notes = [
            f"{self.worst_count} of {run}" if self.worst_count < run else "",
            f"stopped after {run} of {len(self.points)} repeats" if self.skipped else "",
            f"{counted(self.batches_lost, 'batch', 'batches')} lost" if self.batches_lost else "",
            f"{counted(split, 'prompt')} split" if split else "",
        ]
        said = ", ".join(note for note in notes if note)
        return f"{self.outcome} ({said})" if said else self.outcome


def rows(view: RunView) -> list[Row]:
    """In the order of the sweep file. Raises JournalError if records are damaged."""
    names = varying(view.plan)
    groups: dict[tuple[Any, ...], list[SweepPoint]] = {}
    for point in view.plan.listed:
        key = (point.method, *(getattr(point.config, name) for name in names))
        if point.role == "measure":
            groups.setdefault(key, []).append(point)
    found = [_row(view, group, names) for group in groups.values()]
    name = reference_of(view.plan)
    beside = {_key(row.settings): row.speed for row in found if row.method == name}
    marked = marks(view)
    return [
        replace(
            row,
            versus=versus(name, row.method, row.speed, beside.get(_key(row.settings))),
            marks=tuple(dict.fromkeys(why for point in row.points for why in marked.get(point, ()))),
        )
        for row in found
    ]


def _key(settings: dict[str, Any]) -> bytes:
    return msgspec.json.encode(settings)


def reference_of(plan: Plan) -> str:
    """The method that the others are set against."""
    return plan.measurement.reference or (plan.listed[0].method if plan.points else "")


def drifts(view: RunView, found: Sequence[Row]) -> list[Drift]:
    """Of the cells that were measured once more at the end, those that have figures."""
    names, named = varying(view.plan), labels(view.plan)
    beside = {(row.method, _key(row.settings)): row for row in found}
    made = []
    for point in view.plan.points:
        row = beside.get((point.method, _key(settings_of(point, names))))
        if point.role == "drift" and row is not None:
            again = metrics.speed({point.repeat: view.measures[point.id]}, row.scores, False)
            made.append(drift_of(named[point.id], row.speed, again))
    return made


def varying(plan: Plan) -> list[str]:
    """The settings that tell points of one method apart; batch_size always."""
    names = [f.name for f in fields(BackendConfig) if f.name != "method"]
    return [name for name in names if name == "batch_size" or _varies(plan, name)]


def _varies(plan: Plan, name: str) -> bool:
    seen: dict[str, set[Any]] = {}
    for point in plan.points:
        seen.setdefault(point.method, set()).add(getattr(point.config, name))
    return any(len(values) > 1 for values in seen.values())


def settings_of(point: SweepPoint, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(point.config, name) for name in names}


def labels(plan: Plan) -> dict[str, str]:
    """Point id → how people tell it from the others: "hf_sdpa batch_size=4 (repeat 2 of 3)"."""
    names = [name for name in varying(plan) if _varies(plan, name)]
    return {point.id: _label(point, names, plan.repeats) for point in plan.points}


def _label(point: SweepPoint, names: Sequence[str], repeats: int) -> str:
    repeat = f"(repeat {point.repeat + 1} of {repeats})" if repeats > 1 else ""
    which = "(once more, for drift)" if point.role == "drift" else repeat
    parts = (clean(point.method), settings_text(settings_of(point, names)), which)
    return " ".join(part for part in parts if part)


def _row(view: RunView, group: Sequence[SweepPoint], names: Sequence[str]) -> Row:
    ids = tuple(point.id for point in group)
    states = [view.state_of(point) for point in ids]
    worst = min(states, key=_WORST.index)
    causes = (view.cause_of(point) for point, state in zip(ids, states, strict=True) if state == worst)
    workers = list({w.launched.incarnation: w for point in ids for w in view.workers_of(point)}.values())
    warmups_s = [event.stats.wall_s for event in view.warmups if event.point in ids]
    return Row(
        method=group[0].method,
        settings=settings_of(group[0], names),
        points=ids,
        outcome=worst,
        worst_count=states.count(worst),
        skipped=states.count("skipped"),
        cause=next((cause_text(cause) for cause in causes if cause), ""),
        confidence=view.plan.measurement.confidence,
        load=burden.load(workers, warmups_s),
        memory=burden.memory(workers, [view.measures[point].peak_bytes for point in ids]),
        returned=burden.returned(workers),
        hardware=hardware(view.uses, view.replay, ids),
        batches_lost=sum(event.point in ids for event in view.lost),
        prompts_missing=sum(view.missing.get(point, 0) for point in ids),
        **_figures(view, group),
    )


def _figures(view: RunView, group: Sequence[SweepPoint]) -> dict[str, Any]:
    repeats = {point.repeat: view.measures[point.id] for point in group}
    scores = group[0].config.task == "score"
    speed = metrics.speed(repeats, scores, has_slo(view.plan.measurement))
    outliers, compared = metrics.outliers(repeats, scores)
    times = {
        name: metrics.spread({repeat: getattr(one, f"{name}_s") for repeat, one in repeats.items()}, speed.unit)
        for name in ("ttft", "itl", "tpot", "latency")
    }
    return {
        "scores": scores,
        "speed": speed,
        **times,
        "counters": together(one.counters for one in repeats.values()),
        "outliers": outliers,
        "compared": compared,
        "prompts_ok": sum(one.ok for one in repeats.values()),
        "prompts_failed": sum(one.failed for one in repeats.values()),
        "flags": sum((one.flags for one in repeats.values()), Counter[str]()),
    }


def cache_drift(view: RunView, tolerance: float = 0.05) -> Iterator[str]:
    """Workers that were loaded alike and chose KV caches of different size did not run the same thing."""
    for config, own in _loaded_alike(view.plan):
        ready = [w.ready for w in view.workers.values() if w.ready and own & set(w.points)]
        sizes = [r.metadata.kv_cache_tokens for r in ready if r.metadata.kv_cache_tokens]
        if sizes and max(sizes) > min(sizes) * (1 + tolerance):
            method = config.method.name
            yield f"{method}: the KV cache differs between its workers, {min(sizes)} to {max(sizes)} tokens"


def _loaded_alike(plan: Plan) -> list[tuple[BackendConfig, set[str]]]:
    """What workers are loaded with, each with the points that run so: repeats may have worker starts of their own."""
    found: dict[bytes, tuple[BackendConfig, set[str]]] = {}
    for start in plan.starts:
        _, own = found.setdefault(start.load, (start.config, set()))
        own.update(point.id for point in start.points)
    return list(found.values())
