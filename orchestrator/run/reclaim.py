"""Proof that a worker's memory came back: measured from outside, never taken from the worker's word.

On a GPU slot the figure is the device memory in use, by UUID, summed over the
slot; on a CPU slot it is the summed PSS of the worker's process tree, which no
neighbour on a shared host can falsify. Host memory available before and after
is noted beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.definition.sizes import MIB
from orchestrator.devices import DeviceReader, host_available_bytes
from orchestrator.reaper import ProcessRef, Usage, usage
from orchestrator.reclaim import Reclaim
from orchestrator.run.levels import DEVICE_TOLERANCE_BYTES, Answer, Level
from orchestrator.run.segments import Segment, Segments
from orchestrator.run.slots import Slot
from orchestrator.run.strangers import holder_texts, size_text

SAMPLE_INTERVAL_S = 0.1
#: Whoever polls more often gets the last answer: samples at one moment would prove nothing stable.
CLOSEST_SAMPLES_S = SAMPLE_INTERVAL_S / 2


@dataclass
class MemoryWatch:
    """Follows one incarnation from before its launch until after its end.

    held_bytes, peak_bytes: device memory over the slot; the PSS of the process tree on a CPU
    slot, and where no device tells its memory, as unified memory does not.
    early: the devices are another worker's still, and their memory says nothing of this one until `rebase`.
    """

    slot: Slot
    reader: DeviceReader | None
    clock: Callable[[], float]
    early: bool = False
    held_bytes: int | None = None
    peak_bytes: int | None = None
    segments: Segments = field(default_factory=Segments)
    notes: list[str] = field(default_factory=list)
    _levels: list[Level] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _shares: list[str] = field(default_factory=list)
    _ended_at: float = 0.0
    _polled_at: float = float("-inf")
    _answer: Answer = "wait"

    def __post_init__(self) -> None:
        self.host_before_bytes = host_available_bytes()
        if not self.early:
            self.rebase()

    def rebase(self, tree: Iterable[ProcessRef] = ()) -> None:
        """From now on memory is compared with this moment: for when the slot is granted.

        `tree`: the worker as it is by then. What it holds though it must not is no part of the level.
        """
        self._know(tree)
        self.early = False
        self._levels = [Level(device, self.reader, self._names) for device in self.slot.devices if self.reader]
        for level in self._levels:
            if level.early_bytes:
                self._note(f"{level.device}: the worker held {size_text(level.early_bytes)} before it was to load")

    def _know(self, tree: Iterable[ProcessRef]) -> None:
        self._names |= {ref.pid: ref.name for ref in tree}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- while it lives -----------------------------------------------------------

    def look(self, tree: Sequence[ProcessRef]) -> list[Segment]:
        """One sample of a living worker, between measurements: what it holds now. Gives the segments that
        were not known as its own."""
        self._know(tree)
        seen = usage(tree)
        fresh = self.segments.saw(tree, seen.shm)
        held = self._held(seen)
        if held is not None:
            self.held_bytes = held
            self.note_peak(held)
        shares = [f"{text} on {level.device}" for level in self._levels for text in level.worker_texts(self._names)]
        self._shares = shares or self._shares
        return fresh

    def _held(self, seen: Usage) -> int | None:
        if self.early or not self.slot.devices:
            return seen.pss_bytes
        used = [level.used_bytes for level in self._levels]
        if any(one is not None for one in used):
            return total(used)
        self._note("no device of the slot tells its memory: held and peak are the PSS of the process tree")
        return seen.pss_bytes

    def note_peak(self, value_bytes: int | None) -> None:
        if value_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, value_bytes)

    # --- after its end ------------------------------------------------------------

    def ended(self, now: float) -> None:
        """The last process is gone: from here on it is the memory that is waited for."""
        self._ended_at = now

    def poll(self) -> Answer:
        """On a CPU slot the end of the last process is the proof: what it held is PSS, and it is no more.

        "lost": a device fell off the bus, and there is nothing to wait for.
        """
        now = self.clock()
        if now - self._polled_at >= CLOSEST_SAMPLES_S:
            self._polled_at = now
            answers = {level.poll(self._names) for level in self._levels}
            self._answer = "lost" if "lost" in answers else "wait" if "wait" in answers else "back"
        return self._answer

    def stuck_reason(self) -> str:
        """Why the last poll did not say "back": per device, with who holds it. "" if all is back."""
        return "; ".join(level.stuck_text(self._names) for level in self._levels if level.last != "back")

    def not_back(self) -> list[str]:
        """UUIDs of the devices for which the last poll did not say "back"."""
        return [level.device.uuid for level in self._levels if level.last != "back"]

    def holders(self) -> list[str]:
        """Who holds memory on the slot's devices now: "pid 123 python 1.0 GiB"."""
        many = len(self._levels) > 1
        return [
            f"{text} on {level.device}" if many else text
            for level in self._levels
            for text in holder_texts(level.holders() or [], self._names)
        ]

    @property
    def baseline_bytes(self) -> int | None:
        """Over the slot; None if a device does not tell."""
        return self._over_slot(level.baseline_bytes for level in self._levels)

    @property
    def after_bytes(self) -> int | None:
        return self._over_slot(level.after_bytes for level in self._levels)

    def _over_slot(self, parts: Iterable[int | None]) -> int | None:
        if self.early or not self.slot.devices:
            return 0
        return total(parts) if self._levels else None

    def proof(self, *, left: int, strays: Sequence[str], returned: bool, teardown_s: float, rung: str) -> Reclaim:
        self._note_end()
        removed, left_in_shm = self.segments.settle() if left == 0 else ([], [])
        return Reclaim(
            device=", ".join(f"{d.index}:{d.uuid}" for d in self.slot.devices) or "cpu",
            processes_left=left,
            strays_killed=list(strays),
            held_bytes=self.held_bytes,
            peak_bytes=self.peak_bytes,
            baseline_bytes=self.baseline_bytes,
            after_bytes=self.after_bytes,
            tolerance_bytes=DEVICE_TOLERANCE_BYTES * len(self.slot.devices),
            returned=returned and left == 0,
            wait_s=max(0.0, self.clock() - self._ended_at) if self._ended_at else 0.0,
            teardown_s=teardown_s,
            rung=rung,
            shm_removed=removed,
            holders=self.holders(),
            notes=[*self.notes, *left_in_shm],
        )

    def _note_end(self) -> None:
        if self.early:
            self._note("it ended before its slot was free: it had no device to give back")
        elif not self.slot.devices:
            # Beside the proof, not part of it: on a shared host neighbours move this figure too.
            before, after = self.host_before_bytes // MIB, host_available_bytes() // MIB
            self._note(f"host memory available: {before} MiB before launch, {after} MiB after the end")
        elif not self._levels:
            self._note("memory of the devices can't be read; the end of all processes is the only proof")
        if len(self._shares) > 1:
            self._note(f"while it lived: {', '.join(self._shares)}")
        for level in self._levels:
            for note in level.notes(self._names):
                self._note(note)
            if len(self._levels) > 1:
                self._note(level.figures_text)


def total(parts: Iterable[int | None]) -> int | None:
    """None if a part is not known."""
    known = list(parts)
    told = [part for part in known if part is not None]
    return sum(told) if len(told) == len(known) else None
