"""What follows where a slot can't be had, or is said to be lost, on GPUs of a stand-in driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.events import BatchLost, SlotQuarantined, Waited
from orchestrator.exits import EXIT_STOPPED_EARLY
from tests.nvml.fakedriver import FOR_EVER, FOREIGN, GIB, GPU_IS_LOST, FakeDriver
from tests.nvml.test_gpu_slots import HELD, Lab, bystander
from tests.process.sweeping import PATIENCE_S, QUICK_LIMITS, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: The id of a prompt, and so in the text of what the engine raises at it.
LOST = "GPU is lost"
PROMPTS = [{"id": one, "prompt": one} for one in ("a", LOST, "b")]


@pytest.fixture
def lab(tmp_path: Path, driver: FakeDriver) -> Lab:
    return Lab(tmp_path / "lab", driver)


@pytest.mark.parametrize(("gpus", "slots"), [(2, ["slot0", "slot1", "slot1"]), (1, ["slot0", "slot0", "slot0"])])
def test_a_device_that_only_the_engine_calls_lost_is_left_for_another(lab: Lab, gpus: int, slots: list[str]) -> None:
    """The driver still has it, or can't be asked: with no other slot it gets its second try."""
    for index in range(gpus):
        lab.driver.gpu(index, f"GPU-{index}")
    fall = {"at": f"prompt:{LOST}", "do": "raise", "once": str(lab.bench.folder / "once")}
    sweep = lab.sweep(lab.worker("unlucky", fall), lab.worker("next"), prompts=PROMPTS, matrix={"batch_size": [3]})
    assert sweep == 0
    assert lab.slots() == slots
    assert [(one.slot, LOST in one.reason) for one in lab.of(SlotQuarantined)] == [("slot0", True)] * (gpus - 1)
    assert set(lab.bench.keys().values()) == {1}
    lab.bench.assert_clean()


def test_a_slot_is_waited_for_as_long_as_the_policy_says_whatever_the_limit_of_standby(lab: Lab) -> None:
    lab.driver.gpu(0, "GPU-a")
    lab.driver.process("GPU-a", FOREIGN, 5 * GIB)
    limits = {**QUICK_LIMITS, "standby_s": 3}
    lab.bench.write(methods=[lab.worker("one")], limits=limits, policies={"busy_device": {"wait_s": 4}})
    assert lab.bench.run().returncode == EXIT_STOPPED_EARLY
    (waited,) = lab.of(Waited)
    assert waited.wait_s >= 4
    assert lab.slots() == ["slot0"]


@pytest.mark.parametrize("at", ["load", "prompt:2"])
def test_memory_that_a_stranger_took_is_not_what_the_method_wanted_too_much(lab: Lab, at: str) -> None:
    """He came after the slot was granted. It is waited for, and nothing is halved or given up."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD)
    short = {"at": at, "do": "memory_error", "once": str(lab.bench.folder / "once")}
    policies = {"busy_device": {"wait_s": PATIENCE_S}}
    lab.bench.write(methods=[lab.worker("robbed", short)], matrix={"batch_size": [3]}, policies=policies)
    with bystander() as pid, lab.bench.start() as sweep:
        lab.driver.process("GPU-a", pid, 70 * GIB, f"after={lab.claims}", f"until={lab.gone}")
        assert sweep.stdout is not None
        assert any("waiting for slot slot0" in line for line in sweep.stdout)  # ends with the sweep at the latest
        lab.gone.touch()
        sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 0
    assert lab.outcomes() == {"robbed": {"ok"}}
    blamed = [one.cause for one in (*lab.bench.releases(), *lab.of(BatchLost)) if one.cause]
    assert [cause.cls for cause in blamed] == ["busy_device"]
    assert f"GPU 0 (GPU-a) is held by others: pid {pid} python" in blamed[0].message
    assert not any(record["flags"] for record in lab.bench.records)
    lab.bench.assert_clean()


def test_a_device_that_is_lost_while_its_worker_waits_for_it_is_taken_out_once(lab: Lab) -> None:
    """It is seen twice: when the worker would load, and when it has left."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.fail("MemoryInfo_v2", GPU_IS_LOST, f"after={lab.gone}", uuid="GPU-a")
    early = method("one", early=True, at="import", do="mark", touch=str(lab.gone))
    assert lab.sweep(early) == EXIT_STOPPED_EARLY
    assert lab.quarantine().reason.startswith("GPU 0 (GPU-a) is lost: ")
    assert {cause.cls for cause in lab.causes("one")} == {"device_lost"}


def test_a_slot_that_the_last_worker_leaves_unusable_did_not_end_the_run_early(lab: Lab) -> None:
    """Exit 3 is for what could not run, and here all did."""
    lab.driver.gpu(0, "GPU-a")
    lab.driver.claims(lab.claims, HELD, linger=FOR_EVER)
    assert lab.sweep(method("bad", at="load", do="raise"), lab.worker("last")) == 1
    assert lab.outcomes() == {"bad": {"failed"}, "last": {"ok"}}
    assert lab.quarantine().slot == "slot0"
