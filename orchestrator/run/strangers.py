"""Who else holds a slot's device memory, and whether its devices are still there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from orchestrator.definition.sizes import MIB
from orchestrator.devices import Device, DeviceReader, Holder
from orchestrator.run.slots import Slot

#: Of others, or of nobody that can be seen, on one device: an idle CUDA context is under it, a model is over it.
STRANGERS_BYTES = 512 * MIB
#: On top of that for processes that only draw: a desktop with its browser is not worth stopping for.
DISPLAY_BYTES = 2048 * MIB
NAMED_HOLDERS = 4
#: A slot that somebody left is free when so many readings in a row agree within this.
STEADY_READINGS = 3
STEADY_BYTES = 64 * MIB


def lost(slot: Slot, reader: DeviceReader | None) -> str:
    """ "" if every device of the slot is there; else a sentence. Asks them."""
    for device in slot.devices if reader else ():
        assert reader is not None
        if reader.used_bytes(device.uuid) is None:
            reader.holders(device.uuid)  # where memory is not told at all, a lost device shows here
    return lost_text(slot.devices, reader)


def lost_text(devices: Iterable[Device], reader: DeviceReader | None) -> str:
    """As far as the readings so far have shown."""
    gone = [device for device in devices if reader is not None and device.uuid in reader.lost]
    return "; ".join(f"{device} is lost: {reader.why_not(device.uuid)}" for device in gone if reader)


def occupied(
    slot: Slot, reader: DeviceReader | None, ours: Collection[int] = (), allowed_bytes: int = STRANGERS_BYTES
) -> str:
    """ "" if the slot is free; else a sentence that names who holds it. `ours`: pids that are no strangers.

    What can't be read never counts as held.
    """
    if reader is None:
        return ""
    return "; ".join(filter(None, (_held_by_others(d, reader, ours, allowed_bytes) for d in slot.devices)))


def others(slot: Slot, reader: DeviceReader | None, ours: Collection[int] = ()) -> list[str]:
    """Who holds memory on the slot beside us, however little, as far as can be seen."""
    held = [one for device in slot.devices if reader for one in reader.holders(device.uuid) or []]
    return holder_texts(one for one in held if one.pid not in ours)


class Vacancy:
    """Whether a slot is free, asked again and again while somebody may be leaving it.

    Once it was held it is free only when its memory has stopped changing: an engine that
    measures the device while others let go of it fails.
    """

    def __init__(self, slot: Slot, reader: DeviceReader | None, allowed_bytes: int = STRANGERS_BYTES) -> None:
        self._slot, self._reader, self._allowed_bytes = slot, reader, allowed_bytes
        self._was_held = False
        self._used: list[int] = []

    def reason(self, ours: Collection[int] = ()) -> str:
        """ "" if it is free, else a sentence. One reading."""
        if held := occupied(self._slot, self._reader, ours, self._allowed_bytes):
            self._was_held = True
            self._used.clear()
            return held
        return self._moving() if self._was_held else ""

    def _moving(self) -> str:
        assert self._reader is not None
        used = [self._reader.used_bytes(device.uuid) for device in self._slot.devices]
        self._used.append(sum(one or 0 for one in used))
        last = self._used[-STEADY_READINGS:]
        steady = len(last) == STEADY_READINGS and max(last) - min(last) <= STEADY_BYTES
        return "" if steady else f"memory in use on {self._slot.name} still changes"


def _held_by_others(device: Device, reader: DeviceReader, ours: Collection[int], allowed_bytes: int) -> str:
    listed = reader.holders(device.uuid)
    strangers = [one for one in listed or [] if one.pid not in ours]
    shown = sum(one.used_bytes or 0 for one in strangers)
    total = _others_bytes(reader.used_bytes(device.uuid), [one for one in listed or [] if one.pid in ours], shown)
    drawn = sum(one.used_bytes or 0 for one in strangers if one.graphics)
    if total - min(drawn, DISPLAY_BYTES) <= allowed_bytes:
        return ""
    names = holder_texts(strangers)
    if total - shown > allowed_bytes and _sum(strangers) is not None:
        names.append(f"{size_text(total - shown)} {_unseen(listed)}")
    return f"{device}: {size_text(total)} in use by others: {', '.join(names)}"


def _others_bytes(used_bytes: int | None, ours: Collection[Holder], shown_bytes: int) -> int:
    """At least what is shown of them; all that is in use and not ours, where that can be told."""
    own = _sum(ours)
    return shown_bytes if used_bytes is None or own is None else max(shown_bytes, used_bytes - own)


def _sum(holders: Iterable[Holder]) -> int | None:
    """None if one of them does not tell."""
    shares = [one.used_bytes for one in holders]
    told = [share for share in shares if share is not None]
    return sum(told) if len(told) == len(shares) else None


def _unseen(listed: list[Holder] | None) -> str:
    return "of processes that NVML does not tell" if listed is None else "that no visible process holds"


# --- naming ---------------------------------------------------------------------


def holder_texts(holders: Iterable[Holder], ended: Mapping[int, str] | None = None) -> list[str]:
    """ "pid 123 python 1.0 GiB", the largest first. `ended`: names by pid of processes of ours that are gone."""
    ordered = sorted(holders, key=lambda one: (-(one.used_bytes or 0), one.pid))
    return list(_texts(ordered, ended or {}))


def _texts(holders: list[Holder], ended: Mapping[int, str]) -> Iterator[str]:
    for one in holders[:NAMED_HOLDERS]:
        size = "memory of unknown size" if one.used_bytes is None else size_text(one.used_bytes)
        if one.pid in ended:
            yield f"pid {one.pid} {ended[one.pid]} (of this worker, ended) {size}"
        elif one.name:
            yield f"pid {one.pid} {one.name} {size}"
        else:
            yield f"pid {one.pid} (ended, or of another PID namespace) {size}"
    if (more := len(holders) - NAMED_HOLDERS) > 0:
        yield f"{more} more"


def size_text(size_bytes: int) -> str:
    """Of device memory, where less than 1 MiB says nothing."""
    mib = size_bytes / MIB
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
