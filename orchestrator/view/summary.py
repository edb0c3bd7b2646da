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

from orchestrator.events import FLAG_NO_WARMUP
from orchestrator.plan import Plan, SweepPoint
from orchestrator.view import burden, metrics
from orchestrator.view.compare import Drift, Versus, drift_of, versus
from orchestrator.view.counters import Counters, together
from orchestrator.view.hardware import Hardware, hardware
from orchestrator.view.host import Host, host
from orchestrator.view.marks import MARK, marks
from orchestrator.view.measures import has_slo, of_warmup
from orchestrator.view.narrator import cause_text
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.stats import Estimate
from orchestrator.view.unrest import WARNING, warnings
from orchestrator.view.wording import clean, counted, joined, settings_text
from protocol.records import FLAG_SPLIT_BATCH
from protocol.specs import BackendConfig

#: The worst first: a row is as good as its worst repeat.
_WORST: tuple[PointState, ...] = ("failed", "incomplete", "partial", "unfinished", "ok", "skipped")


@dataclass(frozen=True)
class Row:
    """One method at one combination of settings, all repeats together. Seconds and bytes.

    config    of its first point: what it was asked
    sizes     how many prompts ran at once → how many measured batches had so many
    warmed    whether there was a warm-up batch before its measured ones
    rates     tokens/s of each repeat that has one, in their order: of generated tokens, to score of all
    versus    its speed beside the reference's at the same settings
    outliers  batches far from the others, of `compared`; they are in all figures
    skipped   repeats that were not needed, as those before them were enough
    drift     its cell measured once more at the end, if it was
    marks     why its figures may not be compared as they are
    """

    config: BackendConfig
    settings: dict[str, Any]
    points: tuple[str, ...]
    outcome: PointState
    worst_count: int
    cause: str
    confidence: float = 0.95
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
    host: Host = field(default_factory=Host)
    drift: Drift | None = None
    versus: Versus | None = None
    outliers: tuple[metrics.Outlier, ...] = ()
    compared: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    warmed: bool = True
    prompts_ok: int = 0
    prompts_failed: int = 0
    prompts_missing: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    batches_lost: int = 0
    skipped: int = 0
    marks: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.config.method.name

    @property
    def scores(self) -> bool:
        """Nothing is generated."""
        return self.config.task == "score"

    @property
    def rate(self) -> Estimate | None:
        """Tokens/s by which methods are compared: of generated tokens, to score of all."""
        return self.speed.rate

    @property
    def shown_method(self) -> str:
        """With a sign for what the legend says of it."""
        signs = (MARK if self.marks else "", WARNING if self.warnings else "")
        return f"{clean(self.method)} {''.join(signs)}".rstrip()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What disturbed its measurement."""
        return warnings(self.rates.values(), self.host, self.hardware, self.drift, self.confidence)

    @property
    def rates(self) -> dict[int, float]:
        return {repeat: amount / wall_s for repeat, (amount, wall_s) in sorted(self.speed.repeats.items())}

    @property
    def cold(self) -> bool:
        """What only the first batch of a worker pays for is in its figures."""
        return bool(self.sizes) and not self.warmed

    @property
    def split(self) -> int:
        """Prompts that ran in smaller batches than asked, as theirs failed and was cut."""
        return self.flags[FLAG_SPLIT_BATCH]

    @property
    def uneven(self) -> bool:
        """Batches with fewer prompts than the row says are in its figures."""
        return bool(self.sizes) and set(self.sizes) != {self.config.batch_size}

    @property
    def notes(self) -> tuple[str, ...]:
        """What its figures suffered, or hold beside what the row says: batches of another size, none to warm up."""
        split, unwarmed = self.split, self.flags[FLAG_NO_WARMUP]
        run = len(self.points) - self.skipped
        done = f"{run - self.worst_count} of {run} repeats done"
        notes = (
            (done if self.outcome == "unfinished" else f"{self.worst_count} of {run}")
            if self.worst_count < run
            else "",
            f"stopped after {run} of {len(self.points)} repeats" if self.skipped else "",
            f"{counted(self.batches_lost, 'batch', 'batches')} lost" if self.batches_lost else "",
            f"{counted(split, 'prompt')} split" if split else "",
            "no warm-up" if self.cold else "",
            f"{counted(unwarmed, 'prompt')} without warm-up" if unwarmed else "",
            f"batches of {joined(list(map(str, sorted(self.sizes, reverse=True))))}" if self.uneven else "",
        )
        return tuple(note for note in notes if note)

    @property
    def outcome_text(self) -> str:
        return f"{self.outcome} ({', '.join(self.notes)})" if self.notes else self.outcome


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
    beside = {_key(row.settings): row for row in found if row.method == name}
    marked, again = marks(view), _drifts(view, found)
    return [
        replace(
            row,
            drift=again.get(row.points),
            versus=_versus(name, row, beside.get(_key(row.settings))),
            marks=(*_cut(row), *dict.fromkeys(why for point in row.points for why in marked.get(point, ()))),
        )
        for row in found
    ]


def _versus(name: str, row: Row, theirs: Row | None) -> Versus:
    """`name`: of the reference."""
    split = row.split or (theirs is not None and theirs.split)
    doubt = "one of the two ran in smaller batches than asked" if split else ""
    return versus(name, row.method, row.speed, None if theirs is None else theirs.speed, doubt)


def _cut(row: Row) -> Iterator[str]:
    """What it ran in is no batch size of the sweep: its speed is of another one."""
    if row.split:
        which = f"{counted(row.split, 'prompt')} in batches that were split as they failed"
        yield f"ran in smaller batches than asked: {which}"


def _key(settings: dict[str, Any]) -> bytes:
    return msgspec.json.encode(settings)


def reference_of(plan: Plan) -> str:
    """The method that the others are set against."""
    return plan.measurement.reference or (plan.listed[0].method if plan.points else "")


def drifts(found: Iterable[Row]) -> list[tuple[Row, Drift]]:
    """Of the cells that were measured once more at the end, each with its row."""
    return [(row, row.drift) for row in found if row.drift]


def _drifts(view: RunView, found: Iterable[Row]) -> dict[tuple[str, ...], Drift]:
    """By the points of the row."""
    names, named = varying(view.plan), labels(view.plan)
    beside = {(row.method, _key(row.settings)): row for row in found}
    made = {}
    for point in view.plan.points:
        row = beside.get((point.method, _key(settings_of(point, names))))
        if point.role == "drift" and row is not None:
            again = metrics.speed({point.repeat: view.measures[point.id]}, row.scores, False)
            pending = view.state_of(point.id) == "unfinished"
            made[row.points] = drift_of(named[point.id], row.speed, again, pending)
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
    warmups_lost = sum(event.point in ids and of_warmup(event.batch) for event in view.lost)
    return Row(
        config=group[0].config,
        settings=settings_of(group[0], names),
        points=ids,
        outcome=worst,
        worst_count=states.count(worst),
        skipped=states.count("skipped"),
        cause=next((cause_text(cause) for cause in causes if cause), ""),
        confidence=view.plan.measurement.confidence,
        load=burden.load(workers, warmups_s, warmups_lost),
        memory=burden.memory(workers, [view.measures[point].peak_bytes for point in ids]),
        returned=burden.returned(workers),
        hardware=hardware(view.uses, view.replay, ids),
        host=host(view.replay, ids),
        warmed=view.plan.warmup > 0,
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
        "speed": speed,
        **times,
        "counters": together(one.counters for one in repeats.values()),
        "outliers": outliers,
        "compared": compared,
        "sizes": sum((one.sizes for one in repeats.values()), Counter[int]()),
        "prompts_ok": sum(one.ok for one in repeats.values()),
        "prompts_failed": sum(one.failed for one in repeats.values()),
        "flags": sum((one.flags for one in repeats.values()), Counter[str]()),
    }
