"""Every figure of a row by a name with its unit, for other programs; and why those that are null are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from msgspec import to_builtins

from orchestrator.view import stats
from orchestrator.view.burden import PARTS
from orchestrator.view.compare import Drift
from orchestrator.view.hardware import Hardware
from orchestrator.view.metrics import Spread
from orchestrator.view.summary import Row

#: Counters of an engine that are told as they are.
COUNTERS = (
    *("steps", "drafts", "draft_tokens", "accepted_tokens", "cached_tokens", "num_preemptions"),
    *("unique_graphs", "recompiles"),
)
TIMES = ("ttft", "itl", "tpot", "latency")
_NO_UNITS = f"fewer than {stats.LEAST_UNITS} repeats or batches, or zeros among them"
_NO_TIME = "no batch was measured"
_SCORES = "the task is to score: nothing is generated"
_MEMORY = {
    "peak_bytes": "nothing was read, from outside or inside",
    "device_peak_bytes": "no device but the CPU was used",
    "host_peak_bytes": "the worker does not tell",
    "device_peak_allocated_bytes": "the engine's allocator does not tell",
    "weights_bytes": "the engine does not tell",
    "graphs_bytes": "the engine does not tell",
    "kv_cache_bytes": "the engine does not tell",
    "fragmentation": "the engine's allocator does not tell",
}
_HARDWARE = {
    **{one.name: "NVML does not tell, or no GPU was used" for one in fields(Hardware)},
    "energy_token_j": "NVML does not tell, no GPU was used, or nothing was generated",
}
_UNTOLD = {
    "ttft": "no record tells when its first token came",
    "itl": "no record tells when each of its tokens came",
    "tpot": "no record of two tokens or more tells when its first and last came",
    "latency": "no record tells when its last token came",
}
_PARTS = {
    "import_s": "no worker was loaded, or none measured its import",
    "total_s": "no worker was loaded",
}


def figures(row: Row) -> dict[str, Any]:
    """`reasons` has a sentence for each figure that is null. Plain JSON values."""
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for values, whys in _groups(row):
        found |= values
        reasons |= {name: whys[name] for name, value in values.items() if value is None}
    return {**found, "reasons": reasons}


_Group = tuple[dict[str, Any], Mapping[str, str]]


def _groups(row: Row) -> Iterator[_Group]:
    yield _speed(row)
    yield _versus(row)
    for name in TIMES:
        yield _spread(name, getattr(row, name), row)
    yield _load(row)
    yield _memory(row)
    yield _counters(row)
    yield asdict(row.hardware), _HARDWARE
    yield (
        {
            "returned": row.returned.ok,
            "returned_bytes": row.returned.amount,
            "returned_wait_s": row.returned.wait_s,
        },
        dict.fromkeys(("returned", "returned_bytes", "returned_wait_s"), "no teardown that tells it is in the journal"),
    )


def _speed(row: Row) -> _Group:
    speed = row.speed
    low, high = _bounds(speed.output, row)
    values = {
        "output_tokens_per_s": speed.output and speed.output.value,
        "output_tokens_per_s_low": low,
        "output_tokens_per_s_high": high,
        "total_tokens_per_s": speed.total and speed.total.value,
        "requests_per_s": speed.requests,
        "goodput_requests_per_s": speed.good,
        "slo_met_share": speed.met,
    }
    untold = f"of {speed.unjudged} prompts the engine does not tell a time that the SLO asks for"
    no_slo = untold if speed.unjudged else _NO_TIME if not speed.total else "no SLO is set (measurement.slo_…)"
    plain = _NO_TIME if not speed.total else _SCORES
    whys = dict.fromkeys(values, plain)
    whys |= {"goodput_requests_per_s": no_slo, "slo_met_share": no_slo}
    bounds = _NO_UNITS if speed.output else plain
    return values, whys | {"output_tokens_per_s_low": bounds, "output_tokens_per_s_high": bounds}


def _versus(row: Row) -> _Group:
    ratio = row.versus.ratio if row.versus else None
    interval = ratio.interval(row.confidence) if ratio else None
    values = {
        "speed_ratio": ratio and ratio.value,
        "speed_ratio_low": interval and interval.low,
        "speed_ratio_high": interval and interval.high,
        "distinguishable": ratio and ratio.distinguishable(row.confidence),
        "speed_ratio_paired": ratio and ratio.paired,
        "speed_ratio_unit": row.versus.unit if row.versus and ratio else None,
    }
    return values, dict.fromkeys(values, _NO_UNITS if ratio else row.versus.reason if row.versus else _NO_TIME)


def _spread(name: str, spread: Spread, row: Row) -> _Group:
    low, high = _bounds(spread.median, row)
    values = {
        f"{name}_mean_s": spread.mean_s,
        f"{name}_p50_s": spread.median and spread.median.value,
        f"{name}_p50_low_s": low,
        f"{name}_p50_high_s": high,
        f"{name}_p90_s": spread.p90_s,
        f"{name}_p95_s": spread.p95_s,
        f"{name}_p99_s": spread.p99_s,
        f"{name}_count": spread.count,
    }
    untold = _UNTOLD[name] if row.prompts_ok else "no prompt has an output"
    return values, dict.fromkeys(values, _NO_UNITS if spread.count else untold)


def _bounds(estimate: stats.Estimate | None, row: Row) -> tuple[float | None, float | None]:
    interval = estimate.interval(row.confidence) if estimate else None
    return (interval.low, interval.high) if interval else (None, None)


def _load(row: Row) -> _Group:
    values = {f"load_{name}": row.load.parts[name] for name in PARTS}
    whys = {f"load_{name}": _PARTS.get(name, "the engine does not tell; it is inside load_total_s") for name in PARTS}
    values |= {
        "load_cold_s": row.load.cold_s,
        "load_warm_s": row.load.warm_s,
        "warmup_batch_s": row.load.warmup_batches_s,
    }
    return values, whys | {
        "load_cold_s": "no worker of a method that compiles was loaded without artefacts of an earlier one",
        "load_warm_s": "no worker was lent compiled artefacts of an earlier one",
        "warmup_batch_s": "no warm-up batch was run",
    }


def _memory(row: Row) -> _Group:
    memory = row.memory
    return {
        "peak_bytes": memory.peak,
        "device_peak_bytes": memory.device_peak,
        "host_peak_bytes": memory.host_peak,
        "device_peak_allocated_bytes": memory.device_peak_allocated,
        "weights_bytes": memory.weights,
        "graphs_bytes": memory.graphs,
        "kv_cache_bytes": memory.kv_cache,
        "fragmentation": memory.fragmentation,
    }, _MEMORY


def _counters(row: Row) -> _Group:
    counters = row.counters
    values: dict[str, Any] = {name: counters.told(name) for name in COUNTERS}
    values |= {
        "draft_acceptance": counters.acceptance,
        "mean_accepted_tokens": counters.accepted_length,
        "bucket_fill": counters.bucket_fill,
        "buckets": [
            {"batch_size": size, "length": length, "batches": count}
            for (size, length), count in sorted(counters.buckets.items())
        ]
        or None,
        "expert_tokens": counters.experts or None,
    }
    whys = dict.fromkeys(values, "the engine does not tell")
    return values, whys | {
        "draft_acceptance": "no draft is told: no speculation, or an engine that does not count it",
        "mean_accepted_tokens": "no draft is told: no speculation, or an engine that does not count it",
        "bucket_fill": "no batch was padded to a bucket",
        "buckets": "no batch was padded to a bucket",
        "expert_tokens": "not asked for (expert_load), or no mixture of experts",
    }


def row_figures(row: Row) -> dict[str, Any]:
    """The row as a whole: what ran, what came of it, and `figures`."""
    return {
        "method": row.method,
        "settings": to_builtins(row.settings),
        "points": list(row.points),
        "outcome": row.outcome,
        "cause": row.cause,
        "marks": list(row.marks),
        "prompts": {"ok": row.prompts_ok, "failed": row.prompts_failed, "missing": row.prompts_missing},
        "flags": dict(row.flags),
        "batches_lost": row.batches_lost,
        "repeats_skipped": row.skipped,
        "reference": row.versus.reference if row.versus else None,
        "units": {"of": row.speed.unit, "count": row.speed.total.units if row.speed.total else 0},
        "tokens_per_s_by_repeat": {str(repeat): rate for repeat, rate in row.rates.items()},
        "outlying_batches": [
            {"repeat": one.repeat, "batch": one.batch, "wall_s": one.wall_s, "tokens": one.tokens}
            for one in row.outliers
        ],
        "batches_compared": row.compared,
        **figures(row),
    }


def drift_figures(drift: Drift, confidence: float) -> dict[str, Any]:
    interval = drift.ratio.interval(confidence) if drift.ratio else None
    return {
        "label": drift.label,
        "before_tokens_per_s": drift.before,
        "after_tokens_per_s": drift.after,
        "ratio": drift.ratio and drift.ratio.value,
        "ratio_low": interval and interval.low,
        "ratio_high": interval and interval.high,
        "distinguishable": drift.ratio and drift.ratio.distinguishable(confidence),
    }
