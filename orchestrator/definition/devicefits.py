"""What a sweep file asks of devices and CPUs that the machine has not, with its place in the file. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.definition.places import Places
from orchestrator.definition.requirements import Kind
from orchestrator.errors import Problem
from orchestrator.run.cpusets import listed
from orchestrator.view.wording import bytes_text, counted, joined
from orchestrator.view.wording import listed as some_of

#: GPUs of one kind differ by the pages that each has retired.
SAME_MEMORY: Final = 0.01
_LISTED: Final = 8


class Gpu(Protocol):
    """As `orchestrator.nvml.Device`."""

    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def total_bytes(self) -> int | None: ...


G = TypeVar("G", bound=Gpu)


def called(devices: Sequence[G], entry: int | str) -> list[G]:
    """Those that an entry of a list of devices may mean: an index is NVML's, whatever else is visible; a UUID may be
    cut short. The slices of a GPU have its index."""
    text = str(entry)
    if text.isdecimal():
        return [device for device in devices if device.index == int(text)]
    return [device for device in devices if text and device.uuid.startswith(text)]


def chosen(use: DeviceUse, devices: Sequence[G]) -> tuple[G, ...]:
    """The devices that the sweep uses, in its order. Only where there are no `problems`."""
    if use.use is None:
        return tuple(devices)
    return tuple(device for entry in use.use for device in called(devices, entry))


def problems(
    use: DeviceUse, kind: Kind, devices: Sequence[Gpu], cpu_ids: Collection[int], places: Places
) -> list[Problem]:
    """`devices`: all that are visible; `cpu_ids`: those that this process may use."""
    found = list(_few_cpus(use, cpu_ids, places))
    if kind == "cpu":
        return [*found, *_gpus_without_any(use, places), *_foreign_cpus(use, cpu_ids, places)]
    return [*found, *_cpus_beside_gpus(use, places), *_named(use, devices, places), *_unlike(use, devices, places)]


def remarks(use: DeviceUse, kind: Kind, devices: Sequence[Gpu], cells: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """What follows from it that nobody may expect, a sentence each. Only where there are no `problems`."""
    found, using = [], chosen(use, devices)
    width = max((c.get("tensor_parallel_size", 1) * c.get("pipeline_parallel_size", 1) for c in cells), default=1)
    if use.slots and kind == "cuda" and use.slots > (possible := len(using) // width):
        each = f"{counted(len(using), 'GPU')}, {width} to a worker,"
        found.append(f"devices.slots is {use.slots}, but {each} allow {counted(possible, 'worker')} at once")
    if use.slots and use.cpus and use.slots < len(use.cpus):
        sets = joined([f"[{cpus}]" for cpus in use.cpus[use.slots :]])
        found.append(f"devices.slots is {use.slots}: the CPUs of {sets} are not used")
    if use.use is not None and len(kinds := _kinds(using)) > 1:
        found.append(
            f"the GPUs differ ({_kinds_text(kinds)}): methods that ran on different ones don't compare in speed"
        )
    return found


def _gpus_without_any(use: DeviceUse, places: Places) -> Iterator[Problem]:
    if use.use is not None:
        message = f"names {counted(len(use.use), 'GPU')}, and this machine has none that can be used"
        yield places.problem("devices.use", message, "leave it out; `doctor` says why no GPU is seen")


def _foreign_cpus(use: DeviceUse, cpu_ids: Collection[int], places: Places) -> Iterator[Problem]:
    for n, cpus in enumerate(use.cpu_sets):
        if lacking := set(cpus).difference(cpu_ids):
            message = f"this process may not use CPU {listed(lacking)}"
            yield places.problem(f"devices.cpus[{n}]", message, f"it may use {listed(cpu_ids)}")


def _few_cpus(use: DeviceUse, cpu_ids: Collection[int], places: Places) -> Iterator[Problem]:
    if use.slots and not use.share_cpus and use.slots > len(cpu_ids):
        message = f"{use.slots} workers at once need as many CPUs, and this process may use {len(cpu_ids)}"
        yield places.problem("devices.slots", message, f"write {len(cpu_ids)} at most, or share_cpus: true")


def _cpus_beside_gpus(use: DeviceUse, places: Places) -> Iterator[Problem]:
    if use.cpus is not None:
        message = "is for machines without GPUs; here each worker gets the CPUs nearest to its GPUs"
        yield places.problem("devices.cpus", message, "leave it out")


def _named(use: DeviceUse, devices: Sequence[Gpu], places: Places) -> Iterator[Problem]:
    """Entries that mean no device, several, or one that another entry means."""
    taken: dict[str, str] = {}
    for n, entry in enumerate(use.use or ()):
        key, found = f"devices.use[{n}]", called(devices, entry)
        if not found:
            yield places.problem(key, f"there is no GPU {entry} here", f"there are {_names(devices)}")
        elif len(found) > 1:
            what = "is cut into slices" if isinstance(entry, int) else "is the beginning of several UUIDs"
            yield places.problem(key, f"{entry} {what}", f"name them: {some_of([one.uuid for one in found], _LISTED)}")
        elif (first := taken.setdefault(found[0].uuid, key)) != key:
            yield places.problem(key, f"{entry} is the same GPU as {first}", "leave it out")


def _unlike(use: DeviceUse, devices: Sequence[Gpu], places: Places) -> Iterator[Problem]:
    """A method that ran on another kind of GPU than the next is not compared with it, but with the GPU."""
    kinds = _kinds(devices)
    if use.use is None and len(kinds) > 1:
        message = f"the visible GPUs differ ({_kinds_text(kinds)}), and methods would be compared across them"
        alike = ", ".join(_spelt(device) for device in kinds[0])
        yield places.problem("devices", message, f"name those to use, for example devices: {{use: [{alike}]}}")


def _kinds(devices: Sequence[Gpu]) -> list[list[Gpu]]:
    """Those of a name and memory together, the first of the machine first; memory that is not told fits any."""
    kinds: list[list[Gpu]] = []
    for device in devices:
        kind = next((kind for kind in kinds if _alike(kind[0], device)), None)
        if kind is None:
            kinds.append([device])
        else:
            kind.append(device)
    return kinds


def _alike(one: Gpu, other: Gpu) -> bool:
    if one.name != other.name or one.total_bytes is None or other.total_bytes is None:
        return one.name == other.name
    return abs(one.total_bytes - other.total_bytes) <= SAME_MEMORY * max(one.total_bytes, other.total_bytes)


def _kinds_text(kinds: Sequence[Sequence[Gpu]]) -> str:
    def text(kind: Sequence[Gpu]) -> str:
        size = kind[0].total_bytes
        return f"{len(kind)} × {kind[0].name}" + (f" with {bytes_text(size)}" if size is not None else "")

    return ", ".join(map(text, kinds))


def _names(devices: Sequence[Gpu]) -> str:
    return some_of([f"{device.index} ({device.uuid})" for device in devices], _LISTED)


def _spelt(device: Gpu) -> str:
    """The index where it is one device's alone."""
    return device.uuid if device.uuid.startswith("MIG-") else str(device.index)
