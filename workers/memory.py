"""Host memory of this worker and its children, cheaply enough to be read once a second.

Covers resident sets only: pages that processes share are counted once each.
The coordinator measures the proportional set from outside, for proof; this
is for the live view and for a CPU engine's peak.
"""

from __future__ import annotations

import time

import psutil

from protocol.records import MemoryUse

#: A walk over all processes costs 1 ms at 70 of them and 20 ms at 470, so it is not done at every reading.
CHILDREN_REFRESH_S = 10.0


class MemoryMeter:
    """Remembers the highest sum it has seen. Not thread-safe: one per thread."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._children: list[psutil.Process] = []
        self._refresh_at = float("-inf")
        self._peak_bytes = 0

    def read(self, *, busy: bool = False) -> MemoryUse:
        """Bytes of now. `busy`: use the children known already, so that a measured batch pays for no walk."""
        if not busy and time.monotonic() >= self._refresh_at:
            self._children = _children(self._self)
            self._refresh_at = time.monotonic() + CHILDREN_REFRESH_S
        now = sum(map(_rss_bytes, (self._self, *self._children)))
        self._peak_bytes = max(self._peak_bytes, now, high_water_bytes() or 0)
        return MemoryUse(host_rss_bytes=now, host_peak_rss_bytes=self._peak_bytes)


def high_water_bytes() -> int | None:
    """Highest resident set of this process alone. Not ru_maxrss, which starts at the peak of
    the process that forked us."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except (psutil.Error, OSError):  # a missing figure must not cost a beat
        return []


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):  # it ended since the list was made
        return 0
