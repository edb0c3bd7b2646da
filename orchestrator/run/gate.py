"""What a worker must wait for before it may start and load: room on the disks, and a slot that is free.

Such waits are charged to no method; each is told when it is over.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from orchestrator.config import Limits, Policies
from orchestrator.definition.sizes import MIB
from orchestrator.devices import DeviceReader
from orchestrator.events import Cause, CauseClass, Event, SlotQuarantined, Waited, Waiting
from orchestrator.run.room import Places, Wanted, full, shortages
from orchestrator.run.signals import StopFlag
from orchestrator.run.slots import Slot, Slots
from orchestrator.run.strangers import Vacancy, holder_texts, lost, occupied, others

LOOK_AGAIN_S = 1.0


@dataclass
class Wait:
    """One wait for a slot."""

    since: float
    vacancy: Vacancy
    reason: str = ""
    looked_at: float = float("-inf")


@dataclass
class Gate:
    slots: Slots
    reader: DeviceReader | None
    limits: Limits
    policies: Policies
    places: Places
    stop: StopFlag
    emit: Callable[[Event], None]
    clock: Callable[[], float]
    no_slot: Cause | None = None
    _wait: Wait | None = field(default=None, init=False)

    # --- room -----------------------------------------------------------------

    def room(self) -> str:
        """Waits for room as the policy says; what is still lacking, "" for nothing."""
        began = self.clock()
        wanted = Wanted(self.limits.run_dir_free_mib, self.limits.tmp_free_mib, self.limits.shm_free_mib)
        short = first = shortages(self.places, wanted)
        patience_s = self.policies.disk.wait_s if self.policies.disk.do == "wait" else 0.0
        if short and patience_s:
            self.emit(Waiting(at=time.time(), what="room", reason="; ".join(short), most_s=patience_s))
        while short and not self.stop.requested and patience_s > 0:
            patience_s -= self._doze()
            short = shortages(self.places, wanted)
        if first:
            self._tell("room", "; ".join(short or first), self.clock() - began, over=not short)
        return "; ".join(short)

    def _doze(self) -> float:
        """Until it is time to look again, or a signal comes. Seconds; those that we were stopped for do not count."""
        began = self.clock()
        select.select([self.stop.fileno()], [], [], LOOK_AGAIN_S)
        self.stop.drain()  # not every signal asks us to stop, and one that stays there would end every sleep
        return min(self.clock() - began, LOOK_AGAIN_S)

    def full(self) -> str:
        """Which places take nothing more right now, "" for none."""
        return full(self.places)

    @property
    def _allowed_bytes(self) -> int:
        return self.limits.strangers_mib * MIB

    # --- slots ----------------------------------------------------------------

    def slot(self) -> Slot | None:
        """A free one, else one that may yet become free; `no_slot` says why there is none."""
        for slot in self.slots.usable:
            if reason := lost(slot, self.reader):
                self.quarantine(slot, "device_lost", reason)
        usable = self.slots.usable
        free = (slot for slot in usable if not occupied(slot, self.reader, (), self._allowed_bytes))
        return next(free, usable[0] if usable else None)

    def excuse(self, cause: Cause, slot: Slot, ours: Collection[int]) -> Cause:
        """Memory that ran out while somebody else held the slot is not the method's fault. Only of those who
        can be seen to live: the others may be our own, ended, whose memory is still on its way back."""
        held = self._seen(slot, ours) if cause.cls == "oom" else ""
        return replace(cause, cls="busy_device", message=f"{cause.message}; {held}") if held else cause

    def _seen(self, slot: Slot, ours: Collection[int]) -> str:
        for device in slot.devices if self.reader else ():
            assert self.reader is not None
            listed = self.reader.holders(device.uuid) or []
            strangers = [one for one in listed if one.name and not one.graphics and one.pid not in ours]
            if sum(one.used_bytes or 0 for one in strangers) > self._allowed_bytes:
                return f"{device} is held by others: {', '.join(holder_texts(strangers))}"
        return ""

    def lost(self, slot: Slot) -> bool:
        return bool(lost(slot, self.reader))

    def quarantine(
        self, slot: Slot, cls: CauseClass, reason: str, *, incarnation: str = "", holders: Collection[str] = ()
    ) -> None:
        """Once: a slot that was refused to a worker may look as bad when that worker has left it."""
        if slot.name in self.slots.quarantined:
            return
        self.slots.quarantine(slot.name, reason, tuple(holders))
        self.no_slot = Cause(cls=cls, message=f"slot {slot.name}: {reason}")
        self.emit(
            SlotQuarantined(
                at=time.time(), slot=slot.name, incarnation=incarnation, reason=reason, holders=list(holders)
            )
        )

    def distrust(self, slot: Slot, reason: str, incarnation: str) -> None:
        """A worker said that a device there is lost. The driver may not, so the last slot stays in use."""
        usable = self.slots.usable
        if slot.devices and slot in usable and len(usable) > 1:
            self.quarantine(slot, "device_lost", reason, incarnation=incarnation)

    def admits(self, slot: Slot, ours: Collection[int]) -> Literal["yes", "wait", "no"]:
        """Whether a worker that has imported its engine may load into this slot. Ask again after "wait"."""
        now = self.clock()
        wait = self._wait = self._wait or Wait(now, Vacancy(slot, self.reader, self._allowed_bytes))
        if now - wait.looked_at < LOOK_AGAIN_S:
            return "wait"
        wait.looked_at = now
        if gone := lost(slot, self.reader):
            return self._refuse(slot, "device_lost", gone)
        held = wait.vacancy.reason(ours)
        if not held:
            self._end_wait(over=True)
            return "yes"
        patience_s = self.policies.busy_device.wait_s if self.policies.busy_device.do == "wait" else 0.0
        if not wait.reason:
            wait.reason = held
            self.emit(Waiting(at=time.time(), what="slot", reason=held, most_s=patience_s, slot=slot.name))
        if now - wait.since < patience_s:
            return "wait"
        return self._refuse(slot, "busy_device", held, others(slot, self.reader, ours))

    def postpone(self, by_s: float) -> None:
        """We were stopped ourselves for so long."""
        if self._wait:
            self._wait.since += by_s

    def _refuse(self, slot: Slot, cls: CauseClass, reason: str, holders: Collection[str] = ()) -> Literal["no"]:
        self._end_wait(over=False)
        self.quarantine(slot, cls, reason, holders=holders)
        return "no"

    def _end_wait(self, *, over: bool) -> None:
        wait, self._wait = self._wait, None
        if wait and wait.reason:
            self._tell("slot", wait.reason, self.clock() - wait.since, over=over)

    def leave(self) -> None:
        """The worker that waited is gone."""
        self._end_wait(over=False)

    def _tell(self, what: Literal["slot", "room"], reason: str, wait_s: float, *, over: bool) -> None:
        self.emit(Waited(at=time.time(), what=what, reason=reason, wait_s=wait_s, over=over))
