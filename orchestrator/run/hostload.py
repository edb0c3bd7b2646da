"""What Linux counts of this machine's load: CPU time, whosever it is, time stolen and withheld, and stalls.

Counters only ever grow, so what a batch met is the difference of two readings, taken before its dispatch and after its
answer: nothing is read while a worker is measured. What a kernel or a container does not show is None.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import fields

from orchestrator import proc
from orchestrator.provenance import HostUse
from orchestrator.run import cgroups

#: proc_stat(5): columns of a CPU, behind its name. Time of guests is in that of users.
_BUSY, _STEAL = (0, 1, 2, 5, 6), 7
_COUNTERS = [one.name for one in fields(HostUse) if one.name not in ("wall_s", "cpus")]
_PRESSURE = Path("/proc/pressure")
#: Of cpu.stat in control groups of version 2 and 1, by the unit they count in.
_THROTTLED = {b"throttled_usec": 1e-6, b"throttled_time": 1e-9}


def counters(root: int, now: float, held_to: Collection[int] = ()) -> HostUse:
    """Since the machine started. `root`: the warden of the worker; `now`: seconds of any clock that only grows;
    `held_to`: the CPUs that the worker is held to, for its neighbours have others."""
    cpus = held_to or os.sched_getaffinity(0)
    times = cpu_times(_read(Path("/proc/stat")), cpus)
    pressure = {f"{name}_wait_s": stalled_s(_read(_PRESSURE / name)) for name in ("cpu", "memory", "io")}
    return HostUse(
        wall_s=now,
        cpus=len(cpus),
        busy_s=times[0] if times else None,
        steal_s=times[1] if times else None,
        worker_s=_tree_s(root),
        throttled_s=throttled_s(map(_read, _limits())),
        **pressure,
    )


def since(before: HostUse, after: HostUse) -> HostUse:
    """What happened in between."""
    grown = {name: _grown(getattr(before, name), getattr(after, name)) for name in _COUNTERS}
    cpus = after.cpus if after.cpus == before.cpus else None
    return HostUse(wall_s=after.wall_s - before.wall_s, cpus=cpus, **grown)


def _grown(before: float | None, after: float | None) -> float | None:
    """One that began anew tells nothing."""
    return None if before is None or after is None or after < before else after - before


def cpu_times(stat: bytes, cpus: Collection[int]) -> tuple[float, float] | None:
    """Seconds that these CPUs were busy, and that were stolen from them, out of /proc/stat. None unless it has all."""
    wanted = {b"cpu%d" % cpu for cpu in cpus}
    lines = [[int(ticks) for ticks in rest] for name, *rest in map(bytes.split, stat.splitlines()) if name in wanted]
    if len(lines) < len(wanted) or any(len(line) <= _STEAL for line in lines):
        return None
    busy, steal = (sum(line[place] for line in lines for place in places) for places in (_BUSY, (_STEAL,)))
    return _seconds(busy), _seconds(steal)


def stalled_s(pressure: bytes) -> float | None:
    """Out of a file of /proc/pressure: time in which some process was stalled."""
    for line in pressure.splitlines():
        if line.startswith(b"some "):
            return int(line.rpartition(b"total=")[2]) / 1e6
    return None


def throttled_s(stats: Iterable[bytes]) -> float | None:
    """Out of the cpu.stat of our control groups: the limit may be set on any of them. None where none tells."""
    lines = [line.split() for stat in stats for line in stat.splitlines()]
    told = [int(line[1]) * _THROTTLED[line[0]] for line in lines if line[0] in _THROTTLED]
    return sum(told) if told else None


def _limits() -> list[Path]:
    return [path for version in (2, 1) for path in cgroups.files("cpu", "cpu.stat", version=version)]


def _tree_s(root: int) -> float | None:
    """What ended meanwhile and was waited for is in its parent's time."""
    ticks, todo = 0, [root]
    with suppress(OSError):
        if not proc.is_ours() or proc.children(root) is None:
            return None
        while todo:
            pid = todo.pop()
            if one := proc.stat(pid):
                ticks += one.cpu_ticks
                todo += proc.children(pid) or ()
        return _seconds(ticks)
    return None


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""
