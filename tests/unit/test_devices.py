"""What NVML may answer, by a device-reading fake: nothing of it may break a sweep."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import devices
from orchestrator.devices import Device, Holder, discover, match_device, visible
from orchestrator.nvml import InTime, NvmlReader
from orchestrator.view import doctor

GIB = 1 << 30


class NVMLError(Exception):
    pass


class GpuIsLost(NVMLError):
    pass


class ResetRequired(NVMLError):
    pass


class NotFound(NVMLError):
    pass


class NotSupported(NVMLError):
    pass


class LibraryNotFound(NVMLError):
    pass


class FakeNvml:
    """Two GPUs of 80 GiB; the second is cut into two slices of 20 and 40 GiB if `mig`. `broken` calls raise."""

    NVMLError = NVMLError
    NVMLError_GpuIsLost = GpuIsLost
    NVMLError_ResetRequired = ResetRequired
    NVMLError_NotFound = NotFound
    NVMLError_Unknown = NVMLError
    NVMLError_NotSupported = NotSupported
    NVMLError_LibraryNotFound = LibraryNotFound
    NVMLError_FunctionNotFound = NotSupported
    NVMLError_ArgumentVersionMismatch = NotSupported
    nvmlMemory_v2 = 2
    reserved = 0

    def __init__(self, mig: bool = False, count: int = 2, broken: dict[str, Exception] | None = None) -> None:
        self.mig, self.count, self.broken = mig, count, broken or {}
        self.sizes = {"GPU-aa11": 80, "GPU-bb22": 80, "MIG-cc33": 20, "MIG-dd44": 40}
        self.processes: list[Any] = []
        self.drawing: list[Any] = []
        self.old = False  # without the second version of the memory call

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):
            return self._raise(self.broken[name])
        return object.__getattribute__(self, name)

    @staticmethod
    def _raise(error: Exception) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            raise error

        return call

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return ("GPU-aa11", "GPU-bb22")[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.sizes:
            raise NotFound("Not Found")
        return uuid

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-aa11":
            raise NVMLError("Not Supported")
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, _: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _: str, at: int) -> str:
        if at not in (0, 3):
            raise NVMLError("Not Found")
        return {0: "MIG-cc33", 3: "MIG-dd44"}[at]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, _: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:
        return {"GPU-aa11": [9, 0], "GPU-bb22": [7, 5]}[handle]

    def nvmlDeviceGetCpuAffinity(self, handle: str, words: int) -> list[int]:
        return [{"GPU-aa11": 0b1100, "GPU-bb22": 1 << 63}[handle], *[0] * (words - 2), 1]

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 0) -> Any:
        if version and self.old:
            raise NotSupported("Function Not Found")
        total = self.sizes[handle] * GIB
        used = (5 + (0 if version else self.reserved)) * GIB
        return SimpleNamespace(total=total, used=used, free=total - (5 + self.reserved) * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[Any]:
        return self.processes

    def nvmlDeviceGetGraphicsRunningProcesses(self, _: str) -> list[Any]:
        return self.drawing


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def uuids(machine: devices.Machine) -> list[str]:
    return [device.uuid for device in machine.devices]


def test_all_devices_by_uuid() -> None:
    machine = discover(FakeNvml())
    assert machine.kind == "cuda"
    assert machine.devices == (
        Device(0, "GPU-aa11", "NVIDIA H200", 80 * GIB, (9, 0), frozenset({2, 3, 8128})),
        Device(1, "GPU-bb22", "NVIDIA H200", 80 * GIB, (7, 5), frozenset({63, 8128})),
    )
    assert machine.notes == ()


def test_slices_stand_for_the_gpu_they_are_part_of() -> None:
    machine = discover(FakeNvml(mig=True))
    assert [(d.index, d.uuid, d.total_bytes) for d in machine.devices[1:]] == [
        (1, "MIG-cc33", 20 * GIB),
        (1, "MIG-dd44", 40 * GIB),
    ]


@pytest.mark.parametrize(
    ("nvml", "note"),
    [
        (FakeNvml(broken={"nvmlInit": NVMLError("Driver Not Loaded")}), "Driver Not Loaded"),
        (FakeNvml(broken={"nvmlDeviceGetCount": NVMLError("Unknown Error")}), "count: Unknown Error"),
        (FakeNvml(count=0), "no device"),
    ],
)
def test_a_machine_without_a_usable_gpu_says_why(nvml: FakeNvml, note: str) -> None:
    machine = discover(nvml)
    assert (machine.kind, machine.devices) == ("cpu", ())
    assert note in machine.notes[0]


BROKEN = NVMLError("Driver/library version mismatch")
FAILING = [
    FakeNvml(broken={"nvmlInit": BROKEN}),
    FakeNvml(broken={"nvmlInit": TimeoutError("the driver does not answer")}),
    FakeNvml(broken={"nvmlDeviceGetCount": BROKEN}),
    FakeNvml(broken={"nvmlDeviceGetHandleByIndex": GpuIsLost("GPU is lost")}),
    FakeNvml(broken={"nvmlDeviceGetUUID": BROKEN}),
    FakeNvml(count=0),
]


@pytest.mark.parametrize("nvml", FAILING)
@pytest.mark.parametrize("setting", [None, "0", "0,1", "GPU-aa11"])
def test_a_driver_that_gives_no_gpu_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, setting: str | None
) -> None:
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    machine = discover(nvml)
    assert (machine.kind, machine.driver) == ("cpu", True)
    assert machine.fault == "; ".join(machine.notes) != ""


@pytest.mark.parametrize("setting", ["7", "7,0", "GPU-zz", "MIG", "all"])
def test_asking_for_gpus_that_are_not_there_is_a_fault(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert f"CUDA_VISIBLE_DEVICES={setting}: no device" in discover(FakeNvml()).fault


@pytest.mark.parametrize("nvml", [*FAILING, FakeNvml()])
@pytest.mark.parametrize("setting", ["", " ", "-1", "NoDevFiles", "-1,0"])
def test_who_asks_for_the_cpu_gets_it_and_is_told(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, setting: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    machine = discover(nvml)
    assert (machine.kind, machine.fault, machine.driver) == ("cpu", "", True)
    assert machine.notes


@pytest.mark.parametrize("setting", [None, "", "0"])
@pytest.mark.parametrize("module", [False, True])
def test_without_nvml_nothing_is_a_fault_and_only_a_kernel_module_is_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, module: bool
) -> None:
    monkeypatch.setattr(devices, "KERNEL_DRIVER", tmp_path if module else tmp_path / "none")
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    machine = discover(FakeNvml(broken={"nvmlInit": LibraryNotFound("NVML Shared Library Not Found")}))
    assert (machine.kind, machine.fault, machine.driver) == ("cpu", "", module)


def test_one_lost_gpu_of_two_is_news_and_no_fault() -> None:
    class Half(FakeNvml):
        def nvmlDeviceGetUUID(self, handle: str) -> str:
            if handle == "GPU-bb22":
                raise GpuIsLost("GPU is lost")
            return handle

    machine = discover(Half())
    assert (uuids(machine), machine.fault, machine.driver) == (["GPU-aa11"], "", True)
    assert machine.notes == ("UUID of device 1: GPU is lost",)


def test_a_slice_has_the_compute_capability_of_its_gpu_and_one_that_is_not_told_is_none() -> None:
    assert [d.capability for d in discover(FakeNvml(mig=True)).devices] == [(9, 0), (7, 5), (7, 5)]
    machine = discover(FakeNvml(broken={"nvmlDeviceGetCudaComputeCapability": NotSupported("Function Not Found")}))
    assert [d.capability for d in machine.devices] == [None, None]
    assert machine.notes == ()


def test_the_nearest_cpus_are_the_whole_gpus_and_none_where_they_are_not_told() -> None:
    first, second, third = discover(FakeNvml(mig=True)).devices
    assert first.near == frozenset({2, 3, 8128})
    assert second.near == third.near == frozenset({63, 8128})
    machine = discover(FakeNvml(broken={"nvmlDeviceGetCpuAffinity": NotSupported("Not Supported")}))
    assert [d.near for d in machine.devices] == [None, None]
    assert machine.notes == ()


def test_one_device_that_fails_does_not_hide_the_others() -> None:
    nvml = FakeNvml(broken={"nvmlDeviceGetMemoryInfo": NVMLError("Not Supported")})
    machine = discover(nvml)
    assert [device.total_bytes for device in machine.devices] == [None, None]
    assert machine.kind == "cuda"
    assert any("Not Supported" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("setting", "chosen", "noted"),
    [
        (None, ["GPU-aa11", "GPU-bb22"], ""),
        ("1", ["GPU-bb22"], ""),
        ("1,0", ["GPU-bb22", "GPU-aa11"], ""),
        (" 0 , 0", ["GPU-aa11"], "'0' is named already"),
        ("0,GPU-aa,1", ["GPU-aa11", "GPU-bb22"], "'GPU-aa' is named already"),
        ("GPU-bb22", ["GPU-bb22"], ""),
        ("GPU-b", ["GPU-bb22"], ""),
        ("GPU-", [], "no device 'GPU-'"),  # two could be meant
        ("0,7,1", ["GPU-aa11"], "no device '7'"),
        ("0,-1,1", ["GPU-aa11"], "'-1' ends it"),
        ("0,,1", ["GPU-aa11"], "'' ends it"),
        ("0,", ["GPU-aa11"], ""),
        ("\u00b2", [], "no device '\u00b2'"),  # a digit, and no number
        ("", [], "hides every device"),
        ("-1", [], "hides every device"),
    ],
)
def test_cuda_visible_devices(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, chosen: list[str], noted: str
) -> None:
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    machine = discover(FakeNvml())
    assert uuids(machine) == chosen
    assert machine.kind == ("cuda" if chosen else "cpu")
    assert noted in " ".join(machine.notes)
    assert bool(noted) == bool(machine.notes)


def test_a_slice_is_never_read_as_a_number_and_unknown_ones_have_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-dd44,MIG-zz99,0")
    machine = discover(FakeNvml(mig=True))
    assert [(d.uuid, d.total_bytes) for d in machine.devices] == [
        ("MIG-dd44", 40 * GIB),
        ("MIG-zz99", None),
        ("GPU-aa11", 80 * GIB),
    ]
    assert "MIG-zz99" in machine.notes[0]


def test_an_index_is_the_systems_not_a_place_in_the_list() -> None:
    only_second = (Device(1, "GPU-bb22", "x", None),)
    assert match_device(only_second, "1") == only_second[0]
    assert match_device(only_second, "0") is None
    assert visible((), "0") == ((), ["CUDA_VISIBLE_DEVICES=0: no device '0'; it and the rest are ignored"])


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def test_readings_are_fresh_and_by_uuid() -> None:
    nvml = FakeNvml()
    nvml.processes = [process(os.getpid(), 7), process(2**22 + 1, None)]
    reader = NvmlReader(nvml)
    assert reader.used_bytes("GPU-aa11") == 5 * GIB
    assert reader.free_bytes("GPU-aa11") == 75 * GIB
    own_name = Path("/proc/self/comm").read_text().strip()
    assert reader.holders("GPU-bb22") == [Holder(os.getpid(), own_name, 7), Holder(2**22 + 1, "", None)]


def test_what_computes_and_draws_is_listed_once_as_computing() -> None:
    nvml = FakeNvml()
    nvml.processes, nvml.drawing = [process(2**22 + 1, 7)], [process(2**22 + 1, 7), process(2**22 + 2, 3)]
    found = NvmlReader(nvml).holders("GPU-aa11")
    assert found == [Holder(2**22 + 1, "", 7), Holder(2**22 + 2, "", 3, graphics=True)]


def test_a_list_of_drawing_processes_that_is_not_told_costs_nothing() -> None:
    nvml = FakeNvml(broken={"nvmlDeviceGetGraphicsRunningProcesses": NVMLError("Not Supported")})
    nvml.processes = [process(2**22 + 1, 7)]
    reader = NvmlReader(nvml)
    assert reader.holders("GPU-aa11") == [Holder(2**22 + 1, "", 7)]
    assert reader.notes == []


def test_what_the_driver_keeps_for_itself_is_not_in_use_where_it_says_so() -> None:
    nvml = FakeNvml()
    nvml.reserved = 1
    reader = NvmlReader(nvml)
    assert reader.used_bytes("GPU-aa11") == 5 * GIB
    nvml.old = True
    assert reader.used_bytes("GPU-aa11") == 6 * GIB


def test_a_reading_that_fails_is_unknown_and_noted_once() -> None:
    reader = NvmlReader(FakeNvml(broken={"nvmlDeviceGetComputeRunningProcesses": NVMLError("No Permission")}))
    assert reader.holders("GPU-aa11") is None
    assert reader.holders("GPU-aa11") is None
    assert reader.why_not("GPU-aa11") == "No Permission"
    assert reader.used_bytes("GPU-unknown") is None
    assert reader.notes == ["GPU-aa11: No Permission", "GPU-unknown: Not Found"]
    assert reader.lost == set()


@pytest.mark.parametrize("error", [GpuIsLost("GPU is lost"), ResetRequired("GPU requires restart")], ids=str)
@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
def test_a_device_that_fell_off_the_bus_is_told_apart(call: str, error: NVMLError) -> None:
    reader = NvmlReader(FakeNvml(broken={call: error}))
    assert reader.used_bytes("GPU-aa11") is None
    assert reader.lost == {"GPU-aa11"}


@pytest.mark.parametrize("error", [NVMLError("Unknown Error"), NotFound("Not Found")], ids=str)
def test_a_device_that_was_there_and_is_not_found_again_and_again_is_lost(error: NVMLError) -> None:
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    assert reader.used_bytes("GPU-aa11") is not None
    for _ in range(2):  # an accident, then all is well again
        nvml.broken["nvmlDeviceGetHandleByUUID"] = error
        assert [reader.used_bytes("GPU-aa11") for _ in range(2)] == [None, None]
        assert reader.lost == set()
        nvml.broken.clear()
        assert reader.used_bytes("GPU-aa11") is not None
    nvml.broken["nvmlDeviceGetHandleByUUID"] = error
    assert [reader.used_bytes("GPU-aa11") for _ in range(3)] == [None, None, None]
    assert reader.lost == {"GPU-aa11"}


def test_a_slice_that_was_never_found_is_not_lost() -> None:
    """Inside a container NVML may know the whole GPU only."""
    reader = NvmlReader(FakeNvml())
    assert [reader.used_bytes("MIG-zz99") for _ in range(9)] == [None] * 9
    assert reader.lost == set()


def test_a_driver_that_never_answers_holds_nobody_up() -> None:
    answer = threading.Event()
    in_time = InTime(patience_s=0.05)
    try:
        with pytest.raises(TimeoutError, match="did not answer within"):
            in_time(answer.wait)
        with pytest.raises(TimeoutError, match="does not answer"):
            in_time(lambda: pytest.fail("asked beside a call that blocks"))
    finally:
        answer.set()


def test_a_driver_that_answers_late_is_asked_again() -> None:
    answer, over = threading.Event(), threading.Event()

    def slow() -> None:
        answer.wait()
        over.set()

    in_time = InTime(patience_s=0.05)
    with pytest.raises(TimeoutError):
        in_time(slow)
    answer.set()
    assert over.wait(20)
    while any(thread.name == "nvml" for thread in threading.enumerate()):
        over.wait(0)
    assert in_time(lambda: 7) == 7


def test_where_no_thread_can_be_had_a_reading_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start hundreds, and containers and users have a limit on them all together."""
    reader = NvmlReader(FakeNvml())
    (uuid, *_) = [device.uuid for device in reader.devices()]

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for _ in range(9):
            assert (reader.used_bytes(uuid), reader.holders(uuid), reader.system("nvmlSystemGetDriverVersion")) == (
                None,
            ) * 3
        assert reader.why_not(uuid) == "the driver can't be asked: can't start new thread"
        assert "can't start new thread" in discover(FakeNvml()).fault
    assert reader.lost == set()
    assert reader.used_bytes(uuid) is not None


