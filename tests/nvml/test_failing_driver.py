"""What `plan` and `sweep` say on a machine whose driver fails, or hides GPUs: never silently for the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from orchestrator.exits import EXIT_INPUT
from orchestrator.provenance import Provenance
from orchestrator.view.markdown import markdown
from orchestrator.view.runview import RunView
from tests.nvml.fakedriver import DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN, FakeDriver
from tests.nvml.test_gpu_slots import Lab
from tests.process.sweeping import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nothing_leaked")

MISMATCH = 18
REFUSED = "no GPU can be used, though NVIDIA's driver is here"


@pytest.fixture
def lab(tmp_path: Path, driver: FakeDriver) -> Lab:
    driver.gpu(0, "GPU-a")
    driver.gpu(1, "GPU-b")
    found = Lab(tmp_path / "lab", driver)
    found.bench.write(methods=["scripted"], devices={"slots": 1, "standby": "off"})
    return found


def plan(lab: Lab) -> CompletedProcess[str]:
    return lab.bench.run("--dry-run")


@pytest.mark.parametrize(
    ("function", "code"),
    [
        *(("Init", MISMATCH), ("Init", DRIVER_NOT_LOADED), ("Init", UNKNOWN), ("Count", UNKNOWN)),
        *(("HandleByIndex", GPU_IS_LOST), ("HandleByIndex", UNKNOWN), ("UUID", UNKNOWN), ("*", GPU_IS_LOST)),
    ],
)
def test_a_driver_that_fails_stops_plan_and_sweep_unless_the_cpu_is_asked_for(
    lab: Lab, function: str, code: int
) -> None:
    lab.driver.fail(function, code)
    for done in (plan(lab), lab.bench.run()):
        assert done.returncode == EXIT_INPUT, done.stderr
        assert REFUSED in done.stderr
        assert "CUDA_VISIBLE_DEVICES=" in done.stderr
    assert not lab.bench.run_dir.exists()
    lab.bench.env["CUDA_VISIBLE_DEVICES"] = ""
    done = plan(lab)
    assert done.returncode == 0, done.stderr
    assert "workers on the CPU: " in done.stdout
    assert "warning: " in done.stderr


def test_environments_for_the_cpu_are_said_to_be_such_where_the_driver_fails(lab: Lab) -> None:
    def listed() -> CompletedProcess[str]:
        argv = [sys.executable, "-m", "orchestrator", "env", "list"]
        return subprocess.run(argv, env=lab.bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)

    assert "warning" not in listed().stderr
    lab.driver.fail("Init", MISMATCH)
    done = listed()
    assert done.returncode == 0, done.stderr
    assert f"environments are those for the CPU: {REFUSED}" in done.stderr
    lab.bench.env["CUDA_VISIBLE_DEVICES"] = ""
    assert "warning" not in listed().stderr


def test_no_gpu_at_all_behind_a_driver_is_one_that_was_lost(lab: Lab) -> None:
    lab.driver.clear("gpu")
    done = plan(lab)
    assert done.returncode == EXIT_INPUT
    assert f"{REFUSED}: NVML sees no device" in done.stderr


def test_a_name_of_no_gpu_is_refused_and_a_list_that_is_cut_short_told(lab: Lab) -> None:
    lab.bench.env["CUDA_VISIBLE_DEVICES"] = "7"
    assert f"{REFUSED}: CUDA_VISIBLE_DEVICES=7: no device '7'" in plan(lab).stderr
    lab.bench.env["CUDA_VISIBLE_DEVICES"] = "1,7"
    done = plan(lab)
    assert "warning: CUDA_VISIBLE_DEVICES=1,7: no device '7'; it and the rest are ignored" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("workers on")] == [
        "workers on GPU 1 (GPU-b), NVIDIA Test, 80.0 GiB"
    ]


def test_gpus_are_named_and_one_that_fails_is_told_before_and_kept_in_the_record(lab: Lab) -> None:
    done = plan(lab)
    assert "workers on GPU 0 (GPU-a), NVIDIA Test, 80.0 GiB\nworkers on GPU 1 (GPU-b)" in done.stdout
    assert "warning: " not in done.stderr
    lab.driver.fail("UUID", GPU_IS_LOST, uuid="GPU-b")
    done = lab.bench.run()
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "warning: UUID of device 1: " in said
    assert said.index("warning: UUID of device 1: ") < said.index("workers on GPU 0 (GPU-a), NVIDIA Test, 80.0 GiB")
    assert "GPU-b" not in said
    (found,) = lab.of(Provenance)
    assert (found.kind, [(one.index, one.uuid) for one in found.devices]) == ("cuda", [(0, "GPU-a")])
    assert found.notes[0].startswith("UUID of device 1: ")
    report = markdown(RunView.load(lab.bench.run_dir))
    assert "| GPU GPU-a | index 0, NVIDIA Test, 80.0 GiB" in report
    assert "- UUID of device 1: " in report


def test_hidden_gpus_are_told_and_the_record_names_the_cpu(lab: Lab) -> None:
    lab.bench.env["CUDA_VISIBLE_DEVICES"] = ""
    done = lab.bench.run()
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "warning: CUDA_VISIBLE_DEVICES='' hides every device" in said
    assert "workers on the CPU: " in said
    (found,) = lab.of(Provenance)
    assert (found.kind, found.devices) == ("cpu", [])
    assert "| workers on | the CPU |" in markdown(RunView.load(lab.bench.run_dir))
