"""Which devices and CPUs of the machine a sweep uses, and how many workers at once.

    devices:
      use: [0, GPU-8f3a]       # GPU indices or UUIDs, which may be cut short
      slots: 2                 # workers at once, at most
    devices:
      cpus: ["0-3", "4-7"]     # on a CPU machine: a worker at once on each set

None of it is asked of a method, so a resumed run may change it. Whether the machine has what is named here is
`devicefits`' to say. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, get_type_hints

from msgspec import Meta, Struct

from orchestrator.definition.fields import INVALID, convert, is_mapping, parts
from orchestrator.definition.hints import list_hint
from orchestrator.definition.spelling import shown
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.run.cpusets import MOST_CPUS, BadCpuList, is_list, listed, parse
from orchestrator.view.wording import counted

Index = Annotated[int, Meta(ge=0, le=9999)]
Standby = Literal["auto", "on", "off"]
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]*")
_LEAVE_OUT: Final = "leave use out for all that are visible"
#: More are a slip of the pen.
MOST: Final = 1024
_MOST_LISTED: Final = 16
_ALL: Final = ("all", "auto", "any", "default", "*")


class DeviceUse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the machine's workers may use; nothing given: all of it, one worker at a time for each set of devices."""

    use: Annotated[
        Annotated[tuple[Index | str, ...], Meta(min_length=1)] | None,
        Meta(
            description="the GPUs to use, in this order: NVML's indices, or UUIDs (GPU-…, MIG-…) that may be cut "
            "short; null: all that are visible",
        ),
    ] = None
    cpus: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)] | None,
        Meta(description="on a machine without GPUs: a worker at once on each of these sets, '0-3,8'"),
    ] = None
    slots: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_CPUS)] | None,
        Meta(
            description="workers at once, at most; null: on GPUs as many as these allow, without GPUs one, or one for "
            "each set of cpus"
        ),
    ] = None
    exclusive: Annotated[bool, Meta(description="no other worker runs while one does, whatever the devices allow")] = (
        False
    )
    share_cpus: Annotated[bool, Meta(description="workers at once may have CPUs in common")] = False
    standby: Annotated[
        Standby,
        Meta(description="whether the next worker may start while one is still at work in its slot; auto: on GPUs"),
    ] = "auto"

    @property
    def cpu_sets(self) -> tuple[tuple[int, ...], ...]:
        """`cpus` as numbers; empty where none are given."""
        return tuple(map(parse, self.cpus or ()))


_TYPES: Final[dict[str, Any]] = get_type_hints(DeviceUse, include_extras=True)


def read_devices(node: Node, problems: Problems) -> DeviceUse:
    """What is right of it; what is wrong stands in `problems`."""
    if not is_mapping(node, "devices", _TYPES, problems):
        return DeviceUse()
    rest = {name: part for name, part in node.value.items() if name not in _LISTS}
    found = parts(Node(rest, node.where), "devices", _TYPES, problems)
    for name, read in _LISTS.items():
        given = node.value.get(name)
        if given is not None and given.value is not None:
            found[name] = read(given, problems)
    made = DeviceUse(**found)
    _check_overlap(made, node.value.get("cpus"), problems)
    _check_contradictions(made, node, problems)
    return made


def _check_contradictions(made: DeviceUse, node: Node, problems: Problems) -> None:
    def add(name: str, message: str, suggestion: str) -> None:
        problems.add(node.value[name].where, f"devices.{name}", message, suggestion)

    sets = len(made.cpus or ())
    if made.slots and sets and made.slots > sets:
        more = f"{made.slots} workers at once can't each have one of {counted(sets, 'CPU set')}"
        add("slots", more, "leave slots out, or give cpus as many sets")
    if made.exclusive and made.slots and made.slots > 1:
        add("exclusive", f"lets one worker run at a time, and slots is {made.slots}", "leave one of them out")
    if made.exclusive and made.standby == "on":
        add("standby", "starts a worker beside another, and exclusive is true", "leave one of them out")
    if made.use and sets:
        add("cpus", "is for machines without GPUs, and use names GPUs", "leave one of them out")


# --- lists: of one with a faulty entry nothing is taken, as what is said of the others later would name wrong places


def _items(node: Node, name: str, hint: str, problems: Problems) -> list[Node]:
    """The entries of a list; none after saying that it is no list, empty, or too long."""
    if isinstance(node.value, list) and 0 < len(node.value) <= MOST:
        return node.value
    what = "is an empty list" if node.value == [] else f"must be a list, not {shown(node.plain())}"
    if isinstance(node.value, list) and node.value:
        what, hint = f"has {len(node.value)} entries", f"at most {MOST}"
    problems.add(node.where, f"devices.{name}", what, hint)
    return []


