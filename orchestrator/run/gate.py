"""What a worker must wait for before it may load: a slot that is free.

Such a wait is charged to no method, and told when it is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from orchestrator.config import Limits, Policies
from orchestrator.definition.sizes import MIB
from orchestrator.devices import DeviceReader
from orchestrator.events import Event, SlotQuarantined, Waited, Waiting
from orchestrator.outcomes import Cause, CauseClass
from orchestrator.run.slots import Slot, Slots, chosen
from orchestrator.run.strangers import Vacancy, holder_texts, lost, occupied, others
from orchestrator.view.wording import counted

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
    emit: Callable[[Event], None]
    clock: Callable[[], float]
    _last: Cause | None = field(default=None, init=False)
    _waits: dict[str, Wait] = field(default_factory=dict, init=False)

    @property
    def _allowed_bytes(self) -> int:
        return self.limits.strangers_mib * MIB

    def slot(self, width: int, barred: Collection[str] = ()) -> Slot | None:
        """Of units that none of our workers has, rather those that no stranger holds: one that may yet become free
        is waited for. None if there are too few just now. `barred`: units that are spoken for."""
        free = self._present(self.slots.free(barred))
        vacant = [unit for unit in free if not occupied(unit, self.reader, (), self._allowed_bytes)]
        return chosen(vacant, width, self.slots.all) or chosen(free, width, self.slots.all)

    def _present(self, units: list[Slot]) -> list[Slot]:
        for unit in units:
            if reason := lost(unit, self.reader):
                self.quarantine(unit, "device_lost", reason)
        return [unit for unit in units if not self.slots.is_out(unit)]

    def none_left(self, width: int) -> Cause | None:
        """Why there will be no slot so wide any more."""
        left = len(self.slots.usable)
        if left >= width:
            return None
        assert self._last is not None
        if not left:
            return self._last
        return replace(
            self._last, message=f"{counted(left, 'device')} left of the {width} needed: {self._last.message}"
        )

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
        if self.slots.is_out(slot):
            return
        self.slots.quarantine(slot, reason, tuple(holders))
        self._last = Cause(cls=cls, message=f"slot {slot.name}: {reason}")
        self.emit(
            SlotQuarantined(
                at=time.time(), slot=slot.name, incarnation=incarnation, reason=reason, holders=list(holders)
            )
        )

    def distrust(self, slot: Slot, reason: str, incarnation: str) -> None:
        """A worker said that a device there is lost. The driver may not, so the last slot stays in use."""
        if slot.devices and len(self.slots.usable) > len(slot.units):
            self.quarantine(slot, "device_lost", reason, incarnation=incarnation)

    def admits(self, slot: Slot, ours: Collection[int]) -> Literal["yes", "wait", "no"]:
        """Whether a worker that has imported its engine may load into this slot. Ask again after "wait"."""
        now = self.clock()
        wait = self._waits.setdefault(slot.name, Wait(now, Vacancy(slot, self.reader, self._allowed_bytes)))
        if now - wait.looked_at < LOOK_AGAIN_S:
            return "wait"
        wait.looked_at = now
        if gone := lost(slot, self.reader):
            return self._refuse(slot, "device_lost", gone)
        held = wait.vacancy.reason(ours)
        if not held:
            self._end_wait(slot, over=True)
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
        for wait in self._waits.values():
            wait.since += by_s

    def _refuse(self, slot: Slot, cls: CauseClass, reason: str, holders: Collection[str] = ()) -> Literal["no"]:
        self._end_wait(slot, over=False)
        self.quarantine(slot, cls, reason, holders=holders)
        return "no"

    def leave(self, slot: Slot) -> None:
        """The worker that waited is gone."""
        self._end_wait(slot, over=False)

    def _end_wait(self, slot: Slot, *, over: bool) -> None:
        wait = self._waits.pop(slot.name, None)
        if wait and wait.reason:
            wait_s = self.clock() - wait.since
            self.emit(Waited(at=time.time(), what="slot", reason=wait.reason, wait_s=wait_s, over=over, slot=slot.name))
