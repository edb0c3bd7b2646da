"""Which devices a worker gets, which never again, and how CPUs are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.devices import Device, Machine
from orchestrator.run.slots import Slot, Slots, chosen, joined, numbered
from orchestrator.run.slotting import slotted


def machine(devices: int, cpus: int = 8) -> Machine:
    return Machine("cuda" if devices else "cpu", tuple(gpus(devices)), cpus, 1 << 30, (), tuple(range(cpus)), {}, {})


def gpus(count: int) -> list[Device]:
    return [Device(index, f"GPU-{index}", "test", None) for index in range(count)]


def uuids(slot: Slot | None) -> list[str]:
    return [device.uuid for device in slot.devices] if slot else []


@pytest.mark.parametrize(
    ("devices", "held", "width", "expected"),
    [
        (1, [], 1, ["GPU-0"]),
        (3, [0], 1, ["GPU-1"]),
        (4, [], 2, ["GPU-0", "GPU-1"]),
        (4, [0], 2, ["GPU-2", "GPU-3"]),  # neighbours rather than the first two
        (4, [0, 3], 2, ["GPU-1", "GPU-2"]),
        (4, [0, 1, 2], 2, []),
        (1, [], 2, []),
    ],
)
def test_a_worker_gets_as_many_devices_as_it_needs(
    devices: int, held: list[int], width: int, expected: list[str]
) -> None:
    slots = Slots(numbered(gpus(devices)), devices)
    for number in held:
        slots.hold(slots.all[number])
    assert uuids(chosen(slots.free(), width, slots.all)) == expected


def test_a_slot_of_several_devices_is_named_for_them_and_has_their_cpus() -> None:
    units = numbered(gpus(3), [(0, 1), (2, 3), (4, 5)])
    both = joined(units[1:])
    assert (both.name, both.units, both.cpus) == ("slot1+2", ("slot1", "slot2"), (2, 3, 4, 5))
    assert joined(units[:1]) is units[0]


def test_what_is_held_is_free_again_once_it_is_left() -> None:
    slots = Slots(numbered(gpus(3)), 2)
    pair = joined(slots.all[:2])
    slots.hold(pair)
    assert slots.held == {"slot0", "slot1"}
    assert not slots.is_free(slots.all[0])
    assert slots.is_free(slots.all[2])
    slots.hold(slots.all[2])
    slots.leave(pair)
    assert slots.is_free(pair)
    assert not slots.full


def test_no_more_workers_than_were_asked_for() -> None:
    slots = Slots(numbered(gpus(3)), 1)
    slots.hold(slots.all[0])
    assert slots.full
    assert not slots.is_free(slots.all[1])


def test_quarantine_is_of_each_device_and_its_first_reason_stays() -> None:
    slots = Slots(numbered(gpus(3)), 3)
    slots.quarantine(joined(slots.all[:2]), "a stranger holds it", ["pid 7 python 1.0 GiB"])
    slots.quarantine(slots.all[0], "an echo")
    assert slots.usable == [slots.all[2]]
    assert slots.quarantined["slot0"].reason == "a stranger holds it"
    assert slots.quarantined["slot1"].holders == ("pid 7 python 1.0 GiB",)
    assert slots.is_out(joined(slots.all[1:]))


# --- how a machine is cut ------------------------------------------------------------


def test_several_gpus_share_out_the_cpus_and_one_has_them_all() -> None:
    found = slotted(machine(4), DeviceUse())
    assert [unit.cpus for unit in found.slots.all] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert found.slots.most == 4
    assert "slot3: 6-7" in found.notes[0]
    assert slotted(machine(1), DeviceUse()).slots.all[0].cpus == ()


@pytest.mark.parametrize("use", [DeviceUse(exclusive=True), DeviceUse(slots=1)])
def test_who_is_alone_has_all_cpus(use: DeviceUse) -> None:
    found = slotted(machine(4), use)
    assert (found.slots.most, {unit.cpus for unit in found.slots.all}) == (1, {()})


def test_fewer_cpus_than_gpus_let_one_worker_run_unless_they_may_be_shared() -> None:
    few = slotted(machine(4, cpus=2), DeviceUse())
    assert few.slots.most == 1
    assert "2 CPUs for 4 GPUs" in few.notes[0]
    assert slotted(machine(4, cpus=2), DeviceUse(share_cpus=True)).slots.most == 4


@pytest.mark.parametrize(
    ("use", "cpus", "most"),
    [
        (DeviceUse(), [()], 1),
        (DeviceUse(cpus=("0-3", "4-7")), [(0, 1, 2, 3), (4, 5, 6, 7)], 2),
        (DeviceUse(slots=2), [(0, 1, 2, 3), (4, 5, 6, 7)], 2),
        (DeviceUse(slots=2, share_cpus=True), [(), ()], 2),
        (DeviceUse(cpus=("0-3", "4-7"), exclusive=True), [(0, 1, 2, 3), (4, 5, 6, 7)], 1),
        (DeviceUse(cpus=("0-3", "4-7", "8"), slots=2), [(0, 1, 2, 3), (4, 5, 6, 7), (8,)], 2),
        (DeviceUse(cpus=("2",)), [(2,)], 1),
    ],
)
def test_a_machine_without_gpus_is_cut_into_cpu_sets(use: DeviceUse, cpus: list[tuple[int, ...]], most: int) -> None:
    found = slotted(machine(0), use).slots
    assert [unit.cpus for unit in found.all] == cpus
    assert found.most == most


@given(
    devices=st.integers(1, 9),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    leaving=st.lists(st.integers(0, 8), max_size=12),
)
def test_no_device_is_ever_two_workers(devices: int, widths: list[int], leaving: list[int]) -> None:
    slots = Slots(numbered(gpus(devices)), devices)
    held: list[Slot] = []
    for width in widths:
        slot = chosen(slots.free(), width, slots.all)
        assert (slot is None) == (len(slots.free()) < width)
        if slot is not None:
            slots.hold(slot)
            held.append(slot)
            assert len(slot.devices) == width
        if held and leaving:
            slots.leave(held.pop(leaving.pop() % len(held)))
        names = [unit for one in held for unit in one.units]
        assert len(names) == len(set(names))
        assert slots.held == set(names)