def _read_use(node: Node, problems: Problems) -> tuple[int | str, ...] | None:
    found: dict[int | str, str] = {}
    items = _items(node, "use", _use_hint(node.plain()), problems)
    for n, item in enumerate(items):
        key = f"devices.use[{n}]"
        entry = convert(item, key, Index | str, problems)
        entry = INVALID if entry is INVALID else _device(entry, item, key, problems)
        if entry in found and entry is not INVALID:
            problems.add(item.where, key, f"names {shown(entry)} again, as {found[entry]} does", "leave it out")
        found.setdefault(entry, key)
    return tuple(found) if items and INVALID not in found and len(found) == len(items) else None


def _use_hint(value: Any) -> str:
    if value == [] or (isinstance(value, str) and value.lower() in _ALL):
        return _LEAVE_OUT
    if isinstance(value, str) and (several := _several(value)):
        return f"write [{several}]"
    return list_hint(Index | str, value) if isinstance(value, str | int) else "for example [0, 1]"


def _device(entry: int | str, item: Node, key: str, problems: Problems) -> Any:
    """An index as a number, however it was written; INVALID for what can be no device."""
    if isinstance(entry, int):
        return entry
    text = entry.strip()
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    if _UUID.fullmatch(text):
        return text
    problems.add(item.where, key, f"{shown(entry)} is neither an index nor a UUID of a GPU", _device_hint(text))
    return INVALID


def _device_hint(text: str) -> str:
    if match := re.fullmatch(r"(?:cuda|gpu)[:\s-]?(\d{1,4})", text.lower()):
        return f"write {match[1]}"
    if match := re.fullmatch(r"(gpu|mig)-(.+)", text.lower()):
        return f"write {match[1].upper()}-{match[2]}"
    if text.lower() in _ALL:
        return _LEAVE_OUT
    if several := _several(text):
        return f"write {several}"
    return "for example 0, or GPU-8f3a… or MIG-… as `nvidia-smi -L` lists them"


def _several(text: str) -> str:
    """ "0-2" → "0, 1, 2"; "" for what is no range of a few indices."""
    match = re.fullmatch(r"(\d{1,3})\s*[-–:]\s*(\d{1,3})", text)
    return ", ".join(map(str, range(int(match[1]), int(match[2]) + 1)[:_MOST_LISTED])) if match else ""


def _read_cpus(node: Node, problems: Problems) -> tuple[str, ...] | None:
    text = str(node.value)
    text = text if isinstance(node.value, str | int) and is_list(text) else ""
    hint = (
        f'write ["{text}"] for one worker on CPU {text}'
        if text
        else 'for example ["0-3", "4-7"], a set for each worker'
    )
    found = [_set(item, f"devices.cpus[{n}]", problems) for n, item in enumerate(_items(node, "cpus", hint, problems))]
    return tuple(map(listed, found)) if found and all(found) else None


def _set(item: Node, key: str, problems: Problems) -> tuple[int, ...]:
    """Empty after saying what is wrong."""
    if not isinstance(item.value, str):
        whole = isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0
        hint = f'write "{item.plain()}" for a worker on this CPU alone, "0,1" for one on several'
        message = f"must be text, not {shown(item.plain())}"
        problems.add(item.where, key, message, hint if whole else 'write it as "0-3,8"')
        return ()
    try:
        return parse(item.value)
    except BadCpuList as exc:
        problems.add(item.where, key, str(exc), exc.suggestion)
        return ()


def _check_overlap(made: DeviceUse, node: Node | None, problems: Problems) -> None:
    sets = made.cpu_sets
    if made.share_cpus or node is None or len(sets) < 2:
        return
    first: dict[int, int] = {}  # CPU → the first set that has it
    for n, item in enumerate(node.value):
        earlier = min((first[cpu] for cpu in sets[n] if cpu in first), default=None)
        for cpu in sets[n]:
            first.setdefault(cpu, n)
        if earlier is not None:
            both = listed(set(sets[earlier]) & set(sets[n]))
            message = f"has CPU {both}, and so has devices.cpus[{earlier}]: their workers would slow each other"
            problems.add(item.where, f"devices.cpus[{n}]", message, "give each its own, or write share_cpus: true")


_LISTS: Final = {"use": _read_use, "cpus": _read_cpus}


def is_listed(steps: Sequence[str]) -> bool:
    """Whether this path of a sweep file holds a list."""
    return len(steps) == 2 and steps[0] == "devices" and steps[1] in _LISTS
