"""What the methods of a plan need on a device, and what the engines then said they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from orchestrator.definition.memory import Estimate, estimate, share_of
from orchestrator.nvml import Device
from orchestrator.plan import Plan, WorkerStart
from orchestrator.view.burden import Memory, memory
from orchestrator.view.runview import RunView
from orchestrator.view.summary import varying
from orchestrator.view.wording import bytes_text, clean, or_unknown, settings_text
from protocol.specs import BackendConfig, load_fields

SCORING = "to score, the logits of all tokens are made, not of the last alone: they are not counted"
_PARTS = ("weights (told)", "KV cache (told)", "graphs (told)")
HEADER = ("method", "estimated", "peak measured", *_PARTS, "KV cache filled")


def plan_lines(plan: Plan, devices: Sequence[Device], host_bytes: int | None) -> Iterator[str]:
    """A line for all worker starts that are loaded alike: what each device needs to hold, and how full that makes each
    kind of device. `host_bytes`: None where the memory of the host is not known, or not what counts."""
    host = "this machine" if plan.launcher == "local" else "an allocation"
    places = _places(devices, host, host_bytes)
    lines = dict.fromkeys(line for start in plan.starts for line in _start_lines(plan, start, places))
    if lines:
        yield ""
        yield "memory, estimated for the largest batch at full length:"
        yield from lines


def _places(devices: Sequence[Device], host: str, host_bytes: int | None) -> list[tuple[str, int]]:
    """Kinds of devices by name, with the least memory that one of a kind has; the host where there are none."""
    known = sorted((device.name, device.total_bytes) for device in devices if device.total_bytes)
    kinds = [(name, min(size for _, size in group)) for name, group in groupby(known, key=lambda one: one[0])]
    return kinds or ([] if host_bytes is None else [(host, host_bytes)])


def _start_lines(plan: Plan, start: WorkerStart, places: Sequence[tuple[str, int]]) -> Iterator[str]:
    needed = estimate_of(plan, start)
    if needed is None:
        return
    parts = (
        (needed.weights_bytes, "weights"),
        (needed.kv_bytes, f"KV cache ({bytes_text(needed.kv_token_bytes)} a token)"),
        (needed.activations_bytes, "activations"),
    )
    told = " + ".join(f"{bytes_text(size)} {what}" for size, what in (*parts, (needed.graphs_bytes, "graphs")) if size)
    yield f"   {_name(plan, start.config)}: {told} = {_sum(start.config, needed)}; {_fits(start, needed, places)}"
    for note in (*needed.notes, *([SCORING] if _scores(start) else [])):
        yield f"      {note}"


def _sum(config: BackendConfig, needed: Estimate) -> str:
    """Of a device; of the host for all ranks, which share it."""
    of_one, ranks = bytes_text(needed.total_bytes), _sharing(config)
    return of_one if ranks == 1 else f"{of_one} × {ranks} ranks = {bytes_text(needed.total_bytes * ranks)}"


def _sharing(config: BackendConfig) -> int:
    """How many ranks the memory of one place holds."""
    return config.ranks if config.device == "cpu" else 1


def _fits(start: WorkerStart, needed: Estimate, places: Sequence[tuple[str, int]]) -> str:
    return ", ".join(_fit(start, needed, name, size) for name, size in places) or "of how much is not known"


def _fit(start: WorkerStart, needed: Estimate, name: str, size: int) -> str:
    share = share_of(start.config)
    allowed = size if share is None else int(size * share)
    total = needed.total_bytes * _sharing(start.config)
    of_what = name if share is None else f"the {share:.0%} of {name} that it takes"
    if total > allowed:
        return f"does NOT fit {of_what} ({bytes_text(allowed)})"
    return f"{total / allowed:.0%} of {of_what}"


def _name(plan: Plan, config: BackendConfig) -> str:
    """The method, and the load-time settings that tell its workers apart."""
    differing = {name: getattr(config, name) for name in varying(plan) if name in load_fields()}
    return f"{clean(config.method.name)} {settings_text(differing)}".rstrip()


def estimate_of(plan: Plan, start: WorkerStart) -> Estimate | None:
    """A worker is told no task when it loads: that is its points'."""
    shape = plan.model.shape
    config = replace(start.config, task="score") if _scores(start) else start.config
    return None if shape is None else estimate(shape, plan.model.dtype, config)


def _scores(start: WorkerStart) -> bool:
    return any(point.config.task == "score" for point in start.points)


def compared(view: RunView) -> list[dict[str, Any]]:
    """One for all workers that were loaded alike: what they were estimated to take on all their devices together, the
    most that one of them took, and of the parts what the engine told. Plain JSON values, in bytes."""
    loads: dict[bytes, list[WorkerStart]] = {}
    for start in view.plan.starts:
        loads.setdefault(start.load, []).append(start)
    found = []
    for starts in loads.values():
        points = [point.id for start in starts for point in start.points]
        served = {worker.launched.incarnation: worker for point in points for worker in view.workers_of(point)}
        workers = [worker for name, worker in view.workers.items() if name in served and worker.ready]
        needed = estimate_of(view.plan, starts[0])
        if needed is not None and workers:
            told = memory(workers, view.peaks(points))
            name = _name(view.plan, starts[0].config)
            found.append({"workers_of": name, **_compared(needed, starts[0].config.ranks, told)})
    return found


def _compared(needed: Estimate, ranks: int, told: Memory) -> dict[str, Any]:
    return {
        "estimated_bytes": needed.total_bytes * ranks,
        "device_peak_bytes": told.device_peak,
        "host_peak_bytes": told.host_peak,
        "weights_estimated_bytes": needed.weights_bytes * ranks,
        "weights_bytes": told.weights,
        "kv_cache_estimated_bytes": needed.kv_bytes * ranks,
        "kv_cache_bytes": told.kv_cache,
        "graphs_estimated_bytes": needed.graphs_bytes * ranks,
        "graphs_bytes": told.graphs,
        "kv_cache_filled": needed.kv_needed_bytes * ranks / told.kv_cache if told.kv_cache else None,
        "notes": list(needed.notes),
    }


def estimates_told(view: RunView) -> Iterator[tuple[str, ...]]:
    """Rows under HEADER."""
    for one in compared(view):
        parts = (_against(one, part) for part in ("weights", "kv_cache", "graphs"))
        filled = or_unknown(one["kv_cache_filled"], lambda share: f"{share:.0%}")
        yield one["workers_of"], bytes_text(one["estimated_bytes"]), _peak(one), *parts, filled


def _against(one: dict[str, Any], part: str) -> str:
    return f"{bytes_text(one[f'{part}_estimated_bytes'])} ({or_unknown(one[f'{part}_bytes'], bytes_text)})"


def _peak(one: dict[str, Any]) -> str:
    if one["device_peak_bytes"] is not None:
        return f"{bytes_text(one['device_peak_bytes'])} on devices"
    return or_unknown(one["host_peak_bytes"], lambda size: f"{bytes_text(size)} on the host")
