"""The runs in Prometheus' text format.

Series of their own have the runs that have not finished, the MOST_RUNS newest of them; finished ones are only counted.
So there are no more series than slots, states and classes of failure times MOST_RUNS. What is not known has no sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from orchestrator import __version__
from orchestrator.view.runview import RunState

MOST_RUNS: Final = 50
STATES: Final = (*get_args(RunState), "broken", "unread")
POINTS: Final = ("done", "failed", "partial", "skipped", "left")

Told = Mapping[str, Any]


def exposition(runs: Sequence[Told], accept: str) -> tuple[bytes, str]:
    """The text, and its content type. `runs`: as the API tells each."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(runs))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class _Runs(Collector):
    def __init__(self, runs: Sequence[Told]) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        open_runs = [run for run in self._runs if run["state"] not in ("finished", "broken", "unread")]
        shown = sorted(open_runs, key=_newest)[:MOST_RUNS]
        yield InfoMetricFamily("airlock_build", "The version that serves this.", value={"version": __version__})
        yield _by("airlock_runs", "Runs by state.", "state", _states(self._runs))
        left_out = len(open_runs) - len(shown)
        yield GaugeMetricFamily("airlock_runs_without_series", "Unfinished runs that have none here.", left_out)
        yield from _families(list(zip(_names(shown), shown, strict=True)))


def _newest(run: Told) -> float:
    return -(run.get("last_event_at") or 0)


def _states(runs: Iterable[Told]) -> dict[str, int]:
    counts = Counter(run["state"] for run in runs)
    return {state: counts[state] for state in STATES}


def _names(runs: Sequence[Told]) -> list[str]:
    """Two folders may look alike once what can't be shown is replaced."""
    counts = Counter(run["name"] for run in runs)
    return [run["name"] if counts[run["name"]] == 1 else f"{run['name']} {run['key']}" for run in runs]


def _by(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


_Named = Sequence[tuple[str, Told]]
#: Metric, what it is, and the name of the value in the API.
_GAUGES: Final = (
    ("airlock_run_starts", "Coordinators that it has had.", "starts"),
    ("airlock_run_records", "Outputs that are on the disk, error records too.", "records"),
    ("airlock_run_records_planned", "Outputs that the plan asks for.", "records_planned"),
    ("airlock_run_eta_seconds", "Until the last worker is gone, as far as times so far tell.", "eta_s"),
    ("airlock_run_started_timestamp_seconds", "When it was begun first.", "started_at"),
    ("airlock_run_last_event_timestamp_seconds", "When its journal was last written.", "last_event_at"),
)
_COUNTERS: Final = (
    ("airlock_run_generated_tokens", "Tokens in measured batches.", "generated_tokens"),
    ("airlock_run_measured_seconds", "Inside engines' generate calls, warm-up excluded.", "measured_s"),
)
_SLOT_GAUGES: Final = (
    ("airlock_slot_tokens_per_second", "Generated in the last batch of its worker.", "tokens_per_s"),
    ("airlock_slot_memory_bytes", "Of its worker's processes, or in use on its GPUs.", "memory_bytes"),
)


def _families(runs: _Named) -> Iterator[Metric]:
    for name, text, key in _GAUGES:
        yield _of_runs(GaugeMetricFamily(name, text, labels=["run"]), runs, key)
    for name, text, key in _COUNTERS:
        yield _of_runs(CounterMetricFamily(name, text, labels=["run"]), runs, key)
    yield _nested("airlock_run_points", "Points by how they stand.", "state", runs, _points)
    yield _nested("airlock_run_failed_points", "Points by the class of their failure.", "class", runs, _failed)
    yield _nested("airlock_run_state", "1 for the state it is in.", "state", runs, _state)
    yield from _of_slots(runs)


def _of_runs(family: Any, runs: _Named, key: str) -> Metric:
    for name, run in runs:
        if run.get(key) is not None:
            family.add_metric([name], run[key])
    found: Metric = family
    return found


def _nested(name: str, text: str, label: str, runs: _Named, counts: Any) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["run", label])
    for run_name, run in runs:
        for value, count in counts(run).items():
            family.add_metric([run_name, value], count)
    return family


def _points(run: Told) -> dict[str, int]:
    return {state: run["points"][state] for state in POINTS}


def _failed(run: Told) -> dict[str, int]:
    found: dict[str, int] = run.get("failures_by_class", {})
    return found


def _state(run: Told) -> dict[str, int]:
    return {state: int(run["state"] == state) for state in get_args(RunState)}


def _of_slots(runs: _Named) -> Iterator[Metric]:
    """A slot may have two workers for a while, one of them standing by: only one is at work."""
    slots = [(name, slot, one) for name, run in runs for slot, one in _at_work(run).items()]
    for metric, text, key in _SLOT_GAUGES:
        family = GaugeMetricFamily(metric, text, labels=["run", "slot", "method"])
        for name, slot, one in slots:
            if one[key] is not None:
                family.add_metric([name, slot, one["method"]], one[key])
        yield family
    phases = GaugeMetricFamily("airlock_slot_phase", "1 for what its worker does.", labels=["run", "slot", "phase"])
    for name, slot, one in slots:
        phases.add_metric([name, slot, one["state"]], 1)
    yield phases


def _at_work(run: Told) -> dict[str, Told]:
    """By slot the worker that is furthest on."""
    return {one["slot"] or "slot0": one for one in reversed(run.get("slots", ()))}
