"""The gate: what a wait costs, what ends it, and which slots are left."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.config import Limits, Policies
from orchestrator.definition.limits import Policy
from orchestrator.devices import Device, Holder, Machine
from orchestrator.events import Cause, Event, SlotQuarantined, Waited, Waiting
from orchestrator.run import gate as module
from orchestrator.run.gate import Gate
from orchestrator.run.room import Places
from orchestrator.run.signals import StopFlag
from orchestrator.run.slots import Slots

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

    def used_bytes(self, uuid: str) -> int | None:
        return 5 * GIB if uuid else None

    def free_bytes(self, uuid: str) -> int | None:
        raise NotImplementedError(uuid)

    def holders(self, uuid: str) -> list[Holder] | None:
        return [self.holder] if uuid else None

    def why_not(self, uuid: str) -> str:
        raise NotImplementedError(uuid)


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def gate(stop: StopFlag, clock: Clock, told: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Two GPUs, and no folder with the room that is wanted."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", LOOK_S)
    devices = tuple(Device(index, f"GPU-{index}", "test", 80 * GIB) for index in range(2))
    return Gate(
        slots=Slots(Machine("cuda", devices, 1, GIB, ())),
        reader=None,
        limits=Limits(run_dir_free_mib=1 << 40),
        policies=POLICIES,
        places=Places(tmp_path, tmp_path, tmp_path),
        stop=stop,
        emit=told.append,
        clock=clock,
    )


# --- room -----------------------------------------------------------------------


def test_a_signal_that_stops_nothing_ends_no_later_sleep(gate: Gate, stop: StopFlag) -> None:
    os.kill(os.getpid(), signal.SIGQUIT)
    assert select.select([stop.fileno()], [], [], 0)[0]
    gate._doze()
    assert not select.select([stop.fileno()], [], [], 0)[0]
    assert not stop.requested


def test_room_is_waited_for_as_long_as_the_policy_says(gate: Gate, clock: Clock, told: list[Event]) -> None:
    clock.step_s = LOOK_S
    assert "are wanted" in gate.room()
    begun, waited = told
    assert isinstance(begun, Waiting)
    assert isinstance(waited, Waited)
    assert begun.most_s == POLICIES.disk.wait_s
    assert (waited.what, waited.over) == ("room", False)
    assert waited.wait_s >= POLICIES.disk.wait_s


def test_time_in_which_we_were_stopped_is_no_part_of_a_wait_for_room(gate: Gate, clock: Clock) -> None:
    clock.step_s = 3600.0
    assert gate._doze() == LOOK_S


# --- slots ----------------------------------------------------------------------


def test_a_slot_whose_device_a_worker_calls_lost_is_left_for_another_one(gate: Gate, told: list[Event]) -> None:
    first, second = gate.slots.all
    gate.distrust(first, "GPU is lost", "w1-0")
    assert gate.slot() == second
    gate.distrust(first, "GPU is lost", "w2-0")
    gate.distrust(second, "GPU is lost", "w3-0")
    assert gate.slot() == second, "the last one is kept while the driver has it"
    (quarantined,) = told
    assert isinstance(quarantined, SlotQuarantined)
    assert (quarantined.slot, quarantined.incarnation) == (first.name, "w1-0")


def test_the_host_is_no_device_to_be_lost(gate: Gate, told: list[Event]) -> None:
    gate.slots = Slots(Machine("cpu", (), 1, GIB, ()))
    (host,) = gate.slots.all
    gate.distrust(host, "GPU is lost", "w1-0")
    assert gate.slot() == host
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
