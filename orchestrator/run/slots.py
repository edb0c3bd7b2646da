"""The slots of a machine: sets of devices of equal width, used one after the other. No I/O, no clock.

A slot that was quarantined stays so for this life of the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.devices import Device, Machine


@dataclass(frozen=True)
class Slot:
    """The set of devices one worker owns; empty on a CPU machine."""

    name: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Quarantine:
    """Why nothing more may run on a slot, and who holds it as far as is known."""

    reason: str
    holders: tuple[str, ...] = ()


@dataclass
class Slots:
    """`width` devices to a slot, in the machine's order; what is left over stays unused.

    Without a GPU there is one slot, that of the host.
    """

    machine: Machine
    width: int = 1
    quarantined: dict[str, Quarantine] = field(default_factory=dict)  # slot name → why

    def __post_init__(self) -> None:
        devices = self.machine.devices if self.machine.kind == "cuda" else ()
        width = max(1, min(self.width, len(devices)))
        chunks = [devices[at : at + width] for at in range(0, len(devices) - width + 1, width)]
        self.all = tuple(Slot(f"slot{number}", chunk) for number, chunk in enumerate(chunks or [()]))

    @property
    def usable(self) -> list[Slot]:
        return [slot for slot in self.all if slot.name not in self.quarantined]

    def quarantine(self, slot: str, reason: str, holders: Sequence[str] = ()) -> None:
        """The first reason stays."""
        self.quarantined.setdefault(slot, Quarantine(reason, tuple(holders)))
