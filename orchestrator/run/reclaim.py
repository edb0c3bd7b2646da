"""Proof that a worker's memory came back: measured from outside, never taken from the worker's word.

On a GPU slot the figure is the device memory in use, by UUID, summed over the
slot; on a CPU slot it is the summed PSS of the worker's process tree, which no
neighbour on a shared host can falsify. Host memory available before and after
is noted beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.devices import Device, DeviceReader, host_available_bytes
from orchestrator.events import Reclaim
from orchestrator.reaper import SHM, ProcessRef, shm_in_use, usage

MIB = 1024 * 1024
#: Drivers keep small per-process structures for a moment; less than any engine needs to fail.
DEVICE_TOLERANCE_BYTES = 64 * MIB
#: Memory counts as back when this many samples in a row agree.
STABLE_SAMPLES = 3
SAMPLE_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Slot:
    """The set of devices one worker owns; empty on a CPU machine."""

    name: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Settling:
    """Whether a row of readings has come back to its level and stays there. Pure."""

    limit_bytes: int
    tolerance_bytes: int
    samples: tuple[int, ...] = ()

    def add(self, value_bytes: int) -> Settling:
        return Settling(self.limit_bytes, self.tolerance_bytes, (*self.samples, value_bytes)[-STABLE_SAMPLES:])

    @property
    def settled(self) -> bool:
        full = len(self.samples) == STABLE_SAMPLES
        return full and max(self.samples) <= self.limit_bytes and self._spread <= self.tolerance_bytes

    @property
    def _spread(self) -> int:
        return max(self.samples) - min(self.samples)


def remove_unused_shm(paths: Iterable[str]) -> list[str]:
    """Unlinks those of our processes' /dev/shm segments that nobody has any more; gives their paths."""
    left = {path for path in paths if path.startswith(SHM) and os.path.exists(path)}
    removed = sorted(left - shm_in_use(left)) if left else []
    for path in removed:
        with suppress(FileNotFoundError):
            os.unlink(path)
    return removed


@dataclass
class MemoryWatch:
    """Follows one incarnation from before its launch until after its end."""

    slot: Slot
    reader: DeviceReader | None
    clock: Callable[[], float]
    held_bytes: int | None = None
    peak_bytes: int | None = None
    shm: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    _settling: Settling | None = None
    _ended_at: float = 0.0
    _after_bytes: int | None = None

    def __post_init__(self) -> None:
        self.baseline_bytes = self._used() if self.slot.devices else 0
        self.host_before_bytes = host_available_bytes()

    @property
    def tolerance_bytes(self) -> int:
        return DEVICE_TOLERANCE_BYTES if self.slot.devices else 0

    def _used(self) -> int | None:
        """Device memory in use over the slot, bytes; None (and a note) if any device does not tell."""
        if self.reader is None:
            return None
        readings = [self.reader.used_bytes(device.uuid) for device in self.slot.devices]
        if any(reading is None for reading in readings):
            self._note("a device does not tell its memory in use")
            return None
        return sum(reading for reading in readings if reading is not None)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def look(self, tree: Sequence[ProcessRef]) -> None:
        """One sample of a living worker, between measurements: what it holds now."""
        seen = usage(tree)
        self.shm |= seen.shm
        held = self._used() if self.slot.devices else seen.pss_bytes
        if held is not None:
            self.held_bytes = held
            self.note_peak(held)

    def note_peak(self, value_bytes: int | None) -> None:
        if value_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, value_bytes)

    def ended(self, now: float) -> None:
        """The last process is gone: from here on it is the memory that is waited for."""
        self._ended_at = now
        if self.slot.devices and self.baseline_bytes is not None:
            self._settling = Settling(self.baseline_bytes + DEVICE_TOLERANCE_BYTES, DEVICE_TOLERANCE_BYTES)

    def poll(self) -> Literal["back", "wait"]:
        """On a CPU slot the end of the last process is the proof: what it held is PSS, and it is no more."""
        if self._settling:
            return self._poll_devices()
        if self.slot.devices:
            self._note("memory before launch is unknown; the end of all processes is the only proof")
        else:
            self._after_bytes = 0
            self._note_host()
        return "back"

    def _poll_devices(self) -> Literal["back", "wait"]:
        used = self._used()
        if used is None:
            self._note("memory after the end is unknown; the end of all processes is the only proof")
            return "back"
        self._after_bytes = used
        assert self._settling is not None
        self._settling = self._settling.add(used)
        return "back" if self._settling.settled else "wait"

    def _note_host(self) -> None:
        """Beside the proof, not part of it: on a shared host neighbours move this figure too."""
        before, after = self.host_before_bytes // MIB, host_available_bytes() // MIB
        self._note(f"host memory available: {before} MiB before launch, {after} MiB after the end")

    def proof(self, *, left: int, strays: Sequence[str], returned: bool, teardown_s: float, rung: str) -> Reclaim:
        return Reclaim(
            device=", ".join(f"{d.index}:{d.uuid}" for d in self.slot.devices) or "cpu",
            processes_left=left,
            strays_killed=list(strays),
            held_bytes=self.held_bytes,
            peak_bytes=self.peak_bytes,
            baseline_bytes=self.baseline_bytes,
            after_bytes=self._after_bytes,
            tolerance_bytes=self.tolerance_bytes,
            returned=returned and left == 0,
            wait_s=max(0.0, self.clock() - self._ended_at) if self._ended_at else 0.0,
            teardown_s=teardown_s,
            rung=rung,
            shm_removed=remove_unused_shm(self.shm) if left == 0 else [],
            notes=list(self.notes),
        )
