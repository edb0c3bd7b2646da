"""Whole sweeps through the command line on GPUs of a stand-in driver: memory that comes back late or never,
strangers, lost devices, and drivers that tell little. Only the driver is no real one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import RunEnded, SlotQuarantined, Waited, WorkerLaunched
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.outcomes import Cause
from orchestrator.reclaim import Reclaim
from tests.nvml.fakedriver import (
    FOR_EVER,
    FOREIGN,
    GIB,
    GPU_IS_LOST,
    MIB,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeDriver,
)
from tests.process.sweeping import PATIENCE_S, QUICK_LIMITS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

HELD = 3 * GIB
#: Long enough for some samples, short enough for a test.
RELEASE_S = 2.0


class Lab:
    """A bench with a driver. `claims` is where workers say that they hold device memory now."""

    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        self.bench = Bench(folder)
        self.bench.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.bench.env.update(driver.variables)
        self.driver = driver
        self.claims = folder / "claims"
        self.gone = folder / "gone"

    def worker(self, name: str, *faults: dict[str, Any], holds: bool = True) -> dict[str, Any]:
        """A method whose worker holds device memory from load on."""
        claim = [{"at": "load", "do": "mark", "touch": str(self.claims)}] if holds else []
        return {"name": name, "base": "scripted", "engine_args": {"faults": [*claim, *faults]}}

    def sweep(self, *methods: dict[str, Any], **sections: Any) -> int:
        """One worker at a time, if the sections do not say otherwise."""
        sections = {"devices": {"slots": 1, "standby": "off"}, **sections}
        self.bench.write(methods=list(methods), limits={**QUICK_LIMITS, "release_s": RELEASE_S}, **sections)
        return self.bench.run().returncode

    def outcomes(self) -> dict[str, set[str]]:
        return {name: {end.outcome for end in ends} for name, ends in self.bench.outcomes().items()}

    def causes(self, method: str) -> list[Cause]:
        return [end.cause for end in self.bench.outcomes()[method] if end.cause]

    def proofs(self) -> list[Reclaim]:
        return [release.reclaim for release in self.bench.releases()]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.bench.events if isinstance(event, kind)]

    def slots(self) -> list[str]:
        return [event.slot for event in self.of(WorkerLaunched)]

    def quarantine(self) -> SlotQuarantined:
        (found,) = self.of(SlotQuarantined)
        assert isinstance(found, SlotQuarantined)
        return found


@contextmanager
def bystander() -> Iterator[int]:
    """The pid of a process that is no business of the sweep's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.poll() is None  # nobody touched it
        process.communicate(b"\n")


@pytest.fixture
def lab(tmp_path: Path, driver: FakeDriver) -> Lab:
    return Lab(tmp_path / "lab", driver)


# --- memory that comes back late, or never ----------------------------------------


