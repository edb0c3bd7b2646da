"""What two runs are told apart by: the figures of a row, one for each start of a worker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.view import stats
from orchestrator.view.measures import Measures
from orchestrator.view.runview import Worker

TIMES: Final = ("ttft", "itl", "tpot", "latency")
#: Fewer starts tell nothing of the next one, so that the times of a lone one are not looked up.
LEAST_STARTS: Final = 2


@dataclass(frozen=True)
class Samples:
    """Seconds and bytes, each as (value, 1).

    times   by the name of the time and the start of a worker: its median; of two starts or more
    loads   by how the worker started ("cold", "warm", or "" where nothing is kept) and its incarnation
    peaks   of memory, as it was seen from outside, by incarnation
    """

    times: dict[str, stats.Pairs] = field(default_factory=dict)
    loads: dict[str, stats.Pairs] = field(default_factory=dict)
    peaks: stats.Pairs = field(default_factory=dict)


def samples(by_start: Mapping[str, Sequence[Measures]], workers: Iterable[Worker]) -> Samples:
    """`by_start`: what was measured in each; `workers`: that ran some of it."""
    found = Samples()
    if len(by_start) >= LEAST_STARTS:
        for name in TIMES:
            found.times[name] = _medians(name, by_start)
    for worker in workers:
        one = worker.launched.incarnation
        if worker.ready:
            kind = found.loads.setdefault(worker.launched.artefacts, {})
            kind[one] = (worker.ready.metadata.load.total_s, 1.0)
        peak = worker.released.reclaim.peak_bytes if worker.released else None
        if peak:
            found.peaks[one] = (float(peak), 1.0)
    return found


def _medians(name: str, by_start: Mapping[str, Sequence[Measures]]) -> stats.Pairs:
    found: stats.Pairs = {}
    for start, measures in by_start.items():
        first, *more = (getattr(one, f"{name}_s").values for one in measures)
        values = first[:]
        for other in more:
            values.extend(other)
        (middle,) = stats.quantiles(values, (0.5,))
        if middle is not None:
            found[start] = (middle, 1.0)
    return found
