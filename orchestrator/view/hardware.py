"""What a row's GPUs did while its measured batches ran, as NVML told it. Nothing of it is estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.provenance import DeviceUse
from orchestrator.record.replay import Range

Uses = Mapping[tuple[str, str], Sequence[DeviceUse]]
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Hardware:
    """Over all measured batches of a row and all devices of their slots; None where not all of them tell.

    energy_j          of the whole boards, from dispatch to answer, the coordinator's turn included
    energy_token_j    the same per generated token
    power_mean_w      the mean of all readings, per device
    """

    energy_j: float | None = None
    energy_token_j: float | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    temperature_max_c: int | None = None
    sm_clock_min_mhz: int | None = None
    sm_clock_mean_mhz: float | None = None
    memory_clock_min_mhz: int | None = None
    throttle: tuple[str, ...] | None = None


def hardware(uses: Uses, ranges: Iterable[Range]) -> Hardware:
    """`uses` by worker and batch. Of the batches whose figures count."""
    if not uses:
        return Hardware()
    commits = [part.commit for part in ranges if part.measured]
    found = [use for commit in commits for use in uses.get((commit.incarnation, commit.batch), ())]
    if not found or not all(uses.get((commit.incarnation, commit.batch)) for commit in commits):
        return Hardware()
    tokens = sum(commit.stats.generated_tokens for commit in commits if commit.stats)
    energy_j = _of_all(sum, (one.energy_j for one in found))
    reasons = [one.throttle for one in found]
    return Hardware(
        energy_j=energy_j,
        energy_token_j=None if energy_j is None or not tokens else energy_j / tokens,
        power_mean_w=_mean((one.power_mean_w, one.readings) for one in found),
        power_max_w=_of_all(max, (one.power_max_w for one in found)),
        temperature_max_c=_of_all(max, (one.temperature_max_c for one in found)),
        sm_clock_min_mhz=_of_all(min, (one.sm_clock_min_mhz for one in found)),
        sm_clock_mean_mhz=_mean((one.sm_clock_mean_mhz, one.readings) for one in found),
        memory_clock_min_mhz=_of_all(min, (one.memory_clock_min_mhz for one in found)),
        throttle=None if None in reasons else tuple(sorted({name for told in reasons for name in told or ()})),
    )


def _of_all(take: Callable[[Sequence[N]], N], values: Iterable[N | None]) -> N | None:
    listed = list(values)
    told = [one for one in listed if one is not None]
    return take(told) if len(told) == len(listed) else None


def _mean(weighed: Iterable[tuple[float | None, int]]) -> float | None:
    pairs = list(weighed)
    told: Iterator[tuple[float, int]] = ((value, count) for value, count in pairs if value is not None)
    sums = [(value * count, count) for value, count in told]
    return sum(value for value, _ in sums) / sum(count for _, count in sums) if len(sums) == len(pairs) else None
