"""CPU lists as the kernel writes them, "0-3,8", and how the CPUs of a machine are shared out among its slots. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

#: The kernel is built for fewer.
MOST_CPUS: Final = 8192
_PART: Final = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")
_DASHES: Final = str.maketrans("‐‑‒–—−", "------")
Part = tuple[int, ...]


class BadCpuList(ValueError):
    """Why a text is no list of CPUs, and what to write instead."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.suggestion = suggestion


def parse(text: str) -> Part:
    """ "0-2,8" → (0, 1, 2, 8). Raises BadCpuList, also for a CPU that is named twice."""
    if not text.strip():
        raise BadCpuList("names no CPU", "for example 0-3")
    found: list[int] = []
    for part in text.split(","):
        cpus = _range(part, text)
        if again := set(cpus).intersection(found):
            raise BadCpuList(f"names CPU {listed(again)} twice", f"write {listed({*found, *cpus})}")
        found += cpus
    return tuple(sorted(found))


def _range(part: str, text: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        plain = re.sub(r"\s+|,+\s*$", "", text.translate(_DASHES))
        hint = f"write {plain}" if plain != text and is_list(plain) else "numbers from 0 and ranges, for example 0-3,8"
        raise BadCpuList(f'"{part.strip()[:20]}" is neither a CPU nor a range of CPUs', hint)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise BadCpuList(f"{first}-{last} counts down", f"write {last}-{first}")
    if last >= MOST_CPUS:
        raise BadCpuList(f"CPU {last} is more than any machine has", f"they are numbered from 0 to {MOST_CPUS - 1}")
    return range(first, last + 1)


def is_list(text: str) -> bool:
    try:
        return bool(parse(text))
    except BadCpuList:
        return False


def listed(cpus: Iterable[int]) -> str:
    """(0, 1, 2, 8) → "0-2,8"; "" for none."""
    runs = groupby(enumerate(sorted(set(cpus))), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def divide(
    cpu_ids: Collection[int],
    nodes: Mapping[int, Collection[int]],
    near: Sequence[Collection[int] | None],
    parts: int,
    cores: Mapping[int, int] = {},
) -> tuple[Part, ...]:
    """Equal shares of `cpu_ids`, one for each slot; those that no share gets are `unused`.

    Each share lies in one memory node, a node with CPUs that are near the slot's device, and in a row there. That
    comes before size: two slots of one node leave the other node alone. Only where a node has fewer CPUs than
    slots all are cut alike wherever they lie.
    nodes  memory node → its CPUs; empty where not known
    near   for each slot the CPUs nearest to its device, None where it has none or that is not told
    cores  CPU → the first CPU of its core: threads of a core stay together, as two workers on them slow each other

    Raises ValueError if there are fewer CPUs than parts.
    """
    if not 1 <= parts <= len(set(cpu_ids)):
        raise ValueError(f"{len(set(cpu_ids))} CPUs can't be shared out among {parts}")
    units = _units(set(cpu_ids), cores, parts)
    wanted = [*near, *[None] * parts][:parts]
    pools = _pools(units, nodes or dict(enumerate(filter(None, wanted))))
    if not any(wanted) and parts < len(pools):
        pools = _merged(pools, parts)
    homes = _homes(pools, wanted)
    size = min(len(pool) // homes.count(n) for n, pool in enumerate(pools) if n in homes)
    if parts == 1 or not size:
        pools, homes, size = [units], [0] * parts, len(units) // parts
    return tuple(_share(pools[home], homes[:n].count(home), size) for n, home in enumerate(homes))


def unused(cpu_ids: Collection[int], shares: Iterable[Part]) -> Part:
    """The CPUs that no share has."""
    return tuple(sorted(set(cpu_ids).difference(*shares)))


def _units(cpu_ids: set[int], cores: Mapping[int, int], parts: int) -> list[Part]:
    """Whole cores; single CPUs where cores are too few, or not of one size, as shares would not be equal."""
    ordered = sorted(cpu_ids, key=lambda cpu: (cores.get(cpu, cpu), cpu))
    whole = [tuple(group) for _, group in groupby(ordered, lambda cpu: cores.get(cpu, cpu))]
    alike = len({len(core) for core in whole}) == 1
    return whole if alike and len(whole) >= parts else [(cpu,) for cpu in ordered]


def _pools(units: Sequence[Part], nodes: Mapping[int, Collection[int]]) -> list[list[Part]]:
    """The units by node, without those that have none; what is in no node is a pool of its own."""
    left, pools = list(units), []
    for _, cpus in sorted(nodes.items()):
        pools.append([unit for unit in left if unit[0] in cpus])
        left = [unit for unit in left if unit[0] not in cpus]
    return [pool for pool in (*pools, left) if pool]


def _merged(pools: Sequence[list[Part]], parts: int) -> list[list[Part]]:
    """As many as parts, each of as many neighbours; those that are over stay as they are."""
    each = len(pools) // parts
    groups = [pools[n * each : (n + 1) * each] for n in range(parts)]
    return [[unit for pool in group for unit in pool] for group in groups]


def _homes(pools: Sequence[Sequence[Part]], near: Sequence[Collection[int] | None]) -> list[int]:
    """Which pool each slot gets its share of: those with the least choice first, each where most is left for it."""
    choices = [_choice(pools, cpus) for cpus in near]
    homes: dict[int, int] = {}
    for slot in sorted(range(len(near)), key=lambda slot: len(choices[slot])):
        taken = list(homes.values())
        homes[slot] = max(choices[slot], key=lambda pool: len(pools[pool]) / (taken.count(pool) + 1))
    return [homes[slot] for slot in range(len(near))]


def _choice(pools: Sequence[Sequence[Part]], cpus: Collection[int] | None) -> list[int]:
    near = [n for n, pool in enumerate(pools) if any(unit[0] in cpus for unit in pool)] if cpus else []
    return near or list(range(len(pools)))


def _share(pool: Sequence[Part], place: int, size: int) -> Part:
    return tuple(_flat(pool[place * size : (place + 1) * size]))


def _flat(units: Iterable[Part]) -> Iterator[int]:
    return iter(sorted(cpu for unit in units for cpu in unit))
