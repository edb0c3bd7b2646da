"""From records to the figures of the comparison: one row per method and combination of settings.

    output tokens/s   sum of generated tokens / sum of wall time of the engine's generate calls, over
                      the measured batches; with repeats the mean over them, ± sample standard
                      deviation. vLLM's "output token throughput" and AIPerf's "output token
                      throughput", with the time between batches (ours, not the engine's) left out.
    TTFT              from hand-over of the batch to the prompt's first token, so waiting inside
                      the engine counts. vLLM, GuideLLM and AIPerf count from the request's sending.
    TPOT              (latency - TTFT) / (generated tokens - 1) of one prompt, then the mean over
                      prompts. vLLM calls it TPOT; AIPerf and GuideLLM call it inter-token latency (ITL),
                      GuideLLM's own "time per output token" includes the first token and is another figure.
    p95               linear interpolation between the two nearest ranks, as numpy's default.

A figure that the engine does not tell is None, never 0.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import fields

from orchestrator.plan import Plan, SweepPoint
from orchestrator.view.narrator import cause_text, given_back_bytes
from orchestrator.view.runview import PointState, RunView, Worker
from orchestrator.view.wording import clean, counted, settings_text
from protocol.records import FLAG_SPLIT_BATCH
from protocol.specs import BackendConfig

#: The worst first: a row is as good as its worst repeat.
_WORST: tuple[PointState, ...] = ("failed", "incomplete", "partial", "unfinished", "ok")
SECOND_QUANTILE = 0.95


@dataclass(frozen=True)
class Row:
    """One method at one combination of settings, all repeats together. Seconds and bytes.

    load_s         from Init to Ready, the mean over its workers
    peak_bytes     the highest seen from outside or told by the worker
    returned       the memory of all its workers came back; None if no teardown is known
    returned_bytes, return_wait_s   of the worker that took longest
    """

    method: str
    settings: dict[str, Any]
    points: tuple[str, ...]
    outcome: PointState
    worst_count: int
    cause: str
    tokens_per_s: float | None = None
    tokens_per_s_sd: float | None = None
    ttft_median_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_mean_s: float | None = None
    load_s: float | None = None
    peak_bytes: int | None = None
    returned: bool | None = None
    returned_bytes: int | None = None
    return_wait_s: float | None = None
    prompts_ok: int = 0
    prompts_failed: int = 0
    prompts_missing: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    batches_lost: int = 0

    @property
    def outcome_text(self) -> str:
        """With what the figures suffered: prompts that ran in smaller batches than the row says, or after a restart."""
        split = self.flags[FLAG_SPLIT_BATCH]
        notes = [
            f"{self.worst_count} of {len(self.points)}" if self.worst_count < len(self.points) else "",
            f"{counted(self.batches_lost, 'batch', 'batches')} lost" if self.batches_lost else "",
            f"{counted(split, 'prompt')} split" if split else "",
        ]
        said = ", ".join(note for note in notes if note)
        return f"{self.outcome} ({said})" if said else self.outcome


def rows(view: RunView) -> list[Row]:
    """In the order of the plan. Raises JournalError if records are damaged."""
    names = varying(view.plan)
    groups: dict[tuple[Any, ...], list[SweepPoint]] = {}
    for point in view.plan.points:
        key = (point.method, *(getattr(point.config, name) for name in names))
        groups.setdefault(key, []).append(point)
    return [_row(view, group, names) for group in groups.values()]


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
    parts = (clean(point.method), settings_text(settings_of(point, names)), repeat)
    return " ".join(part for part in parts if part)


def _row(view: RunView, group: Sequence[SweepPoint], names: Sequence[str]) -> Row:
    ids = tuple(point.id for point in group)
    states = [view.state_of(point) for point in ids]
    worst = min(states, key=_WORST.index)
    causes = (view.cause_of(point) for point, state in zip(ids, states, strict=True) if state == worst)
    workers = list({w.launched.incarnation: w for point in ids for w in view.workers_of(point)}.values())
    return Row(
        method=group[0].method,
        settings=settings_of(group[0], names),
        points=ids,
        outcome=worst,
        worst_count=states.count(worst),
        cause=next((cause_text(cause) for cause in causes if cause), ""),
        peak_bytes=_peak(view, ids, workers),
        batches_lost=sum(event.point in ids for event in view.lost),
        load_s=_mean([w.ready.metadata.load.total_s for w in workers if w.ready]),
        **_figures(view, ids),
        **_given_back(workers),
    )


def _figures(view: RunView, ids: Sequence[str]) -> dict[str, Any]:
    measures = [view.measures[point] for point in ids]
    rates = [m.tokens / m.wall_s for m in measures if m.wall_s > 0]
    ttft = sorted(value for m in measures for value in m.ttft_s)
    return {
        "tokens_per_s": _mean(rates),
        "tokens_per_s_sd": statistics.stdev(rates) if len(rates) > 1 else None,
        "ttft_median_s": quantile(ttft, 0.5),
        "ttft_p95_s": quantile(ttft, SECOND_QUANTILE),
        "tpot_mean_s": _mean([value for m in measures for value in m.tpot_s]),
        "prompts_ok": sum(m.ok for m in measures),
        "prompts_failed": sum(m.failed for m in measures),
        "prompts_missing": sum(view.missing.get(point, 0) for point in ids),
        "flags": sum((m.flags for m in measures), Counter[str]()),
    }


def _peak(view: RunView, ids: Sequence[str], workers: Sequence[Worker]) -> int | None:
    from_outside = (w.released.reclaim.peak_bytes for w in workers if w.released)
    from_inside = (view.measures[point].peak_bytes for point in ids)
    return max((peak for peak in (*from_outside, *from_inside) if peak is not None), default=None)


def _given_back(workers: Sequence[Worker]) -> dict[str, Any]:
    proofs = [w.released.reclaim for w in workers if w.released]
    if not proofs:
        return {}
    slowest = max(proofs, key=lambda proof: proof.wait_s)
    return {
        "returned": all(proof.returned and not proof.processes_left for proof in proofs),
        "returned_bytes": given_back_bytes(slowest),
        "return_wait_s": slowest.wait_s,
    }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Of values sorted upwards; linear between ranks. None if there are none."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def cache_drift(view: RunView, tolerance: float = 0.05) -> Iterator[str]:
    """Workers of one start that chose KV caches of different size did not run the same thing."""
    for start in view.plan.starts:
        own = {point.id for point in start.points}
        ready = [w.ready for w in view.workers.values() if w.ready and own & set(w.points)]
        sizes = [r.metadata.kv_cache_tokens for r in ready if r.metadata.kv_cache_tokens]
        if sizes and max(sizes) > min(sizes) * (1 + tolerance):
            method = start.config.method.name
            yield f"{method}: the KV cache differs between its workers, {min(sizes)} to {max(sizes)} tokens"
