"""Every figure of a row by a name with its unit, for other programs; and why those that are null are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from msgspec import to_builtins

from orchestrator.record.output import FLAG_NO_WARMUP
from orchestrator.view import answered, reasons, stats
from orchestrator.view.burden import PARTS
from orchestrator.view.compare import Drift, drift_text, ratio_values
from orchestrator.view.metrics import Spread
from orchestrator.view.summary import Row
from orchestrator.view.wording import counted

#: Counters of an engine that are told as they are.
COUNTERS = (
    *("steps", "drafts", "draft_tokens", "accepted_tokens", "cached_tokens", "num_preemptions"),
    *("unique_graphs", "recompiles"),
)
TIMES = ("ttft", "itl", "tpot", "latency")
_NO_UNITS = f"fewer than {stats.LEAST_UNITS} repeats or batches, or zeros among them"


def figures(row: Row) -> dict[str, Any]:
    """`reasons` has a sentence for each figure that is null. Plain JSON values."""
    found: dict[str, Any] = {}
    why: dict[str, str] = {}
    for values, whys in _groups(row):
        found |= values
        why |= {name: whys[name] for name, value in values.items() if value is None}
    return {**found, "reasons": why}


_Group = tuple[dict[str, Any], Mapping[str, str]]


def _groups(row: Row) -> Iterator[_Group]:
    yield _speed(row)
    yield _versus(row)
    for name in TIMES:
        yield _spread(name, getattr(row, name), row)
    yield _load(row)
    yield _memory(row)
    yield _counters(row)
    yield asdict(row.hardware), reasons.hardware(row)
    yield asdict(row.host), reasons.host(row)
    yield (
        {
            "returned": row.returned.ok,
            "returned_bytes": row.returned.amount,
            "returned_wait_s": row.returned.wait_s,
        },
        reasons.returned(row),
    )


def _speed(row: Row) -> _Group:
    speed = row.speed
    low, high = _bounds(speed.output, row)
    total_low, total_high = _bounds(speed.total, row)
    values = {
        "output_tokens_per_s": speed.output and speed.output.value,
        "output_tokens_per_s_low": low,
        "output_tokens_per_s_high": high,
        "total_tokens_per_s": speed.total and speed.total.value,
        "total_tokens_per_s_low": total_low,
        "total_tokens_per_s_high": total_high,
        "requests_per_s": speed.requests,
        "goodput_requests_per_s": speed.good,
        "slo_met_share": speed.met,
        "generated_tokens": speed.generated_tokens,
        "prompt_tokens": speed.prompt_tokens,
    }
    untold = f"of {counted(speed.unjudged, 'output')} the engine does not tell a time that the SLO asks for"
    no_slo = untold if speed.unjudged else reasons.NO_TIME if not speed.total else "no SLO is set (measurement.slo_…)"
    plain = reasons.NO_TIME if not speed.total else reasons.SCORES
    whys = dict.fromkeys(values, plain)
    whys |= {"goodput_requests_per_s": no_slo, "slo_met_share": no_slo}
    for name, told in (("output", speed.output), ("total", speed.total)):
        whys |= dict.fromkeys((f"{name}_tokens_per_s_low", f"{name}_tokens_per_s_high"), _NO_UNITS if told else plain)
    return values, whys


def _versus(row: Row) -> _Group:
    ratio = row.versus.ratio if row.versus else None
    values = {
        **ratio_values(ratio, row.confidence, "speed_ratio"),
        "speed_ratio_paired": ratio and ratio.paired,
        "speed_ratio_unit": row.versus.unit if row.versus and ratio else None,
    }
    whys = dict.fromkeys(values, _NO_UNITS if ratio else row.versus.reason if row.versus else reasons.NO_TIME)
    if row.versus and ratio and row.versus.doubt:
        values["distinguishable"], whys["distinguishable"] = None, row.versus.doubt
    return values, whys


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
    return values, dict.fromkeys(values, _NO_UNITS if spread.count else reasons.time(name, row))


def _bounds(estimate: stats.Estimate | None, row: Row) -> tuple[float | None, float | None]:
    interval = estimate.interval(row.confidence) if estimate else None
    return (interval.low, interval.high) if interval else (None, None)


def _load(row: Row) -> _Group:
    values = {f"load_{name}": row.load.parts[name] for name in PARTS}
    values |= {
        "load_cold_s": row.load.cold_s,
        "load_warm_s": row.load.warm_s,
        "warmup_batch_s": row.load.warmup_batches_s,
    }
    return values, {**reasons.load(row), "warmup_batch_s": reasons.warmup_batch(row)}


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
    }, reasons.memory(row)


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
    return values, reasons.counters(row)


def row_figures(row: Row) -> dict[str, Any]:
    """The row as a whole: what ran, what came of it, and `figures`."""
    found = figures(row)
    return {
        "method": row.method,
        "settings": to_builtins(row.settings),
        "points": list(row.points),
        "outcome": row.outcome,
        "cause": row.cause,
        "notes": list(row.notes),
        "marks": list(row.marks),
        "warnings": list(row.warnings),
        "outputs": {"ok": row.outputs_ok, "failed": row.outputs_failed, "missing": row.outputs_missing},
        "flags": dict(row.flags),
        "neighbours": [{"who": who, "batches": count} for who, count in row.company.most_common()],
        "batches_lost": row.batches_lost,
        "repeats_skipped": row.skipped,
        "reference": row.versus.reference if row.versus else None,
        "batches": [{"prompts": size, "count": row.sizes[size]} for size in sorted(row.sizes, reverse=True)],
        "warmed_up": row.warmed and not row.flags[FLAG_NO_WARMUP],
        "compared_by": compared_by(row),
        "units": {"of": row.speed.unit, "count": row.speed.total.units if row.speed.total else 0},
        "tokens_per_s_by_repeat": {str(repeat): rate for repeat, rate in row.rates.items()},
        "outlying_batches": [
            {"repeat": one.repeat, "batch": one.batch, "wall_s": one.wall_s, "tokens": one.tokens}
            for one in row.outliers
        ],
        "batches_compared": row.compared,
        "accuracy": answered.values(row.accuracy),
        "other_judges": [answered.values(one) for one in row.answers[1:]],
        **found,
        "reasons": {**found["reasons"], **answered.reasons(row)},
    }


def compared_by(row: Row) -> str:
    """The figure that ratios and rates by repeat are of."""
    return "total_tokens_per_s" if row.scores else "output_tokens_per_s"


def drift_figures(row: Row, drift: Drift) -> dict[str, Any]:
    """`row`: of the same cell."""
    return {
        "label": drift.label,
        "compared_by": compared_by(row),
        "before_tokens_per_s": drift.before,
        "after_tokens_per_s": drift.after,
        **ratio_values(drift.ratio, row.confidence),
        "verdict": drift.verdict(row.confidence),
        "told": drift_text(drift, row.confidence),
    }
