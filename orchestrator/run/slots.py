"""Which devices are whose: units of one device or CPU set each, put together for a worker that needs several. Pure.

A unit that was quarantined stays so for this life of the coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from orchestrator.devices import Device


@dataclass(frozen=True)
class Slot:
    """The set of devices one worker owns; without any, the host.

    name   "slot2", or "slot0+1" for one of two units
    cpus   those that its worker is held to; () for all
    parts  the names of its units
    """

    name: str
    devices: tuple[Device, ...] = ()
    cpus: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        return self.parts or (self.name,)


@dataclass(frozen=True)
class Quarantine:
    """Why nothing more may run on a unit, and who holds it as far as is known."""

    reason: str
    holders: tuple[str, ...] = ()


@dataclass
class Slots:
    """`most`: workers that may hold slots at once. `absent`: units that can't be used now and may be later."""

    all: tuple[Slot, ...]
    most: int = 1
    quarantined: dict[str, Quarantine] = field(default_factory=dict)  # unit → why
    absent: set[str] = field(default_factory=set)
    _held: dict[str, Slot] = field(default_factory=dict)

    @property
    def usable(self) -> list[Slot]:
        return [unit for unit in self.all if unit.name not in self.quarantined]

    @property
    def held(self) -> frozenset[str]:
        """The units that some worker has."""
        return frozenset(unit for slot in self._held.values() for unit in slot.units)

    @property
    def full(self) -> bool:
        """No further worker may start, whatever is free."""
        return len(self._held) >= self.most

    def free(self, barred: Collection[str] = ()) -> list[Slot]:
        taken = self.held | self.absent | set(barred)
        return [unit for unit in self.usable if unit.name not in taken]

    def is_free(self, slot: Slot) -> bool:
        return not self.full and {unit.name for unit in self.free()}.issuperset(slot.units)

    def hold(self, slot: Slot) -> None:
        self._held[slot.name] = slot

    def leave(self, slot: Slot) -> None:
        self._held.pop(slot.name, None)

    def quarantine(self, slot: Slot, reason: str, holders: Sequence[str] = ()) -> None:
        """All units of it. The first reason stays."""
        for unit in slot.units:
            self.quarantined.setdefault(unit, Quarantine(reason, tuple(holders)))

    def part(self, slot: Slot, uuids: Collection[str]) -> Slot:
        """Those units of it that have these devices; all of it where none has."""
        names = slot.units
        guilty = [one for one in self.all if one.name in names and any(d.uuid in uuids for d in one.devices)]
        return joined(guilty) if guilty else slot

    def is_out(self, slot: Slot) -> bool:
        return any(unit in self.quarantined for unit in slot.units)


def host(cpus: tuple[int, ...] = ()) -> tuple[Slot, ...]:
    """The units of a machine without devices of its own."""
    return (Slot("slot0", (), cpus),)


def numbered(devices: Sequence[Device], shares: Sequence[tuple[int, ...]] = ()) -> tuple[Slot, ...]:
    """A unit for each device, in order, each with its share of the CPUs, where these are shared out."""
    cpus = shares or [()] * len(devices)
    return tuple(Slot(f"slot{n}", (device,), cpus[n]) for n, device in enumerate(devices))


def chosen(units: Sequence[Slot], width: int, among: Sequence[Slot]) -> Slot | None:
    """`width` of `units` as one slot; None if there are too few. Neighbours in `among`, all units there are,
    from a multiple of `width` on if they can be had: such devices are the likeliest to be linked."""
    if len(units) < width:
        return None
    free = {unit.name for unit in units}
    rows = [among[at : at + width] for at in range(0, len(among) - width + 1, width)]
    whole = next((row for row in rows if free.issuperset(unit.name for unit in row)), units[:width])
    return joined(whole)


def joined(units: Sequence[Slot]) -> Slot:
    if len(units) == 1:
        return units[0]
    names = [unit.name for unit in units]
    numbers = "+".join(name.removeprefix("slot") for name in names)
    devices = tuple(device for unit in units for device in unit.devices)
    cpus = tuple(sorted({cpu for unit in units for cpu in unit.cpus}))
    return Slot(f"slot{numbers}", devices, cpus, tuple(names))
