"""How a machine is cut into slots: which devices, which CPUs with them, and how many workers at once.

Where several may run at once each is held to CPUs of its own, near its devices, from the first worker to the last:
what a method gets must not depend on who else happens to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.devices import Machine, host_available_bytes, meminfo_bytes
from orchestrator.run.cpusets import divide, listed, unused
from orchestrator.run.slots import Slot, Slots, host, numbered
from orchestrator.view.wording import counted


@dataclass(frozen=True)
class Slotted:
    """notes: what was decided that nobody may expect."""

    slots: Slots
    notes: tuple[str, ...] = ()


def slotted(machine: Machine, use: DeviceUse) -> Slotted:
    """`machine`: with the devices that are to be used, and no others."""
    return _on_devices(machine, use) if machine.devices else _on_cpus(machine, use)


def _on_devices(machine: Machine, use: DeviceUse) -> Slotted:
    count = len(machine.devices)
    most = 1 if use.exclusive else min(use.slots or count, count)
    if most == 1 or use.share_cpus:
        return Slotted(Slots(numbered(machine.devices), most))
    if machine.cpus < count:
        few = f"{counted(machine.cpus, 'CPU')} for {counted(count, 'GPU')}"
        note = f"one worker at a time, as there are {few}; devices: {{share_cpus: true}} lets them share CPUs"
        return Slotted(Slots(numbered(machine.devices), 1), (note,))
    near = [device.near for device in machine.devices]
    shares = divide(machine.cpu_ids, machine.nodes, near, count, machine.cores)
    return Slotted(Slots(numbered(machine.devices, shares), most), _shared_out(machine, shares, most))


def _on_cpus(machine: Machine, use: DeviceUse) -> Slotted:
    sets = use.cpu_sets
    parts = use.slots or 1
    if not sets and parts > 1 and not use.share_cpus:
        sets = divide(machine.cpu_ids, machine.nodes, [], parts, machine.cores)
    if not sets:
        units = tuple(Slot(f"slot{n}") for n in range(parts)) if parts > 1 else host()
        return Slotted(Slots(units, 1 if use.exclusive else parts))
    units = tuple(Slot(f"slot{n}", (), cpus) for n, cpus in enumerate(sets))
    most = 1 if use.exclusive else min(use.slots or len(units), len(units))
    return Slotted(Slots(units, most), _shared_out(machine, sets, most))


def _shared_out(machine: Machine, shares: tuple[tuple[int, ...], ...], most: int) -> tuple[str, ...]:
    each = ", ".join(f"slot{n}: {listed(cpus)}" for n, cpus in enumerate(shares))
    left = unused(machine.cpu_ids, shares)
    rest = f"; {listed(left)} left over" if left else ""
    return (f"{counted(most, 'worker')} at once, each on CPUs of its own ({each}{rest})",)


def memory_of(slot: Slot) -> int | None:
    """The memory of the slot's largest device; on the host what is free. None where it is not told."""
    if not slot.devices:
        return host_available_bytes() + meminfo_bytes("SwapFree")
    sizes = [device.total_bytes for device in slot.devices]
    return max(size or 0 for size in sizes) if None not in sizes else None
