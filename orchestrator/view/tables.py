"""The parts of the report that hold figures: results, latency, throughput, load, memory, counters, spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from orchestrator.definition.measurement import Measurement
from orchestrator.view import answered, stats
from orchestrator.view.asked import slo_text
from orchestrator.view.burden import PARTS
from orchestrator.view.compare import IS_REFERENCE, Drift, drift_text
from orchestrator.view.figures import COUNTERS, TIMES, figures
from orchestrator.view.host import LEAST_S
from orchestrator.view.host import texts as host_texts
from orchestrator.view.markup import cell, grid
from orchestrator.view.results import (
    given_back,
    label,
    legend,
    load_text,
    speed_name,
    speed_text,
    versus_text,
)
from orchestrator.view.summary import Row
from orchestrator.view.unrest import WARNING
from orchestrator.view.wording import (
    UNKNOWN,
    bytes_text,
    count_text,
    counted,
    or_unknown,
    percent_text,
    rate_text,
    seconds_text,
    setting_text,
)

RESULTS = """\
Tokens/s: generated tokens (to score: those of prompt and continuation) / wall time of the engine's generate calls, all
repeats together, the smaller last batch of each too, warm-up left out. TTFT: from hand-over of the batch to the
prompt's first token, waiting inside the engine included. TPOT: (latency − TTFT) / (tokens − 1) per prompt (the ITL of
AIPerf and GuideLLM). p50: the median over prompts. Load: from the order to load until ready, cold without compiled
artefacts of an earlier worker and warm with them; the import of the engine is before that order and not in it. Given
back: held just before teardown, which may be less than the peak, minus left after it, and the time from the end of the
worker's last process until it was back. – : not known; why stands under Not known. All formulas and sources:
docs/metrics.md."""
COUNTS = """\
Batches: how many of how many prompts, over all repeats. Tokens: those that the rates are made of."""
INTERVALS = """\
Intervals: on the logarithm, Student's t × the bootstrap's standard error over independent units, which are the
repeats, or where there is but one its batches."""
HOST = f"""\
While the measured batches ran, from dispatch to answer. CPUs: those that the run may use. Others: whoever is not of the
worker, the coordinator included. Stolen: by the hypervisor. Throttled: by a limit on CPU time. Waits: part of the time
in which some process of the machine, the worker included, had to wait. Too short to tell: less than {LEAST_S} s in all,
as Linux counts CPU time in hundredths of a second; such a row is not warned of its host either."""
_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "latency": "end to end"}
_LISTED_OUTLIERS = 5
#: Null together with the figure that they are beside.
_ASIDE = ("_low", "_high", "_low_s", "_high_s", "_p90_s", "_p95_s", "_p99_s", "_mean_s", "_paired", "_unit")


def results(found: Sequence[Row], rest: Iterable[str] = ()) -> Iterator[str]:
    """`rest`: of the rows that are not among them."""
    head = [speed_name(found), "interval", "vs reference", "interval", "TTFT p50", "TPOT p50", "load", "peak memory"]
    head += ["given back", "outputs ok", "failed", "missing", "outcome", "cause"]
    judged = any(row.accuracy for row in found)
    yield from _table(
        found,
        [*head[:4], answered.NAME, *head[4:]] if judged else head,
        lambda row: _result(row, [answered.text(row.accuracy)] if judged else []),
    )
    yield ""
    yield from (f"- {cell(line)}" for line in (*rest, *legend(found)))
    yield ""
    yield RESULTS


def _result(row: Row, answers: Sequence[str]) -> list[str]:
    ratio = row.versus.ratio if row.versus else None
    return [
        speed_text(row),
        _interval(row.rate, row, rate_text),
        versus_text(row),
        _interval(ratio, row, rate_text),
        *answers,
        _median(row.ttft.median),
        _median(row.tpot.median),
        load_text(row),
        or_unknown(row.memory.peak, bytes_text),
        given_back(row),
        count_text(row.outputs_ok),
        count_text(row.outputs_failed),
        count_text(row.outputs_missing),
        row.outcome_text,
        row.cause or UNKNOWN,
    ]


def latency(found: Sequence[Row]) -> Iterator[str]:
    """A line for each time that some engine tells."""
    body = [
        [*_named(row), _NAMES[name], *_spread(row, name)] for row in found for name in TIMES if getattr(row, name).count
    ]
    head = ["time", "mean", "p50", "interval", "p90", "p95", "p99", "values"]
    yield from grid([*_names(found), *head], body)


def _spread(row: Row, name: str) -> list[str]:
    one = getattr(row, name)
    times = [or_unknown(value, seconds_text) for value in (one.p90_s, one.p95_s, one.p99_s)]
    median = [_median(one.median), _interval(one.median, row, seconds_text)]
    return [or_unknown(one.mean_s, seconds_text), *median, *times, count_text(one.count)]


def throughput(found: Sequence[Row], slo: Measurement) -> Iterator[str]:
    head = ["output tokens/s", "total tokens/s", "prompts/s", "goodput, prompts/s", "SLO met", _by_repeat(found)]
    yield from _table(found, [*head, "batches", "prompt tokens", "generated tokens"], _throughput)
    yield ""
    yield COUNTS
    yield f"Goodput: of prompts with {slo_text(slo)}." if slo_text(slo) else "Goodput: no SLO is set."


def _by_repeat(found: Sequence[Row]) -> str:
    """Named by the tokens that are meant."""
    kinds = list(dict.fromkeys("total" if row.scores else "output" for row in found)) or ["output"]
    mixed = " (output; where the task is to score: total)" if len(kinds) > 1 else ""
    return f"{'' if mixed else kinds[0] + ' '}tokens/s by repeat{mixed}"


def _throughput(row: Row) -> list[str]:
    speed = row.speed
    totals = [or_unknown(one, lambda found: rate_text(found.value)) for one in (speed.output, speed.total)]
    counts = [or_unknown(one, rate_text) for one in (speed.requests, speed.good)]
    by_repeat = ", ".join(rate_text(rate) for rate in row.rates.values()) or UNKNOWN
    tokens = [count_text(speed.prompt_tokens), count_text(speed.generated_tokens)]
    return [*totals, *counts, or_unknown(speed.met, percent_text), by_repeat, _batches(row), *tokens]


def _batches(row: Row) -> str:
    """ "6 of 4, 3 of 2" """
    return ", ".join(f"{count_text(row.sizes[size])} of {size}" for size in sorted(row.sizes, reverse=True)) or UNKNOWN


def load(found: Sequence[Row]) -> Iterator[str]:
    head = [name.removesuffix("_s").replace("_", " ") for name in PARTS]
    yield from _table(found, [*head, "cold", "warm", "a warm-up batch", "workers"], _load)


def _load(row: Row) -> list[str]:
    one = row.load
    times = [*(one.parts[name] for name in PARTS), one.cold_s, one.warm_s, one.warmup_batches_s]
    return [*(or_unknown(value, seconds_text) for value in times), str(one.workers)]


def memory(found: Sequence[Row]) -> Iterator[str]:
    head = ["peak on devices", "peak on the host", "allocated at most", "weights", "KV cache", "graphs"]
    yield from _table(found, [*head, "fragmentation"], _memory)


def _memory(row: Row) -> list[str]:
    one = row.memory
    sizes = (one.device_peak, one.host_peak, one.device_peak_allocated, one.weights, one.kv_cache, one.graphs)
    return [*(or_unknown(size, bytes_text) for size in sizes), or_unknown(one.fragmentation, percent_text)]


def counters(found: Sequence[Row]) -> Iterator[str]:
    """Of the engines that tell any."""
    yield from _told(found, _counted)


def hardware(found: Sequence[Row]) -> Iterator[str]:
    """Of the rows whose GPUs tell any."""
    yield from _told(found, _of_devices)


def host(found: Sequence[Row]) -> Iterator[str]:
    """Of the rows of whose batches it was counted."""
    lines = list(_told(found, lambda row: host_texts(row.host)))
    if lines:
        yield from lines
        yield ""
        yield HOST


def _told(found: Sequence[Row], texts: Callable[[Row], dict[str, str]]) -> Iterator[str]:
    """Columns and rows that are all unknown are left out."""
    told = [row for row in found if any(text != UNKNOWN for text in texts(row).values())]
    used = [name for name in (texts(told[0]) if told else ()) if any(texts(row)[name] != UNKNOWN for row in told)]
    if told:
        yield from _table(told, used, lambda row: [texts(row)[name] for name in used])


def _of_devices(row: Row) -> dict[str, str]:
    one = row.hardware
    throttled = or_unknown(one.throttle, lambda reasons: ", ".join(reasons) or "never")
    return {
        "energy": or_unknown(one.energy_j, lambda value: f"{rate_text(value)} J"),
        "energy per token": or_unknown(one.energy_token_j, lambda value: f"{value:.3g} J"),
        "power, mean": or_unknown(one.power_mean_w, lambda value: f"{value:.0f} W"),
        "power, most": or_unknown(one.power_max_w, lambda value: f"{value:.0f} W"),
        "hottest": or_unknown(one.temperature_max_c, lambda value: f"{value} °C"),
        "SM clock, mean": or_unknown(one.sm_clock_mean_mhz, lambda value: f"{value:.0f} MHz"),
        "SM clock, least": or_unknown(one.sm_clock_min_mhz, lambda value: f"{value} MHz"),
        "memory clock, least": or_unknown(one.memory_clock_min_mhz, lambda value: f"{value} MHz"),
        "throttled by": throttled,
    }


def _counted(row: Row) -> dict[str, str]:
    one = row.counters
    sizes = [f"{size} × {length}: {counted(count, 'batch', 'batches')}" for (size, length), count in _buckets(row)]
    told = {name.replace("_", " "): one.told(name) for name in COUNTERS}
    plain = {name: or_unknown(value, lambda known: count_text(round(known))) for name, value in told.items()}
    return {
        **plain,
        "acceptance": or_unknown(one.acceptance, percent_text),
        "mean accepted length": or_unknown(one.accepted_length, lambda value: f"{value:.2f}"),
        "bucket fill": or_unknown(one.bucket_fill, percent_text),
        "buckets, prompts × length": ", ".join(sizes) or UNKNOWN,
        "busiest expert, × its layer's mean": or_unknown(one.imbalance, lambda value: f"{value:.2f}"),
    }


def _buckets(row: Row) -> list[tuple[tuple[int, int], int]]:
    return sorted(row.counters.buckets.items())


def spread(found: Sequence[Row], drifts: Sequence[tuple[Row, Drift]]) -> Iterator[str]:
    """What the intervals are made of, what lies outside, and what changed with time."""
    yield INTERVALS
    yield ""
    yield from (f"- {cell(_outlying(row))}" for row in found if row.outliers)
    if not any(row.outliers for row in found):
        yield "- no batch lies outside Tukey's fences (1.5 interquartile ranges beyond the quartiles)"
    yield from (f"- {WARNING} {cell(f'{label(row)}: {what}')}" for row in found for what in row.warnings)
    yield from (f"- drift: {cell(_drifted(row, drift))}" for row, drift in drifts)


def _outlying(row: Row) -> str:
    named = [
        f"batch {one.batch} of repeat {one.repeat + 1}: {seconds_text(one.wall_s)} for {counted(one.tokens, 'token')}"
        for one in row.outliers
    ]
    more = f" and {len(named) - _LISTED_OUTLIERS} more" if len(named) > _LISTED_OUTLIERS else ""
    count = f"{count_text(len(named))} of {counted(row.compared, 'batch', 'batches')}"
    listed = ", ".join(named[:_LISTED_OUTLIERS])
    return f"{label(row)}: {count} outside Tukey's fences in time per token, in all figures: {listed}{more}"


def _drifted(row: Row, drift: Drift) -> str:
    """`row`: of the same cell."""
    before, after = (or_unknown(value, rate_text) for value in (drift.before, drift.after))
    speeds = f"{drift.label}: {before} {speed_name([row])} before, {after} at the end"
    return f"{speeds}: {drift_text(drift, row.confidence)}"


def unknown(found: Sequence[Row]) -> Iterator[str]:
    """Each reason once, with the figures that are null by it and the rows where they are."""
    seen: dict[str, dict[str, list[str]]] = {}
    for row in found:
        for name, reason in figures(row)["reasons"].items():
            if reason != IS_REFERENCE and not name.endswith(_ASIDE):
                seen.setdefault(reason, {}).setdefault(label(row), []).append(name)
    for reason, by_row in seen.items():
        same: dict[str, list[str]] = {}
        for row_label, names in by_row.items():
            same.setdefault(", ".join(names), []).append(row_label)
        for names_text, labels in same.items():
            where = "all rows" if len(labels) == len(found) > 1 else ", ".join(labels)
            yield f"- {cell(names_text)} ({cell(where)}): {cell(reason)}"


def _table(found: Sequence[Row], head: Sequence[str], texts: Callable[[Row], Sequence[str]]) -> Iterator[str]:
    yield from grid([*_names(found), *head], [[*_named(row), *texts(row)] for row in found])


def _names(found: Sequence[Row]) -> list[str]:
    return ["method", *(found[0].settings if found else ())]


def _named(row: Row) -> list[str]:
    return [row.shown_method, *(setting_text(value) for value in row.settings.values())]


def _median(estimate: stats.Estimate | None) -> str:
    return or_unknown(estimate, lambda found: seconds_text(found.value))


def _interval(one: stats.Estimate | stats.Ratio | None, row: Row, text: Callable[[float], str]) -> str:
    interval = one.interval(row.confidence) if one else None
    return or_unknown(interval, lambda found: f"{text(found.low)} to {text(found.high)}")
