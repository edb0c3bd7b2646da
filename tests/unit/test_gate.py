"""The gate: what a wait costs, what ends it, and which slots are left."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from orchestrator.config import Limits, Policies
from orchestrator.definition.limits import Policy
from orchestrator.devices import Device, Holder
from orchestrator.events import Event, SlotQuarantined, Waited
from orchestrator.outcomes import Cause
from orchestrator.run import gate as module
from orchestrator.run.gate import Gate
from orchestrator.run.slots import Slot, Slots, host, joined, numbered

GIB = 1 << 30
STRANGER = Holder(77, "python", 5 * GIB)
LOOK_S = 0.02
POLICIES = Policies(disk=Policy(do="wait", wait_s=0.1), busy_device=Policy(do="wait", wait_s=10))


@dataclass
class Clock:
    """Each look at it takes `step_s`."""

    now: float = 0.0
    step_s: float = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@dataclass
class Readings:
    """Every device is held by one."""

    holder: Holder = STRANGER
    lost: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)

    def used_bytes(self, uuid: str) -> int | None:
        return None if uuid in self.lost else 0 if uuid in self.free else 5 * GIB

    def free_bytes(self, uuid: str) -> int | None:
        raise NotImplementedError(uuid)

    def holders(self, uuid: str) -> list[Holder] | None:
        return [] if uuid in self.free else [self.holder]

    def why_not(self, uuid: str) -> str:
        return f"{uuid} fell off the bus"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def gate(clock: Clock, told: list[Event], monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Two GPUs."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", LOOK_S)
    devices = tuple(Device(index, f"GPU-{index}", "test", 80 * GIB) for index in range(2))
    return Gate(
        slots=Slots(numbered(devices), 2),
        reader=None,
        limits=Limits(),
        policies=POLICIES,
        emit=told.append,
        clock=clock,
    )


# --- slots ----------------------------------------------------------------------


def test_a_slot_whose_device_a_worker_calls_lost_is_left_for_another_one(gate: Gate, told: list[Event]) -> None:
    first, second = gate.slots.all
    gate.distrust(first, "GPU is lost", "w1-0")
    assert gate.slot(1) == second
    gate.distrust(first, "GPU is lost", "w2-0")
    gate.distrust(second, "GPU is lost", "w3-0")
    assert gate.slot(1) == second, "the last one is kept while the driver has it"
    (quarantined,) = told
    assert isinstance(quarantined, SlotQuarantined)
    assert (quarantined.slot, quarantined.incarnation) == (first.name, "w1-0")


def test_the_host_is_no_device_to_be_lost(gate: Gate, told: list[Event]) -> None:
    gate.slots = Slots(host())
    (whole,) = gate.slots.all
    gate.distrust(whole, "GPU is lost", "w1-0")
    assert gate.slot(1) == whole
    assert not told


OOM = Cause(cls="oom", message="out of memory", phase="busy")


@pytest.mark.parametrize(
    ("cause", "holder", "ours", "cls"),
    [
        (OOM, STRANGER, [], "busy_device"),
        (OOM, STRANGER, [77], "oom"),
        (OOM, Holder(77, "", 5 * GIB), [], "oom"),  # ended: it may be ours
        (OOM, Holder(77, "Xorg", 5 * GIB, graphics=True), [], "oom"),
        (OOM, Holder(77, "python", 1 << 20), [], "oom"),
        (OOM, Holder(77, "python", None), [], "oom"),
        (Cause(cls="hang", message="no answer", phase="busy"), STRANGER, [], "hang"),
    ],
    ids=["stranger", "ours", "ended", "draws", "little", "untold", "no oom"],
)
def test_memory_that_ran_out_is_a_strangers_fault_where_one_is_seen(
    gate: Gate, cause: Cause, holder: Holder, ours: list[int], cls: str
) -> None:
    gate.reader = Readings(holder)
    found = gate.excuse(cause, gate.slots.all[1], ours)
    assert (found.cls, found.phase) == (cls, cause.phase)
    assert ("pid 77 python" in found.message) == (cls == "busy_device")


def test_without_a_reader_nobody_is_seen(gate: Gate) -> None:
    assert gate.excuse(OOM, gate.slots.all[0], []) == OOM


def test_time_in_which_we_were_stopped_is_no_part_of_a_wait_for_a_slot(gate: Gate, clock: Clock) -> None:
    gate.reader = Readings()
    slot = gate.slots.all[0]
    assert gate.admits(slot, ()) == "wait"
    clock.now = 5000.0
    gate.postpone(4995.0)
    assert gate.admits(slot, ()) == "wait"
    clock.now += POLICIES.busy_device.wait_s
    assert gate.admits(slot, ()) == "no"
    assert slot.name in gate.slots.quarantined


def test_each_slot_is_waited_for_by_itself(gate: Gate, clock: Clock, told: list[Event]) -> None:
    gate.reader = Readings()
    first, second = gate.slots.all
    assert gate.admits(first, ()) == "wait"
    clock.now = 2.0
    assert gate.admits(second, ()) == "wait"
    gate.reader = Readings(Holder(77, "python", 0))
    gate.leave(first)
    (gone,) = (event for event in told if isinstance(event, Waited))
    assert (gone.slot, gone.wait_s, gone.over) == (first.name, 2.0, False)


@pytest.mark.parametrize(
    ("out", "width", "told_of"), [(0, 2, ""), (1, 2, "1 device left of the 2 needed"), (2, 1, "leaks")]
)
def test_too_few_devices_are_told_with_what_became_of_the_others(
    gate: Gate, out: int, width: int, told_of: str
) -> None:
    for unit in gate.slots.all[:out]:
        gate.quarantine(unit, "busy_device", "it leaks")
    cause = gate.none_left(width)
    assert (cause is None) == (not told_of)
    assert cause is None or told_of in cause.message
    assert uuids_of(gate.slot(width)) == (["GPU-0", "GPU-1"] if not out else [])


def uuids_of(slot: Slot | None) -> list[str]:
    return [device.uuid for device in slot.devices] if slot else []


def test_a_unit_that_a_stranger_holds_is_taken_last(gate: Gate) -> None:
    gate.reader = Readings()
    gate.reader.free = {"GPU-1"}
    assert uuids_of(gate.slot(1)) == ["GPU-1"]
    assert uuids_of(gate.slot(2)) == ["GPU-0", "GPU-1"]
    assert uuids_of(gate.slot(1, barred=["slot1"])) == ["GPU-0"]


def test_one_lost_device_of_two_leaves_the_other(gate: Gate) -> None:
    gate.reader = Readings(Holder(1, "x", 0))
    gate.reader.lost = {"GPU-0"}
    assert uuids_of(gate.slot(1)) == ["GPU-1"]
    assert list(gate.slots.quarantined) == ["slot0"]
    gate.quarantine(joined(gate.slots.all), "busy_device", "an echo")
    assert list(gate.slots.quarantined) == ["slot0"], "once"