def test_an_error_of_a_call_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        InTime(patience_s=20)(lambda: 1 // 0)


def test_the_host_has_less_available_than_it_has() -> None:
    machine = discover(FakeNvml(count=0))
    assert 1 <= machine.cpus == len(machine.cpu_ids) <= (os.cpu_count() or 1)
    assert set(machine.cpu_ids) == os.sched_getaffinity(0) == machine.cores.keys()
    assert machine.memory_bytes is not None
    assert GIB // 4 < devices.host_available_bytes() <= machine.memory_bytes


def test_memory_nodes_and_cores_as_the_kernel_tells_them(tmp_path: Path) -> None:
    files = {
        "node/node0/cpulist": "0-1,4-5\n",
        "node/node10/cpulist": "2-3\n",
        "node/node11/cpulist": "\n",  # memory alone
        "cpu/cpu0/topology/thread_siblings_list": "0,4\n",
        "cpu/cpu4/topology/thread_siblings_list": "0,4\n",
        "cpu/cpu2/topology/thread_siblings_list": "what is this",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert devices.memory_nodes(tmp_path) == {0: {0, 1, 4, 5}, 10: {2, 3}}
    assert devices.cpu_cores([0, 2, 3, 4], tmp_path) == {0: 0, 2: 2, 3: 3, 4: 0}
    assert devices.memory_nodes(tmp_path / "none") == {}


def test_the_doctor_finds_bad_what_a_sweep_would_refuse() -> None:
    """A driver that gives no GPU, as after an update without a reboot; not a machine that has none."""
    why = "Driver/library version mismatch"
    broken = devices.Machine("cpu", (), 2, 1 << 30, (why,), driver=True, fault=why)
    (finding,) = [one for one in doctor._devices(broken) if one.subject == "devices"]
    assert (finding.level, finding.message) == ("bad", f"{devices.NO_GPU}: {why}")
    assert "CUDA_VISIBLE_DEVICES=" in finding.advice
    plain = devices.Machine("cpu", (), 2, 1 << 30, ("NVML Shared Library Not Found",))
    assert [one.level for one in doctor._devices(plain)] == ["ok", "ok"]


@pytest.mark.parametrize("path", ["/", "/a/group", "/of/the/host/only"])
def test_a_control_groups_limit_counts_and_its_cache_is_not_use(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "a" / "group" if path == "/a/group" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text("1000\n")
    (folder / "memory.current").write_text("700\n")
    (folder / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert list(devices.group_memory(tmp_path, path, "memory.max", "memory.current")) == [(1000, 550)]


@pytest.mark.parametrize("own", ["max", "9223372036854771712", None])
def test_the_limit_of_a_group_above_counts(tmp_path: Path, own: str | None) -> None:
    """Slurm sets that of a job some levels above the one that its processes are in, systemd that of a slice."""
    task = tmp_path / "slurm" / "job_7" / "step_batch" / "user" / "task_0"
    task.mkdir(parents=True)
    for folder, limit, used in ((task, own, 100), (task.parents[2], "1000", 700), (task.parents[3], "5000", 4500)):
        if limit is not None:
            (folder / "memory.max").write_text(f"{limit}\n")
            (folder / "memory.current").write_text(f"{used}\n")
    path = f"/{task.relative_to(tmp_path)}"
    found = list(devices.group_memory(tmp_path, path, "memory.max", "memory.current"))
    assert min(limit for limit, _ in found) == 1000
    assert min(limit - used for limit, used in found) == 300


def test_a_control_group_without_a_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert list(devices.group_memory(tmp_path, "/", "memory.max", "memory.current")) == []


def test_the_listing_of_shared_memory_gives_full_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SHM", tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "segment").touch()
    assert devices.shm_listing() == {f"{tmp_path}/folder", f"{tmp_path}/folder/segment"}
    monkeypatch.setattr(devices, "SHM", tmp_path / "none")
    assert devices.shm_listing() == set()
