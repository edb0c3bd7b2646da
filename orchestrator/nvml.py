"""GPUs as NVML tells of them, each single reading optional.

Unsupported, not permitted, a lost device or a driver that does not answer give
None and a reason. Devices are UUID strings end to end, MIG slices included.
Pids are the driver's: older ones count as the host does, also inside a
container, so a pid from here names a holder and is never a target.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from orchestrator.run.cpusets import MOST_CPUS

T = TypeVar("T")
MIG_ENABLED = 1
#: NVML answers within milliseconds; a driver whose GPU fell off the bus may never answer.
PATIENCE_S = 10.0
#: The first to ask may have to wait until each GPU is woken up.
START_PATIENCE_S = 90.0
#: A device that was there and can't be found so many times in a row is gone; once may be an accident.
LOST_AFTER = 3
#: Of 64 CPUs each: as many CPUs as a kernel may be built for.
AFFINITY_WORDS = MOST_CPUS // 64


@dataclass(frozen=True)
class Device:
    """index: NVML's number of the GPU, or of the GPU a MIG slice is part of. capability: CUDA's compute
    capability, major and minor. near: the CPUs nearest to it. These and total_bytes are None if not told."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    capability: tuple[int, int] | None = None
    near: frozenset[int] | None = None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.uuid})"


@dataclass(frozen=True)
class Holder:
    """A process with device memory. name: "" if no such process can be seen here. graphics: it only draws."""

    pid: int
    name: str
    used_bytes: int | None
    graphics: bool = False


class DeviceReader(Protocol):
    """Fresh readings; None is "not told", never 0."""

    lost: set[str]  # UUIDs of devices that nothing can run on before a reset

    def used_bytes(self, uuid: str) -> int | None: ...

    def free_bytes(self, uuid: str) -> int | None: ...

    def holders(self, uuid: str) -> list[Holder] | None: ...

    def why_not(self, uuid: str) -> str:
        """The reason for the last None of this device."""
        ...


