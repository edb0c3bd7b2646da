"""The rows of the comparison: one for each method and combination of settings.

What the figures are, and how they are made, is in `metrics` (speed and latency), `burden` (load and memory),
`counters` and `stats`; docs/metrics.md has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import fields

from orchestrator.plan import Plan, SweepPoint
from orchestrator.record.output import FLAG_NO_WARMUP
from orchestrator.view import burden, metrics
from orchestrator.view.accuracy import Accuracy
from orchestrator.view.compare import Drift, Versus
from orchestrator.view.counters import Counters
from orchestrator.view.hardware import Hardware
from orchestrator.view.host import Host
from orchestrator.view.marks import COMPANY, MARK
from orchestrator.view.runview import PointState
from orchestrator.view.samples import Samples
from orchestrator.view.stats import Estimate, Pairs
from orchestrator.view.unrest import WARNING, warnings
from orchestrator.view.wording import clean, counted, joined, settings_text
from protocol.records import FLAG_SPLIT_BATCH
from protocol.specs import BackendConfig

_SETTINGS = tuple(f.name for f in fields(BackendConfig) if f.name != "method")


@dataclass(frozen=True)
class Row:
    """One method at one combination of settings, all repeats together. Seconds and bytes.

    config    of its first point: what it was asked
    sizes     how many prompts ran at once → how many measured batches had so many
    warmed    whether there was a warm-up batch before its measured ones
    rates     tokens/s of each repeat that has one, in their order: of generated tokens, to score of all
    versus    its speed beside the reference's at the same settings
    starts    tokens and seconds of all measurements of its cell, by the start of a worker that they were planned in
    samples   other figures of these, by start of a worker
    outliers  batches far from the others, of `compared`; they are in all figures
    company   what ran on other slots meanwhile → during how many measured batches; `crowded`: during how many anything
    outputs   of each prompt in each repeat: there, of a prompt that failed, or not there at all
    skipped   repeats that were not needed, as those before them were enough
    drift     its cell measured once more at the end, if it was
    marks     why its figures may not be compared as they are
    answers   how many are right, by each judge of the run
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
    starts: Pairs = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    outliers: tuple[metrics.Outlier, ...] = ()
    compared: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    warmed: bool = True
    outputs_ok: int = 0
    outputs_failed: int = 0
    outputs_missing: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    batches_lost: int = 0
    company: Counter[str] = field(default_factory=Counter)
    crowded: int = 0
    skipped: int = 0
    marks: tuple[str, ...] = ()
    answers: tuple[Accuracy, ...] = ()

    @property
    def accuracy(self) -> Accuracy | None:
        """By the run's first judge."""
        return self.answers[0] if self.answers else None

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
        signs = (MARK if self.marks else "", WARNING if self.warnings else "", COMPANY if self.crowded else "")
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
        """Outputs that came of smaller batches than asked, as theirs failed and was cut."""
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
            f"{counted(split, 'output')} of split batches" if split else "",
            "no warm-up" if self.cold else "",
            f"{counted(unwarmed, 'output')} without warm-up" if unwarmed else "",
            f"batches of {joined(list(map(str, sorted(self.sizes, reverse=True))))}" if self.uneven else "",
        )
        return tuple(note for note in notes if note)

    @property
    def outcome_text(self) -> str:
        return f"{self.outcome} ({', '.join(self.notes)})" if self.notes else self.outcome


def cut(row: Row) -> Iterator[str]:
    """What it ran in is no batch size of the sweep: its speed is of another one."""
    if row.split:
        which = f"{counted(row.split, 'output')} of batches that were split as they failed"
        yield f"ran in smaller batches than asked: {which}"


def reference_of(plan: Plan) -> str:
    """The method that the others are set against."""
    return plan.measurement.reference or (plan.listed[0].method if plan.points else "")


def drifts(found: Iterable[Row]) -> list[tuple[Row, Drift]]:
    """Of the cells that were measured once more at the end, each with its row."""
    return [(row, row.drift) for row in found if row.drift]


def varying(plan: Plan) -> list[str]:
    """The settings that tell points of one method apart; batch_size always."""
    differing = _differing(plan)
    return [name for name in _SETTINGS if name == "batch_size" or name in differing]


def _differing(plan: Plan) -> set[str]:
    first: dict[str, BackendConfig] = {}
    found: set[str] = set()
    for point in plan.points:
        usual = first.setdefault(point.method, point.config)
        if usual is not point.config:
            found.update(
                name for name in _SETTINGS if name not in found and getattr(usual, name) != getattr(point.config, name)
            )
    return found


def settings_of(point: SweepPoint, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(point.config, name) for name in names}


def labels(plan: Plan) -> dict[str, str]:
    """Point id → how people tell it from the others: "hf_sdpa batch_size=4 (repeat 2 of 3)"."""
    differing = _differing(plan)
    names = [name for name in _SETTINGS if name in differing]
    return {point.id: _label(point, names, plan.repeats) for point in plan.points}


def _label(point: SweepPoint, names: Sequence[str], repeats: int) -> str:
    repeat = f"(repeat {point.repeat + 1} of {repeats})" if repeats > 1 else ""
    which = "(once more, for drift)" if point.role == "drift" else repeat
    parts = (clean(point.method), settings_text(settings_of(point, names)), which)
    return " ".join(part for part in parts if part)
