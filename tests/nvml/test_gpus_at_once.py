"""Several workers on the GPUs of a stand-in driver: who gets which, who waits, and the next one standing by."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import BatchCommitted, SlotQuarantined, StateChanged, WorkerLaunched, WorkerReleased
from tests.nvml.fakedriver import GIB, FakeDriver
from tests.nvml.test_gpu_slots import Lab

pytestmark = [
    pytest.mark.usefixtures("nothing_leaked"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers on CPUs of their own need two CPUs"),
]
AT_ONCE = {"slots": 2}


@pytest.fixture
def lab(tmp_path: Path, driver: FakeDriver) -> Lab:
    return Lab(tmp_path / "lab", driver)


def gpus(lab: Lab, *uuids: str) -> None:
    for index, uuid in enumerate(uuids):
        lab.driver.gpu(index, uuid)


def fifo(lab: Lab, name: str) -> str:
    os.mkfifo(lab.bench.folder / name)
    return str(lab.bench.folder / name)


def spans(lab: Lab) -> list[tuple[WorkerLaunched, int, int]]:
    """Each worker, and where in the journal it began to load and was gone."""
    events = lab.bench.events
    loads = {e.incarnation: n for n, e in enumerate(events) if isinstance(e, StateChanged) and e.state == "loading"}
    ends = {e.incarnation: n for n, e in enumerate(events) if isinstance(e, WorkerReleased)}
    launched = [e for e in events if isinstance(e, WorkerLaunched)]
    return [(one, loads[one.incarnation], ends[one.incarnation]) for one in launched]


def units(slot: str) -> set[str]:
    return set(slot.removeprefix("slot").split("+"))


def test_two_methods_run_at_once_each_on_its_gpu(lab: Lab) -> None:
    gpus(lab, "GPU-a", "GPU-b")
    first, second = fifo(lab, "first"), fifo(lab, "second")
    one = lab.worker("one", {"at": "batch:1", "do": "mark", "gate": first}, mark(second), holds=False)
    two = lab.worker("two", mark(first), {"at": "batch:1", "do": "mark", "gate": second}, holds=False)
    assert lab.sweep(one, two, devices=AT_ONCE) == 0
    assert sorted(lab.slots()) == ["slot0", "slot1"]
    assert {proof.device for proof in lab.proofs()} == {"0:GPU-a", "1:GPU-b"}
    told = {commit.incarnation: commit.neighbours for commit in lab.of(BatchCommitted)[:2]}
    assert sorted(map(tuple, told.values())) == [("slot0: one",), ("slot1: two",)]
    lab.bench.assert_clean()


def mark(path: str) -> dict[str, Any]:
    return {"at": "batch:1", "do": "mark", "touch": path}


def test_who_needs_two_gpus_is_not_overtaken_by_those_that_need_one(lab: Lab) -> None:
    gpus(lab, "GPU-a", "GPU-b")
    names = ("one", "two", "three")
    methods = [lab.worker(name, holds=False) for name in names]
    assert lab.sweep(*methods, matrix={"tensor_parallel_size": [1, 2]}, devices=AT_ONCE) == 0
    found = spans(lab)
    assert [(one.method, len(units(one.slot))) for one, _, _ in found] == [(n, w) for n in names for w in (1, 2)]
    for at, (one, begins, ends) in enumerate(found):
        for other, other_begins, other_ends in found[at + 1 :]:
            at_once = begins < other_ends and other_begins < ends
            assert not (at_once and units(one.slot) & units(other.slot)), "a GPU had two workers"
    lab.bench.assert_clean()


def test_more_gpus_than_there_are_left_fail_those_that_need_them_and_nobody_else(lab: Lab) -> None:
    gpus(lab, "GPU-a", "GPU-b")
    lab.driver.process("GPU-b", 2**30, 5 * GIB, f"after={lab.claims}")
    lab.sweep(
        lab.worker("wide"),
        lab.worker("next", holds=False),
        matrix={"tensor_parallel_size": [2, 1]},
        policies={"busy_device": "give_up"},
        devices=AT_ONCE,
    )
    outcomes = {name: [end.outcome for end in ends] for name, ends in lab.bench.outcomes().items()}
    assert "ok" in outcomes["next"]
    assert "failed" in outcomes["next"]
    assert lab.quarantine().slot == "slot1", "the other GPU of the two came back"
    assert not lab.bench.processes()


def test_on_a_gpu_the_next_worker_stands_by_and_holds_nothing_before_its_turn(lab: Lab) -> None:
    gpus(lab, "GPU-a")
    lab.driver.claims(lab.claims, 3 * GIB)
    gate = fifo(lab, "imports")
    first = lab.worker("one", {"at": "batch:1", "do": "mark", "gate": gate})
    early = {"fault": {"at": "import", "do": "mark", "touch": gate}}
    second = {**lab.worker("two"), "env_vars": {"SCRIPTED_OPTIONS": json.dumps(early)}}
    assert lab.sweep(first, second, devices={"standby": "on"}) == 0
    launched = {event.method: event for event in lab.of(WorkerLaunched)}
    assert (launched["two"].early, launched["two"].slot) == ("standby", launched["one"].slot)
    (one, _, gone), (_, loads, _) = spans(lab)
    assert one.method == "one"
    assert gone < loads
    for proof in lab.proofs():
        assert (proof.baseline_bytes, proof.returned) == (4 << 20, True)
    lab.bench.assert_clean()


def test_who_dies_standing_by_costs_no_gpu(lab: Lab) -> None:
    gpus(lab, "GPU-a")
    lab.driver.claims(lab.claims, 3 * GIB)
    gate = fifo(lab, "imports")
    first = lab.worker("one", {"at": "batch:1", "do": "mark", "gate": gate})
    early = {"fault": {"at": "import", "do": "sigkill", "touch": gate}}
    dying = {**lab.worker("two"), "env_vars": {"SCRIPTED_OPTIONS": json.dumps(early)}}
    lab.sweep(first, dying, lab.worker("three"), devices={"standby": "on"}, policies={"engine_crash": "give_up"})
    outcomes = lab.outcomes()
    assert outcomes == {"one": {"ok"}, "two": {"failed"}, "three": {"ok"}}
    assert not lab.of(SlotQuarantined)
    lab.bench.assert_clean()