def test_slow_release_is_waited_for_and_charged_to_nobody(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a", base=100 * MIB)
    lab.driver.claims(lab.claims, HELD, linger=8)
    assert lab.sweep(lab.worker("first"), lab.worker("second")) == 0
    assert lab.outcomes() == {"first": {"ok"}, "second": {"ok"}}
    for proof in lab.proofs():
        assert (proof.baseline_bytes, proof.held_bytes, proof.after_bytes) == (100 * MIB, 100 * MIB + HELD, 100 * MIB)
        assert (proof.returned, proof.device, proof.holders) == (True, "0:GPU-a", [])
        assert proof.wait_s > 0.5
    (ended,) = lab.of(RunEnded)
    assert ended.measured_s < 0.2
    lab.bench.assert_clean()


def test_a_leak_costs_its_slot_and_the_sweep_goes_on_elsewhere(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lab.driver.claims(lab.claims, HELD, linger=FOR_EVER)
    assert lab.sweep(lab.worker("leaky"), lab.worker("next", holds=False)) == 0
    assert lab.outcomes() == {"leaky": {"ok"}, "next": {"ok"}}
    assert lab.slots() == ["slot0", "slot1"]
    (pid,) = (int(line.split()[1]) for line in lab.claims.read_text().splitlines())
    told = lab.quarantine()
    assert (told.slot, told.incarnation) == ("slot0", lab.of(WorkerLaunched)[0].incarnation)
    assert "GPU 0 (GPU-a) still has 3.0 GiB more in use than before launch" in told.reason
    assert f"pid {pid} " in told.reason
    assert "(of this worker, ended) 3.0 GiB" in told.holders[0]
    leak = lab.proofs()[0]
    assert (leak.returned, leak.processes_left, leak.holders) == (False, 0, told.holders)
    assert leak.wait_s > RELEASE_S * 0.9


def test_a_leak_on_the_only_slot_ends_the_rest_as_busy(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, "unlisted", linger=FOR_EVER)
    assert lab.sweep(lab.worker("leaky"), lab.worker("next")) == EXIT_STOPPED_EARLY
    assert lab.outcomes() == {"leaky": {"ok"}, "next": {"failed"}}
    assert {cause.cls for cause in lab.causes("next")} == {"busy_device"}
    assert "no process that can be seen here holds it" in lab.causes("next")[0].message


@pytest.mark.parametrize("child", ["child_plain", "child_setsid", "child_double_fork"])
def test_children_of_a_killed_worker_give_their_memory_back_too(lab: Lab, child: str) -> None:
    """The front process of an engine dies, its workers live on with the memory."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, linger=3)
    engine = {"at": "ready", "do": child, "touch": str(lab.claims)}
    death = {"at": "batch:2", "do": "sigkill", "once": str(lab.gone)}
    assert lab.sweep(lab.worker("front", engine, death, holds=False)) == 0
    first, second = lab.proofs()
    assert first.held_bytes == HELD + 4 * MIB
    assert first.strays_killed
    assert (first.after_bytes, second.baseline_bytes) == (4 * MIB, 4 * MIB)
    lab.bench.assert_clean()


def test_every_device_of_a_slot_must_come_back(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lab.driver.process("GPU-b", FOREIGN, GIB, f"after={lab.claims}")
    lab.driver.claims(lab.claims, HELD, linger=4)
    assert lab.sweep(lab.worker("wide"), settings={"tensor_parallel_size": 2}) == 0
    assert lab.proofs()[0].device == "0:GPU-a, 1:GPU-b"
    assert lab.quarantine().reason.startswith("GPU 1 (GPU-b) still has 1.0 GiB more in use than before launch")


def test_what_others_take_in_mid_run_is_noted_and_costs_no_slot(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD)
    with bystander() as pid:
        lab.driver.process("GPU-a", pid, 200 * MIB, f"after={lab.claims}")
        assert lab.sweep(lab.worker("first"), lab.worker("second")) == 0
    proof = lab.proofs()[0]
    assert proof.returned
    assert any(f"others took memory meanwhile: pid {pid} " in note for note in proof.notes)
    assert lab.of(SlotQuarantined) == []


# --- strangers ------------------------------------------------------------------------


def test_a_stranger_that_leaves_in_time_is_waited_for_and_charged_to_nobody(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    with bystander() as pid:
        lab.driver.process("GPU-a", pid, 5 * GIB, "readings=8")
        assert lab.sweep(lab.worker("only"), policies={"busy_device": {"wait_s": 30}}) == 0
    (waited,) = lab.of(Waited)
    assert (waited.what, waited.over) == ("slot", True)
    assert f"GPU 0 (GPU-a): 5.0 GiB in use by others: pid {pid} python" in waited.reason
    assert waited.wait_s > 1
    (ended,) = lab.of(RunEnded)
    assert ended.measured_s < 0.2
    assert lab.outcomes() == {"only": {"ok"}}
    assert lab.proofs()[0].baseline_bytes == 4 * MIB  # of the grant: at the launch the stranger was there
    lab.bench.assert_clean()


@pytest.mark.parametrize("policy", [{"wait_s": 1.5}, "give_up"], ids=["waits", "gives up"])
def test_a_stranger_that_stays_costs_the_slot_and_is_named(lab: Lab, policy: Any) -> None:
    lab.driver.gpu(0, "GPU-a")
    with bystander() as pid:
        lab.driver.process("GPU-a", pid, 5 * GIB)
        done = lab.sweep(lab.worker("one"), lab.worker("two"), policies={"busy_device": policy})
    assert done == EXIT_STOPPED_EARLY
    assert lab.outcomes() == {"one": {"failed"}, "two": {"failed"}}
    for name in ("one", "two"):
        assert {cause.cls for cause in lab.causes(name)} == {"busy_device"}
        assert all(f"pid {pid} python" in cause.message for cause in lab.causes(name))
    told = lab.quarantine()
    assert (told.slot, told.holders) == ("slot0", [f"pid {pid} python 5.0 GiB"])
    assert len(lab.of(WorkerLaunched)) <= 1  # what can't be had is not tried again
    lab.bench.assert_clean()


def test_a_slot_that_is_free_comes_before_one_that_is_not(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lab.driver.process("GPU-a", FOREIGN, 5 * GIB)
    assert lab.sweep(lab.worker("one"), lab.worker("two")) == 0
    assert lab.slots() == ["slot1", "slot1"]
    assert lab.of(Waited) == lab.of(SlotQuarantined) == []


def test_with_strangers_everywhere_each_slot_is_waited_for(lab: Lab) -> None:
    """The second stranger leaves while the first slot is waited for."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lab.driver.process("GPU-a", FOREIGN, 5 * GIB)
    lab.driver.process("GPU-b", FOREIGN, 5 * GIB, f"until={lab.gone}")
    patient = method("one", early=True, at="import", do="mark", touch=str(lab.gone))
    assert lab.sweep(patient, policies={"busy_device": {"wait_s": 1.5}}) == 0
    assert lab.quarantine().slot == "slot0"
    assert lab.slots()[-1] == "slot1"
    assert lab.outcomes() == {"one": {"ok"}}


def test_a_wait_for_a_slot_ends_when_the_run_is_to_stop(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.process("GPU-a", FOREIGN, 5 * GIB)
    lab.bench.write(methods=[lab.worker("one")], policies={"busy_device": {"wait_s": PATIENCE_S}})
    with lab.bench.start() as sweep:
        assert sweep.stdout is not None
        assert any("waiting for slot slot0" in line for line in sweep.stdout)  # ends with the sweep at the latest
        sweep.send_signal(signal.SIGTERM)
        _, rest = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 128 + signal.SIGTERM, rest
    assert lab.of(SlotQuarantined) == []
    assert lab.outcomes() == {}
    lab.bench.assert_clean()


def test_a_desktop_is_no_stranger(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a", reserved=600 * MIB)
    lab.driver.process("GPU-a", FOREIGN, 900 * MIB, kind="graphics")
    assert lab.sweep(lab.worker("one")) == 0
    assert lab.of(Waited) == []


# --- devices that are lost ---------------------------------------------------------------


def lose(lab: Lab, how: str) -> None:
    """From when `lab.gone` is there."""
    after = f"after={lab.gone}"
    if how == "handle":
        lab.driver.fail("HandleByUUID", GPU_IS_LOST, after, uuid="GPU-a")
    elif how == "memory":
        lab.driver.fail("MemoryInfo_v2", GPU_IS_LOST, after, uuid="GPU-a")
    else:  # what older drivers say
        lab.driver.fail("HandleByUUID", {"unknown": UNKNOWN, "not found": NOT_FOUND}[how], after, uuid="GPU-a")


@pytest.mark.parametrize(
    ("how", "then"),
    [(how, "sigkill") for how in ("handle", "memory", "unknown", "not found")]
    + [("handle", then) for then in ("raise_fatal", "hang")],
)
def test_a_gpu_lost_in_mid_batch_costs_its_slot_and_the_batch_runs_elsewhere(lab: Lab, how: str, then: str) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lab.driver.claims(lab.claims, HELD)
    lose(lab, how)
    once = str(lab.bench.folder / "once")
    fall = {"at": "batch:2", "do": then, "touch": str(lab.gone), "once": once}
    assert lab.sweep(lab.worker("unlucky", fall), lab.worker("next")) == 0
    assert lab.outcomes() == {"unlucky": {"ok"}, "next": {"ok"}}
    assert lab.slots() == ["slot0", "slot1", "slot1"]
    told = lab.quarantine()
    assert told.slot == "slot0"
    assert told.reason.startswith("GPU 0 (GPU-a) is lost: ")
    first = lab.bench.releases()[0]
    assert first.cause is not None
    assert first.cause.cls == "device_lost"
    assert not first.reclaim.returned
    assert first.reclaim.wait_s < RELEASE_S / 2  # there is nothing to wait for
    assert set(lab.bench.keys().values()) == {1}


def test_a_gpu_lost_with_no_other_ends_the_rest_as_device_lost(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lose(lab, "handle")
    fall = {"at": "batch:2", "do": "sigkill", "touch": str(lab.gone)}
    assert lab.sweep(lab.worker("unlucky", fall), lab.worker("next")) == EXIT_STOPPED_EARLY
    assert {cause.cls for cause in lab.causes("unlucky") + lab.causes("next")} == {"device_lost"}
    assert len(lab.bench.records) > 0  # what was committed stays


def test_a_gpu_lost_between_two_workers_is_never_given_out(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.gpu(1, "GPU-b")
    lose(lab, "handle")
    fall = {"at": "shutdown", "do": "mark", "touch": str(lab.gone)}
    assert lab.sweep(lab.worker("first", fall), lab.worker("next")) == 0
    assert lab.slots() == ["slot0", "slot1"]
    assert lab.quarantine().slot == "slot0"


# --- drivers that tell little ----------------------------------------------------------------


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
def test_memory_that_is_not_told_is_null_with_a_note_and_stops_nothing(lab: Lab, code: int) -> None:
    """As on unified memory, where the worker's own pages are what it holds."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD)
    for function in ("MemoryInfo", "MemoryInfo_v2"):
        lab.driver.fail(function, code)
    assert lab.sweep(lab.worker("one"), lab.worker("two")) == 0
    for proof in lab.proofs():
        assert (proof.baseline_bytes, proof.after_bytes, proof.returned) == (None, None, True)
        assert any("GPU 0 (GPU-a) does not tell its memory in use: " in note for note in proof.notes)
        assert any("PSS of the process tree" in note for note in proof.notes)
        assert proof.held_bytes is not None
        assert 4 * MIB < proof.held_bytes < HELD
    lab.bench.assert_clean()


def test_where_memory_is_not_told_the_list_of_processes_is_the_proof(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, linger=FOR_EVER)
    for function in ("MemoryInfo", "MemoryInfo_v2"):
        lab.driver.fail(function, NOT_SUPPORTED)
    assert lab.sweep(lab.worker("leaky"), lab.worker("next")) == EXIT_STOPPED_EARLY
    assert "(of this worker, ended) 3.0 GiB" in lab.quarantine().holders[0]
    assert lab.outcomes() == {"leaky": {"ok"}, "next": {"failed"}}


@pytest.mark.parametrize("linger", [3, FOR_EVER])
def test_processes_that_are_not_told_leave_the_memory_as_proof(lab: Lab, linger: int) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, linger=linger)
    lab.driver.fail("ComputeRunningProcesses", NO_PERMISSION)
    assert lab.sweep(lab.worker("one")) == 0
    (proof,) = lab.proofs()
    assert (proof.returned, proof.holders) == (linger != FOR_EVER, [])
    if linger == FOR_EVER:
        assert "its processes are not told: Insufficient Permissions" in lab.quarantine().reason


@pytest.mark.parametrize("linger", [3, FOR_EVER])
def test_pids_of_another_namespace_are_told_as_such(lab: Lab, linger: int) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, f"shift={FOREIGN}", linger=linger)
    assert lab.sweep(lab.worker("one"), lab.worker("two", holds=False)) == (0 if linger > 0 else EXIT_STOPPED_EARLY)
    assert lab.proofs()[0].returned == (linger > 0)
    if linger == FOR_EVER:
        assert "(ended, or of another PID namespace) 3.0 GiB" in lab.quarantine().holders[0]


@pytest.mark.parametrize("linger", [3, FOR_EVER])
def test_slices_are_slots_of_their_own(lab: Lab, linger: int) -> None:
    lab.driver.gpu(0, "GPU-a", base=9 * GIB)
    lab.driver.slice(0, 0, "MIG-x")
    lab.driver.slice(0, 2, "MIG-y")
    lab.driver.claims(lab.claims, HELD, linger=linger)
    assert lab.sweep(lab.worker("one"), lab.worker("two", holds=False)) == 0
    first, second = lab.proofs()
    assert (first.device, first.baseline_bytes, first.held_bytes) == ("0:MIG-x", 4 * MIB, HELD + 4 * MIB)
    assert second.device == ("0:MIG-x" if linger > 0 else "0:MIG-y")
    assert [told.slot for told in lab.of(SlotQuarantined)] == ([] if linger > 0 else ["slot0"])


def test_readings_that_stop_in_mid_run_end_nothing(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD)
    for function in ("MemoryInfo_v2", "ComputeRunningProcesses", "GraphicsRunningProcesses"):
        lab.driver.fail(function, UNKNOWN, f"after={lab.gone}")
    stop = {"at": "batch:2", "do": "mark", "touch": str(lab.gone)}
    assert lab.sweep(lab.worker("one", stop), lab.worker("two")) == 0
    first, second = lab.proofs()
    assert (first.baseline_bytes, first.after_bytes) == (4 * MIB, None)
    assert (second.baseline_bytes, second.after_bytes) == (None, None)
    assert lab.outcomes() == {"one": {"ok"}, "two": {"ok"}}


def test_a_driver_that_stops_answering_holds_the_sweep_up_only_once(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.block("MemoryInfo_v2", f"after={lab.gone}")
    stop = {"at": "batch:2", "do": "mark", "touch": str(lab.gone)}
    assert lab.sweep(lab.worker("one", stop), lab.worker("two")) == 0
    assert any("the driver does not answer" in note for note in lab.proofs()[1].notes)
    assert lab.outcomes() == {"one": {"ok"}, "two": {"ok"}}


# --- before anything starts -------------------------------------------------------------------


def test_doctor_names_each_device_with_what_is_free_and_who_holds_it(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a", total=80 * GIB, base=0)
    lab.driver.gpu(1, "GPU-b", total=80 * GIB, base=0)
    with bystander() as pid:
        lab.driver.process("GPU-b", pid, 60 * GIB)
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "doctor"],
            env=lab.bench.env,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert "GPU 0: NVIDIA Test, GPU-a, 80.0 GiB free of 80.0 GiB" in done.stdout
    assert "GPU 1: NVIDIA Test, GPU-b, 20.0 GiB free of 80.0 GiB" in done.stdout
    assert f"GPU 1: python (pid {pid}) holds 60.0 GiB" in done.stdout
