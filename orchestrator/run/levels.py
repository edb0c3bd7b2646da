"""One device's memory from before a launch until after the end: the level it must come back to, and who is above it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.definition.sizes import MIB
from orchestrator.devices import Device, DeviceReader, Holder
from orchestrator.run.strangers import holder_texts, lost_text, size_text

#: Drivers keep small per-process structures for a moment; less than any engine needs to fail.
DEVICE_TOLERANCE_BYTES = 64 * MIB
#: Memory counts as back when this many samples in a row agree, and as not told when this many fail.
STABLE_SAMPLES = 3

Answer = Literal["back", "wait", "lost"]
#: Processes of the worker that were seen: pid → name.
Names = Mapping[int, str]


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


class Level:
    """Takes the level when it is made. What the worker holds by then is no part of it.

    What processes of others take later, as far as they can be seen, is not held against the worker.
    """

    def __init__(self, device: Device, reader: DeviceReader, names: Names) -> None:
        self.device = device
        self._reader = reader
        used = reader.used_bytes(device.uuid)
        listed = reader.holders(device.uuid)
        self.early_bytes = sum(one.used_bytes or 0 for one in listed or [] if one.pid in names)
        self.baseline_bytes = None if used is None else max(0, used - self.early_bytes)
        self.after_bytes: int | None = None
        self._listed = listed is not None
        self._before = {one.pid: one.used_bytes for one in listed or [] if one.pid not in names}
        self._above: list[Holder] = []
        self._untold = 0
        self.last: Answer = "back"
        limit = (self.baseline_bytes or 0) + DEVICE_TOLERANCE_BYTES
        self._settling = Settling(limit, DEVICE_TOLERANCE_BYTES)

    @property
    def used_bytes(self) -> int | None:
        return self._reader.used_bytes(self.device.uuid)

    def poll(self, names: Names) -> Answer:
        """One reading after the end of the last process of the worker."""
        self.last = self._poll(names)
        return self.last

    def _poll(self, names: Names) -> Answer:
        used = self.used_bytes
        if self.device.uuid in self._reader.lost:
            return "lost"
        if self.baseline_bytes is None:
            return self._poll_list(names)
        if used is None:
            self.after_bytes = None
            self._untold += 1
            return "wait" if self._untold < STABLE_SAMPLES else self._poll_list(names)
        self._untold, self.after_bytes = 0, used
        self._above = self._grown() if used > self._settling.limit_bytes else []
        self._settling = self._settling.add(used - sum(self._more(one) for one in self._strangers(names)))
        return "back" if self._settling.settled else "wait"

    def _poll_list(self, names: Names) -> Answer:
        """Where memory is not told, the list of processes may be."""
        self._above = [one for one in self._grown() if one.pid in names]
        return "wait" if self._above else "back"

    def _grown(self) -> list[Holder]:
        """Processes that are new or hold more than before."""
        return [one for one in self.holders() or [] if one.pid not in self._before or self._more(one) > 0]

    def _more(self, one: Holder) -> int:
        """What it took since the level was taken; 0 where that can't be said."""
        before = self._before.get(one.pid, 0)
        return 0 if before is None or one.used_bytes is None else max(0, one.used_bytes - before)

    def _strangers(self, names: Names) -> list[Holder]:
        """Those above the level that live and are not the worker's: all of its own have ended by now.

        Without a list of before, what they hold may be in the level already.
        """
        return [one for one in self._above if self._listed and one.name and one.pid not in names]

    def worker_texts(self, names: Names) -> list[str]:
        """What each process of the worker holds here now."""
        return holder_texts(one for one in self.holders() or [] if one.pid in names)

    def holders(self) -> list[Holder] | None:
        return self._reader.holders(self.device.uuid)

    def stuck_text(self, names: Names) -> str:
        """Why the last answer was not "back"."""
        if gone := lost_text([self.device], self._reader):
            return gone
        held = holder_texts(self._above, names)
        by = f"held by {', '.join(held)}" if held else self._nobody()
        if self.baseline_bytes is None or self.after_bytes is None:
            return f"{self.device} still has memory in use; {by}"
        more = self.after_bytes - self.baseline_bytes
        if more <= DEVICE_TOLERANCE_BYTES:
            return f"{self.device}: memory in use still changes"
        return f"{self.device} still has {size_text(more)} more in use than before launch; {by}"

    def _nobody(self) -> str:
        if self.holders() is None:
            return f"its processes are not told: {self._reader.why_not(self.device.uuid)}"
        return "no process that can be seen here holds it"

    @property
    def figures_text(self) -> str:
        before, after = (
            "unknown" if one is None else size_text(one) for one in (self.baseline_bytes, self.after_bytes)
        )
        return f"{self.device}: {before} in use before launch, {after} after the end"

    def notes(self, names: Names) -> Iterator[str]:
        """What the figures leave out, after the last poll."""
        uuid, reader = self.device.uuid, self._reader
        if self.baseline_bytes is None or self._untold:
            yield f"{self.device} does not tell its memory in use: {reader.why_not(uuid)}"
            yield f"that no process is left{_and_none_listed(reader, uuid)} is the only proof that memory is back"
        if strangers := self._strangers(names):
            yield f"{self.device}: others took memory meanwhile: {', '.join(holder_texts(strangers))}"


def _and_none_listed(reader: DeviceReader, uuid: str) -> str:
    return "" if reader.holders(uuid) is None else " and none on the device's list"
