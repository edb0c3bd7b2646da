"""How busy the machine was while a row's measured batches ran, by Linux's own counters. Nothing of it is estimated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.record.replay import Range
from orchestrator.view.wording import or_unknown, percent_text, seconds_text

#: In all: Linux counts CPU time by the hundredth of a second on each CPU, so shares of less time say nothing.
LEAST_S = 0.5
TOO_SHORT = "too short to tell"


@dataclass(frozen=True)
class Host:
    """Over all measured batches of a row, from dispatch to answer; None where not all of them tell, and all but the
    first two where they are too short to. Shares of CPU time are of the CPUs that the run may use.

    host_s               seconds that the batches took
    host_cpus            how many CPUs they are
    host_worker_cpus     how many of them the worker kept busy, on average
    host_others_share    of their time that everybody else used, the coordinator included
    host_steal_share     in which they had work and the hypervisor ran something else
    host_throttled_share in which a CPU limit of our control groups kept work off them
    host_…_wait_share    of the time, in which some process of the machine, the worker included, waited for it
    """

    host_s: float | None = None
    host_cpus: int | None = None
    host_worker_cpus: float | None = None
    host_others_share: float | None = None
    host_steal_share: float | None = None
    host_throttled_share: float | None = None
    host_cpu_wait_share: float | None = None
    host_memory_wait_share: float | None = None
    host_io_wait_share: float | None = None

    @property
    def short(self) -> bool:
        return self.host_s is not None and self.host_s < LEAST_S


def host(ranges: Iterable[Range]) -> Host:
    """Of the batches whose figures count."""
    uses = [part.commit.host for part in ranges if part.measured]
    told = [use for use in uses if use is not None]
    wall_s = sum(use.wall_s for use in told)
    if not wall_s or len(told) < len(uses):
        return Host()
    counts = {use.cpus for use in told}
    cpus = counts.pop() if len(counts) == 1 else None
    if wall_s < LEAST_S:
        return Host(host_s=wall_s, host_cpus=cpus)
    # A batch may be shorter than what Linux counts in, and its difference below zero: only that of sums says something.
    busy_s, worker_s = _sum(use.busy_s for use in told), _sum(use.worker_s for use in told)
    others_s = None if busy_s is None or worker_s is None else max(0.0, busy_s - worker_s)
    cpu_s = _sum(None if use.cpus is None else use.cpus * use.wall_s for use in told)
    return Host(
        host_s=wall_s,
        host_cpus=cpus,
        host_worker_cpus=None if worker_s is None else worker_s / wall_s,
        host_others_share=_share(others_s, cpu_s),
        host_steal_share=_share(_sum(use.steal_s for use in told), cpu_s),
        host_throttled_share=_share(_sum(use.throttled_s for use in told), cpu_s),
        host_cpu_wait_share=_share(_sum(use.cpu_wait_s for use in told), wall_s),
        host_memory_wait_share=_share(_sum(use.memory_wait_s for use in told), wall_s),
        host_io_wait_share=_share(_sum(use.io_wait_s for use in told), wall_s),
    )


def texts(found: Host) -> dict[str, str]:
    """For a table."""
    shares = {
        "others' share of them": found.host_others_share,
        "stolen": found.host_steal_share,
        "throttled": found.host_throttled_share,
        "waits for a CPU": found.host_cpu_wait_share,
        "for memory": found.host_memory_wait_share,
        "for a disk": found.host_io_wait_share,
    }
    told = {
        "busy with the worker": or_unknown(found.host_worker_cpus, lambda value: f"{value:.2f}"),
        **{name: or_unknown(share, short_percent) for name, share in shares.items()},
    }
    return {
        "time": or_unknown(found.host_s, seconds_text),
        "CPUs": or_unknown(found.host_cpus, str),
        **(dict.fromkeys(told, TOO_SHORT) if found.short else told),
    }


def short_percent(share: float) -> str:
    """0.2345 → "23 %", 0.004 → "0.4 %" """
    return percent_text(round(share, 2 if share >= 0.1 else 3))


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    told = [one for one in listed if one is not None]
    return sum(told) if len(told) == len(listed) else None


def _share(part: float | None, whole: float | None) -> float | None:
    """Counted by the tick, a part may come out a little larger than the whole."""
    return None if part is None or not whole else min(1.0, part / whole)
