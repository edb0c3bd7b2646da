"""The coordinator's own reading of a driver's library, through nvidia-ml-py, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nvml.fakedriver import (
    DRIVER_NOT_LOADED,
    FOREIGN,
    GIB,
    GPU_IS_LOST,
    MIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeDriver,
)

PATIENCE_S = 60
USED = 'reader.used_bytes("GPU-a")'
HOLDERS = '[vars(one) for one in reader.holders("GPU-a") or []]'
OCCUPIED = "strangers.occupied(slots.all[0], reader)"
LOST = "strangers.lost(slots.all[0], reader)"


def ask(driver: FakeDriver, *expressions: str, **variables: str) -> list[Any]:
    """What tests/nvml/ask.py finds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.nvml.ask", *expressions],
        env={**driver.environment(), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def own_name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def test_gpus_and_slices_by_uuid_with_their_own_sizes(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a")
    driver.gpu(1, "GPU-b")
    driver.slice(1, 0, "MIG-c", total=20 * GIB)
    driver.slice(1, 3, "MIG-d", total=40 * GIB)
    found, kind, sizes = ask(
        driver,
        "[[d.index, d.uuid, d.name, d.total_bytes] for d in machine.devices]",
        "machine.kind",
        '[reader.free_bytes("GPU-a"), reader.free_bytes("MIG-c")]',
    )
    assert found == [
        [0, "GPU-a", "NVIDIA Test", 80 * GIB],
        [1, "MIG-c", "NVIDIA Test MIG", 20 * GIB],
        [1, "MIG-d", "NVIDIA Test MIG", 40 * GIB],
    ]
    assert (kind, sizes) == ("cuda", [80 * GIB - 4 * MIB, 20 * GIB - 4 * MIB])


@pytest.mark.parametrize("visible", ["MIG-d", "1,MIG-d", "MIG-d,7"])
def test_a_slice_is_named_never_numbered(driver: FakeDriver, visible: str) -> None:
    driver.gpu(0, "GPU-a")
    driver.slice(0, 0, "MIG-c")
    driver.slice(0, 1, "MIG-d")
    (uuids,) = ask(driver, "[d.uuid for d in machine.devices]", CUDA_VISIBLE_DEVICES=visible)
    assert uuids == ([] if visible.startswith("1") else ["MIG-d"])


def test_a_slice_that_only_a_container_sees_has_no_size_and_is_not_lost(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a")
    total, used, lost, held = ask(
        driver,
        "machine.devices[0].total_bytes",
        '[reader.used_bytes("MIG-x") for _ in range(5)]',
        LOST,
        OCCUPIED,
        CUDA_VISIBLE_DEVICES="MIG-x",
    )
    assert (total, used, lost, held) == (None, [None] * 5, "", "")


def test_who_holds_what(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a", base=10 * MIB, reserved=700 * MIB)
    driver.process("GPU-a", os.getpid(), 2 * GIB)
    driver.process("GPU-a", FOREIGN, 1 * GIB)
    driver.process("GPU-a", FOREIGN + 1, None)
    driver.process("GPU-a", os.getpid(), 100 * MIB, kind="graphics")
    driver.process("GPU-a", os.getppid(), 50 * MIB, kind="graphics")
    used, holders, held = ask(driver, USED, HOLDERS, OCCUPIED)
    assert used == 10 * MIB + 3 * GIB + 150 * MIB  # what the driver reserves is nobody's
    assert [(one["pid"], one["used_bytes"], one["graphics"]) for one in holders] == [
        (os.getpid(), 2 * GIB, False),
        (FOREIGN, 1 * GIB, False),
        (FOREIGN + 1, None, False),
        (os.getppid(), 50 * MIB, True),
    ]
    assert [one["name"] for one in holders[:3]] == [own_name(), "", ""]
    assert f"pid {os.getpid()} {own_name()} 2.0 GiB, pid {FOREIGN} (ended, or of another PID namespace)" in held


def test_an_idle_gpu_is_free_whatever_the_driver_reserves(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a", reserved=700 * MIB)
    assert ask(driver, OCCUPIED, LOST) == ["", ""]


def test_an_old_driver_without_the_second_memory_call(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a", base=10 * MIB)
    driver.fail("MemoryInfo_v2", NOT_SUPPORTED)
    assert ask(driver, USED) == [10 * MIB]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    "function", ["MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses", "Name", "MigMode"]
)
def test_each_call_may_fail_and_the_device_stays(driver: FakeDriver, function: str, code: int) -> None:
    driver.gpu(0, "GPU-a")
    driver.process("GPU-a", os.getpid(), 100 * MIB)
    driver.fail(function, code)
    driver.fail(f"{function}_v2", code)
    devices, used, holders, why, lost, held = ask(
        driver, "[d.uuid for d in machine.devices]", USED, HOLDERS, 'reader.why_not("GPU-a")', LOST, OCCUPIED
    )
    assert devices == ["GPU-a"]
    assert (lost, held) == ("", "")
    assert used == (None if function == "MemoryInfo" else 104 * MIB)
    assert len(holders) == (0 if function == "ComputeRunningProcesses" else 1)
    assert bool(why) == (function in ("MemoryInfo", "ComputeRunningProcesses"))


@pytest.mark.parametrize("function", ["HandleByUUID", "MemoryInfo_v2", "*"])
def test_a_gpu_that_falls_off_the_bus_is_lost_and_stays_so(driver: FakeDriver, tmp_path: Path, function: str) -> None:
    driver.gpu(0, "GPU-a")
    driver.gpu(1, "GPU-b")
    gone = tmp_path / "gone"
    driver.fail(function, GPU_IS_LOST, f"after={gone}", f"until={tmp_path / 'back'}", uuid="GPU-a")
    before, _, after, _, later, other = ask(
        driver,
        LOST,
        f"open({str(gone)!r}, 'w').close()",
        LOST,
        f"open({str(tmp_path / 'back')!r}, 'w').close()",
        LOST,
        "strangers.lost(slots.all[1], reader)",
    )
    assert (before, after, later, other) == ("", "GPU 0 (GPU-a) is lost: GPU is lost", after, "")


def test_a_gpu_lost_before_the_start_leaves_the_others(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a")
    driver.gpu(1, "GPU-b")
    driver.fail("*", GPU_IS_LOST, uuid="GPU-a")
    found, notes = ask(driver, "[[d.index, d.uuid] for d in machine.devices]", "machine.notes")
    assert (found, notes) == ([[1, "GPU-b"]], ["device 0: GPU is lost"])


@pytest.mark.parametrize("function", ["HandleByUUID", "MemoryInfo_v2"])
def test_a_driver_that_blocks_for_ever_is_given_up_on(driver: FakeDriver, function: str) -> None:
    driver.gpu(0, "GPU-a")
    driver.block(function, "from=2" if function == "HandleByUUID" else "from=3")  # one at the start
    first, second, third, why = ask(
        driver, *['hasty.used_bytes("GPU-a")'] * 2, 'hasty.holders("GPU-a")', 'hasty.why_not("GPU-a")'
    )
    assert (first, second, third, why) == (4 * MIB, None, None, "the driver does not answer")


@pytest.mark.parametrize(("code", "said"), [(DRIVER_NOT_LOADED, "Driver Not Loaded"), (UNKNOWN, "Unknown Error")])
def test_a_driver_that_does_not_start_makes_a_cpu_machine(driver: FakeDriver, code: int, said: str) -> None:
    driver.gpu(0, "GPU-a")
    driver.fail("Init", code)
    kind, notes, reader = ask(driver, "machine.kind", "machine.notes", "reader")
    assert (kind, notes, reader) == ("cpu", [f"NVML can't be used: {said}"], None)


def test_a_library_that_is_none_makes_a_cpu_machine(driver: FakeDriver, tmp_path: Path) -> None:
    """Containers without a GPU have it as an empty file."""
    driver.library = tmp_path
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert ask(driver, "machine.kind", "machine.notes") == [
        "cpu",
        ["NVML can't be used: NVML Shared Library Not Found"],
    ]
