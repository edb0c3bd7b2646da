"""Which slot comes next, and which never again."""

from __future__ import annotations

import pytest

from orchestrator.devices import Device, Machine
from orchestrator.run.slots import Slots


def machine(*devices: Device) -> Machine:
    return Machine("cuda" if devices else "cpu", devices, cpus=2, memory_bytes=1 << 30, notes=())


def gpus(count: int) -> list[Device]:
    return [Device(index, f"GPU-{index}", "test", None) for index in range(count)]


@pytest.mark.parametrize(
    ("devices", "width", "slots"),
    [
        (0, 1, [[]]),
        (1, 1, [["GPU-0"]]),
        (3, 1, [["GPU-0"], ["GPU-1"], ["GPU-2"]]),
        (4, 2, [["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]]),
        (5, 2, [["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]]),
        (1, 2, [["GPU-0"]]),
    ],
)
def test_slots_are_devices_in_a_row(devices: int, width: int, slots: list[list[str]]) -> None:
    made = Slots(machine(*gpus(devices)), width).all
    assert [[device.uuid for device in slot.devices] for slot in made] == slots
    assert [slot.name for slot in made] == [f"slot{number}" for number in range(len(slots))]


def test_the_first_usable_one_is_picked_until_none_is_left() -> None:
    slots = Slots(machine(*gpus(2)))
    assert slots.usable[0] == slots.all[0]
    slots.quarantine("slot0", "a stranger holds it", ["pid 7 python 1.0 GiB"])
    slots.quarantine("slot0", "an echo")
    assert slots.usable[0] == slots.all[1]
    assert slots.quarantined["slot0"].reason == "a stranger holds it"
    assert slots.quarantined["slot0"].holders == ("pid 7 python 1.0 GiB",)
    slots.quarantine("slot1", "it leaks")
    assert slots.usable == []
