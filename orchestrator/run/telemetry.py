"""What the slot's GPUs and the host did while a batch ran: energy, power, clocks, temperature, reasons to throttle; who
else used the CPUs.

Read between polls, never inside the worker, so that no reading falls into what is measured there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from orchestrator import gauges
from orchestrator.gauges import Reading
from orchestrator.nvml import NvmlReader
from orchestrator.provenance import DeviceUse, HostUse
from orchestrator.run import hostload

#: Boards refresh their figures no faster than a few times a second.
INTERVAL_S = 0.9
N = TypeVar("N", int, float)


@dataclass
class Telemetry:
    """`begin` and the ends round a batch, `sample` as often as one likes in between."""

    reader: NvmlReader | None
    clock: Callable[[], float] = time.monotonic
    _energy_j: dict[str, float | None] = field(default_factory=dict)
    _readings: dict[str, list[Reading]] = field(default_factory=dict)
    _next_at: float = 0.0
    _host: tuple[int, HostUse] | None = None
    _held_to: Collection[int] = ()

    def begin(self, uuids: Iterable[str], warden: int, cpus: Collection[int] = ()) -> None:
        """`warden`: all that lives below it is the worker's. `cpus`: those it is held to, none for all."""
        if self.reader is not None:
            self._energy_j = {uuid: gauges.energy_j(self.reader, uuid) for uuid in uuids}
            self._readings = {uuid: [] for uuid in self._energy_j}
            self._next_at = self.clock() + INTERVAL_S
        self._held_to = cpus
        self._host = warden, hostload.counters(warden, self.clock(), cpus)

    def forget(self) -> None:
        """What runs next is not measured."""
        self._readings, self._host = {}, None

    def sample(self) -> None:
        if self._readings and self.clock() >= self._next_at:
            self._next_at = self.clock() + INTERVAL_S
            self._read()

    def end_host(self) -> HostUse | None:
        """None if nothing had begun."""
        if self._host is None:
            return None
        (warden, before), self._host = self._host, None
        return hostload.since(before, hostload.counters(warden, self.clock(), self._held_to))

    def end_devices(self) -> list[DeviceUse]:
        """Of each device; [] if nothing had begun, or nothing is told of any."""
        if self.reader is None or not self._readings:
            return []
        self._read()
        used = [_use(uuid, self._spent(uuid), readings) for uuid, readings in self._readings.items()]
        self._readings = {}
        # One that tells nothing stays beside those that do: without it a part would pass for the whole.
        return used if any(one != DeviceUse(uuid=one.uuid, readings=one.readings) for one in used) else []

    def _read(self) -> None:
        assert self.reader is not None
        for uuid, readings in self._readings.items():
            readings.append(gauges.read(self.reader, uuid))

    def _spent(self, uuid: str) -> float | None:
        assert self.reader is not None
        before, after = self._energy_j[uuid], gauges.energy_j(self.reader, uuid)
        # The counter begins anew when the driver is loaded again.
        return None if before is None or after is None or after < before else after - before


def _use(uuid: str, energy_j: float | None, readings: Sequence[Reading]) -> DeviceUse:
    power, clocks = _told(r.power_w for r in readings), _told(r.sm_clock_mhz for r in readings)
    reasons = [r.throttle for r in readings if r.throttle is not None]
    return DeviceUse(
        uuid=uuid,
        readings=len(readings),
        energy_j=energy_j,
        power_mean_w=fmean(power) if power else None,
        power_max_w=max(power, default=None),
        temperature_max_c=max(_told(r.temperature_c for r in readings), default=None),
        sm_clock_min_mhz=min(clocks, default=None),
        sm_clock_mean_mhz=fmean(clocks) if clocks else None,
        memory_clock_min_mhz=min(_told(r.memory_clock_mhz for r in readings), default=None),
        throttle=sorted(frozenset().union(*reasons)) if reasons else None,
    )


def _told(values: Iterable[N | None]) -> list[N]:
    return [one for one in values if one is not None]