class NvmlReader:
    """`nvml` is the pynvml module, initialised. `notes` says what failed, each failure once."""

    def __init__(self, nvml: Any, patience_s: float = PATIENCE_S) -> None:
        self._nvml = nvml
        self._in_time = InTime(patience_s)
        self._failed_lookups: dict[str, int] = {}  # in a row, of devices that were found before
        self._reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.lost: set[str] = set()

    def devices(self) -> Iterator[Device]:
        """Every GPU, or its slices where it is in MIG mode."""
        for index in range(self._ask("count", self._nvml.nvmlDeviceGetCount) or 0):
            handle = self._ask(f"device {index}", partial(self._nvml.nvmlDeviceGetHandleByIndex, index))
            if handle is not None:
                capability, near = self._capability(handle), self._near(handle)
                for part in self._slices(index, handle) or [handle]:
                    yield from self._describe(index, part, capability, near)

    def used_bytes(self, uuid: str) -> int | None:
        memory = self._of(uuid, self._memory)
        return None if memory is None else int(memory.used)

    def free_bytes(self, uuid: str) -> int | None:
        memory = self._of(uuid, self._memory)
        return None if memory is None else int(memory.free)

    def holders(self, uuid: str) -> list[Holder] | None:
        """Those that compute, then those that only draw."""
        computing = self._of(uuid, self._nvml.nvmlDeviceGetComputeRunningProcesses)
        if computing is None:
            return None
        drawing = self._quietly(lambda: self._nvml.nvmlDeviceGetGraphicsRunningProcesses(self._handle(uuid))) or []
        pids = {one.pid for one in computing}
        found = [Holder(one.pid, name_of(one.pid), one.usedGpuMemory) for one in computing]
        return found + [
            Holder(one.pid, name_of(one.pid), one.usedGpuMemory, graphics=True)
            for one in drawing
            if one.pid not in pids
        ]

    def optional(self, uuid: str, function: str, *more: Any) -> Any:
        """What `function` says of a device; None where it is not told, or NVML has no such function."""
        return self._quietly(lambda: self._call(function, self._handle(uuid), *more))

    def system(self, function: str) -> Any:
        """The same of a function that asks about no device."""
        return self._quietly(partial(self._call, function))

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(self._nvml, function)(*arguments)

    def why_not(self, uuid: str) -> str:
        return self._reasons.get(uuid, "")

    # --- asking -----------------------------------------------------------------

    def _of(self, uuid: str, call: Callable[[Any], T]) -> T | None:
        """`call` with the handle of a known device. That a device is not found any more tells that it is gone."""
        handle = self._ask(uuid, partial(self._handle, uuid), lookup=True)
        return None if handle is None else self._ask(uuid, partial(call, handle))

    def _handle(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    def _memory(self, handle: Any) -> Any:
        """The first version counts what the driver keeps for itself as used: hundreds of MiB on an idle GPU."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, nvml.NVMLError_ArgumentVersionMismatch):
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _ask(self, what: str, call: Callable[[], T], *, lookup: bool = False) -> T | None:
        try:
            answer = self._in_time(call)
        except (self._nvml.NVMLError, TimeoutError, ValueError) as error:  # ValueError: a name that is no UTF-8
            self._failed(what, error, lookup)
            return None
        if lookup:
            self._failed_lookups[what] = 0
        return answer

    def _quietly(self, call: Callable[[], T]) -> T | None:
        """For what many devices don't have: no answer is not worth a note."""
        with suppress(self._nvml.NVMLError, TimeoutError, ValueError, AttributeError):
            return self._in_time(call)
        return None

    def _failed(self, what: str, error: Exception, lookup: bool) -> None:
        self._reasons[what] = str(error)
        if (note := f"{what}: {error}") not in self.notes:
            self.notes.append(note)
        nvml = self._nvml
        if isinstance(error, (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)):
            self.lost.add(what)
        elif (
            lookup
            and what in self._failed_lookups
            and isinstance(error, (nvml.NVMLError_NotFound, nvml.NVMLError_Unknown))
        ):
            self._failed_lookups[what] += 1
            if self._failed_lookups[what] >= LOST_AFTER:
                self.lost.add(what)

    # --- what there is ------------------------------------------------------------

    def _slices(self, index: int, handle: Any) -> list[Any]:
        """Empty for a card without MIG, whose normal answer is "not supported"."""
        mode = self._quietly(partial(self._nvml.nvmlDeviceGetMigMode, handle))
        if mode is None or mode[0] != MIG_ENABLED:
            return []
        places = self._ask(f"device {index}", partial(self._nvml.nvmlDeviceGetMaxMigDeviceCount, handle)) or 0
        asked = (
            self._quietly(partial(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)) for at in range(places)
        )
        return [one for one in asked if one is not None]  # a place may be without a slice

    def _capability(self, handle: Any) -> tuple[int, int] | None:
        """Of the whole GPU: a slice's own handle is not asked."""
        found = self._quietly(partial(self._nvml.nvmlDeviceGetCudaComputeCapability, handle))
        return None if found is None else (int(found[0]), int(found[1]))

    def _near(self, handle: Any) -> frozenset[int] | None:
        """Of the whole GPU too: a slice has none of its own."""
        words = self._quietly(lambda: self._call("nvmlDeviceGetCpuAffinity", handle, AFFINITY_WORDS))
        bits = enumerate(words or ())
        return frozenset(64 * n + bit for n, word in bits for bit in range(64) if int(word) >> bit & 1) or None

    def _describe(
        self, index: int, handle: Any, capability: tuple[int, int] | None, near: frozenset[int] | None
    ) -> Iterator[Device]:
        uuid = self._ask(f"UUID of device {index}", partial(self._nvml.nvmlDeviceGetUUID, handle))
        if uuid is None:
            return
        uuid = text(uuid)
        name = self._ask(uuid, partial(self._nvml.nvmlDeviceGetName, handle))
        memory = self._ask(uuid, partial(self._memory, handle))
        total = None if memory is None else int(memory.total)
        yield Device(index, uuid, text(name or "unknown"), total, capability, near)


class InTime:
    """Makes calls into a driver that may block for ever: each in a thread of its own, for at most `patience_s`.

    While one that was given up on still blocks, the next are refused at once. Raises TimeoutError, also where
    there can be no thread just now.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._blocked: threading.Thread | None = None

    def __call__(self, call: Callable[[], T]) -> T:
        if self._blocked is not None and self._blocked.is_alive():
            raise TimeoutError("the driver does not answer")
        answers: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answers.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True, name="nvml")
        try:
            thread.start()
        except RuntimeError as exc:  # a worker may have taken all that a container may have
            raise TimeoutError(f"the driver can't be asked: {exc}") from exc
        thread.join(self._patience_s)
        if errors:
            raise errors[0]
        if not answers:
            self._blocked = thread
            raise TimeoutError(f"the driver did not answer within {self._patience_s:g} s")
        return answers[0]


@dataclass(frozen=True)
class Opened:
    """reader: None where there is none, for the reason `why_not`. absent: NVML is not there at all, as on a machine
    without NVIDIA's driver; otherwise it is there and fails."""

    reader: NvmlReader | None
    why_not: str = ""
    absent: bool = False


def open_nvml(nvml: Any, patience_s: float = PATIENCE_S) -> Opened:
    """A reader on an initialised NVML."""
    if nvml is None:
        try:
            import pynvml

            nvml = pynvml
        except ImportError as error:
            return Opened(None, f"NVML's Python module can't be imported: {error}", absent=True)
    try:
        InTime(START_PATIENCE_S)(nvml.nvmlInit)
    except (nvml.NVMLError, TimeoutError) as error:
        return Opened(None, f"NVML can't be used: {error}", isinstance(error, nvml.NVMLError_LibraryNotFound))
    return Opened(NvmlReader(nvml, patience_s))


def name_of(pid: int) -> str:
    """ "" for a process that we can't see: NVML may count in another PID namespace."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    return ""


def text(value: str | bytes) -> str:
    """Older NVML bindings answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
