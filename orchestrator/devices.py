"""What this machine has to run on, told by NVML and the kernel. Never by torch: that would touch a device.

Devices are UUID strings end to end, MIG slices included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.definition.devicefits import called
from orchestrator.nvml import START_PATIENCE_S, Device, DeviceReader, Holder, NvmlReader, open_nvml
from orchestrator.run import cpusets

__all__ = [
    "NO_GPU",
    "Device",
    "DeviceReader",
    "Holder",
    "Machine",
    "discover",
    "host_available_bytes",
    "match_device",
    "reader",
    "shm_listing",
    "visible",
]

SHM = Path("/dev/shm")
SYSTEM = Path("/sys/devices/system")
HIDE = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that mean "none"
#: There while NVIDIA's kernel module is loaded, in most containers as well.
KERNEL_DRIVER = Path("/proc/driver/nvidia")
NO_GPU = "no GPU can be used, though NVIDIA's driver is here"


@dataclass(frozen=True)
class Machine:
    """
    cpus          how many this process may use
    memory_bytes  None where that is not known: it is not this machine
    notes         why it is not "cuda", and what was left out
    cpu_ids       which they are
    nodes         memory node → its CPUs, usable or not; empty where the kernel does not tell
    cores         usable CPU → the first CPU of its core, of which it may be one thread of several
    driver        NVIDIA's driver is here, so `notes` are news
    fault         why it gives no GPU, though nobody asked for the CPU; "" where that is as it should be
    """

    kind: Literal["cuda", "cpu"]
    devices: tuple[Device, ...]
    cpus: int
    memory_bytes: int | None
    notes: tuple[str, ...]
    cpu_ids: tuple[int, ...] = ()
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    cores: Mapping[int, int] = field(default_factory=dict)
    driver: bool = False
    fault: str = ""

    @property
    def gpus(self) -> list[tuple[str, tuple[int, int] | None]]:
        """What a message calls each device, and its compute capability."""
        return [(f"{device} {device.name}", device.capability) for device in self.devices]


def discover(nvml: Any = None) -> Machine:
    """`nvml` stands in for the pynvml module in tests."""
    opened, setting = open_nvml(nvml, START_PATIENCE_S), os.environ.get("CUDA_VISIBLE_DEVICES")
    notes = [opened.why_not] if opened.why_not else []
    devices: tuple[Device, ...] = ()
    if opened.reader is not None:
        there = tuple(opened.reader.devices())
        devices, hidden = visible(there, setting)
        notes += opened.reader.notes + hidden
        if not there and not notes:
            notes.append("NVML sees no device")
    kind: Literal["cuda", "cpu"] = "cuda" if devices else "cpu"
    cpus = cpu_ids()
    nodes, cores = memory_nodes(), cpu_cores(cpus)
    driver = not opened.absent or KERNEL_DRIVER.exists()
    fault = "" if devices or opened.absent or hides_all(setting) else "; ".join(notes)
    return Machine(kind, devices, len(cpus), memory_limit_bytes(), tuple(notes), cpus, nodes, cores, driver, fault)


def reader(machine: Machine) -> NvmlReader | None:
    """What reads the devices of `machine`; None if it has none."""
    return open_nvml(None).reader if machine.devices else None


def hides_all(setting: str | None) -> bool:
    """Whether a CUDA_VISIBLE_DEVICES asks for no device; one that names a device which is not there does not."""
    return setting is not None and setting.partition(",")[0].strip() in HIDE


def visible(devices: tuple[Device, ...], setting: str | None) -> tuple[tuple[Device, ...], list[str]]:
    """The devices that CUDA_VISIBLE_DEVICES lets through, in its order, and what it hides or misnames.

    As CUDA does: numbers, or UUIDs that may be cut short; the first entry it can't place ends the list.
    """
    if setting is None:
        return devices, []
    chosen: list[Device] = []
    notes: list[str] = []
    entries = [part.strip() for part in setting.split(",")]
    for place, entry in enumerate(entries):
        match = match_device(devices, entry)
        if match is None and devices and entry.startswith("MIG-"):
            # A container may see the slice but be told of the whole GPU only: its size would be a wrong number.
            match = Device(devices[0].index, entry, "MIG slice", None)
            notes.append(f"NVML does not know {entry}; its memory is unknown")
        if match is None:
            if entry not in HIDE:
                notes.append(f"CUDA_VISIBLE_DEVICES={setting}: no device {entry!r}; it and the rest are ignored")
            elif chosen and any(entries[place:]):
                notes.append(f"CUDA_VISIBLE_DEVICES={setting}: {entry!r} ends it; it and the rest are ignored")
            break
        if match in chosen:
            notes.append(f"CUDA_VISIBLE_DEVICES={setting}: {entry!r} is named already, and counts once")
        else:
            chosen.append(match)
    if not chosen and devices and not notes:
        notes.append(f"CUDA_VISIBLE_DEVICES={setting!r} hides every device")
    return tuple(chosen), notes


def match_device(devices: tuple[Device, ...], entry: str) -> Device | None:
    found = called(devices, entry)
    return found[0] if found and (entry.isdecimal() or len(found) == 1) else None


def cpu_ids() -> tuple[int, ...]:
    """The CPUs that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_cpus() -> int:
    return len(cpu_ids())


def memory_nodes(root: Path = SYSTEM) -> dict[int, frozenset[int]]:
    """Memory node → its CPUs. A node of memory alone has none and is left out."""
    files = {int(file.parent.name[4:]): file for file in root.glob("node/node[0-9]*/cpulist")}
    found = {node: frozenset(_cpus_in(file)) for node, file in sorted(files.items())}
    return {node: cpus for node, cpus in found.items() if cpus}


def cpu_cores(cpus: Iterable[int], root: Path = SYSTEM) -> dict[int, int]:
    """CPU → the first CPU of its core; itself where the kernel does not tell."""
    threads = {cpu: _cpus_in(root / f"cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    return {cpu: min(core, default=cpu) for cpu, core in threads.items()}


def _cpus_in(file: Path) -> tuple[int, ...]:
    with suppress(OSError, ValueError):
        return cpusets.parse(file.read_text())
    return ()


def meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")


def memory_limit_bytes() -> int:
    """What the machine has, or what our control group may use of it."""
    limits = [limit for limit, _ in cgroup_memory()]
    return min([meminfo_bytes("MemTotal"), *limits])


def host_available_bytes() -> int:
    """What can still be allocated without swapping, inside our control group's limit."""
    rest = [max(0, limit - used) for limit, used in cgroup_memory()]
    return min([meminfo_bytes("MemAvailable"), *rest])


def cgroup_memory() -> Iterator[tuple[int, int]]:
    """(limit, use) in bytes of the memory control groups that we can read, page cache not counted as use."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from group_memory(Path("/sys/fs/cgroup"), path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            yield from group_memory(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def group_memory(root: Path, path: str, limit_file: str, use_file: str) -> Iterator[tuple[int, int]]:
    """Of the group, and of all above it: the limit of a Slurm job is that of a group some levels up. Inside a container
    the path may be the host's view of it; then its own root is the group."""
    parts = Path(path.lstrip("/")).parts
    for folder in (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)):
        with suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())  # "max" is no number: no limit
            used = int((folder / use_file).read_text())
            yield limit, used - cache_bytes(folder)


def cache_bytes(folder: Path) -> int:
    """The page cache that would be given back first; both versions name it alike."""
    with suppress(OSError, ValueError):
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    return 0


def shm_listing() -> set[str]:
    """Full paths of everything in /dev/shm; empty where there is none."""
    return {str(path) for path in SHM.rglob("*")} if SHM.is_dir() else set()
