"""What the methods of a plan need on a device, and what the engines then said they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from orchestrator.definition.memory import Estimate, estimate, share_of
from orchestrator.nvml import Device
from orchestrator.plan import Plan, WorkerStart
from orchestrator.view.runview import RunView
from orchestrator.view.wording import UNKNOWN, bytes_text, clean, or_unknown

SCORING = "to score, the logits of all tokens are made, not of the last alone: they are not counted"
HEADER = ("method", "on each device", "weights", "KV cache", "activations", "graphs", "KV cache filled")


def plan_lines(plan: Plan, devices: Sequence[Device], host_bytes: int) -> Iterator[str]:
    """A line for each worker start: what it needs, and how full that makes each kind of device."""
    places = _places(devices, host_bytes)
    lines = dict.fromkeys(line for start in plan.starts for line in _start_lines(plan, start, places))
    if lines:
        yield ""
        yield "memory, estimated for the largest batch at full length:"
        yield from lines


def _places(devices: Sequence[Device], host_bytes: int) -> list[tuple[str, int]]:
    """Kinds of devices by name, with the least memory that one of a kind has; the host where there are none."""
    known = sorted((device.name, device.total_bytes) for device in devices if device.total_bytes)
    kinds = [(name, min(size for _, size in group)) for name, group in groupby(known, key=lambda one: one[0])]
    return kinds or [("this machine", host_bytes)]


def _start_lines(plan: Plan, start: WorkerStart, places: Sequence[tuple[str, int]]) -> Iterator[str]:
    needed = estimate_of(plan, start)
    if needed is None:
        return
    parts = (
        (needed.weights_bytes, "weights"),
        (needed.kv_bytes, "KV cache"),
        (needed.activations_bytes, "activations"),
    )
    told = " + ".join(f"{bytes_text(size)} {what}" for size, what in (*parts, (needed.graphs_bytes, "graphs")) if size)
    yield f"   {start.config.method.name}: {told} = {bytes_text(needed.total_bytes)}; {_fits(start, needed, places)}"
    scores = any(point.config.task == "score" for point in start.points)
    for note in (*needed.notes, *([SCORING] if scores else [])):
        yield f"      {note}"


def _fits(start: WorkerStart, needed: Estimate, places: Sequence[tuple[str, int]]) -> str:
    return ", ".join(_fit(start, needed, name, size) for name, size in places)


def _fit(start: WorkerStart, needed: Estimate, name: str, size: int) -> str:
    share = share_of(start.config)
    allowed = size if share is None else int(size * share)
    of_what = name if share is None else f"the {share:.0%} of {name} that it takes"
    if needed.total_bytes > allowed:
        return f"does NOT fit {of_what} ({bytes_text(allowed)})"
    return f"{needed.total_bytes / allowed:.0%} of {of_what}"


def estimate_of(plan: Plan, start: WorkerStart) -> Estimate | None:
    shape = plan.model.shape
    return None if shape is None else estimate(shape, plan.model.dtype, start.config)


def estimates_told(view: RunView) -> Iterator[tuple[str, ...]]:
    """Rows under HEADER: each figure as it was estimated, and what the engine reported of it."""
    for start in view.plan.starts:
        needed = estimate_of(view.plan, start)
        own = {point.id for point in start.points}
        ready = next((w.ready.metadata for w in view.workers.values() if w.ready and own & set(w.points)), None)
        if needed is None or ready is None:
            continue
        memory = ready.memory
        used = None if ready.kv_cache_bytes is None else needed.kv_needed_bytes / ready.kv_cache_bytes
        yield (
            clean(start.config.method.name),
            bytes_text(needed.total_bytes),
            _against(needed.weights_bytes, memory.weights_bytes),
            _against(needed.kv_bytes, ready.kv_cache_bytes),
            bytes_text(needed.activations_bytes),
            _against(needed.graphs_bytes, memory.graphs_bytes),
            or_unknown(used, lambda share: f"{share:.0%}"),
        )


def _against(estimated: int, told: int | None) -> str:
    return f"{bytes_text(estimated)} estimated, {UNKNOWN if told is None else bytes_text(told)} told"
