"""What Linux's /proc says about processes. Read only: nothing here signals or waits.

Every reader answers None (or leaves the process out) when the process has
vanished or may not be read; both happen all the time. That we are ourselves out
of descriptors or memory says nothing about a process: that raises OSError.

A process of ours is known by two things, either of which will do: the tag in
its environment at exec, and its mark. The mark is a number in the soft limit on
file locks, which Linux has not enforced since 2.4.25 but still keeps, shows and
hands down. A daemon that clears its environment, forks twice and leads a session
of its own still has it; only what descends from one of our wardens can have it.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

#: Zombie, and the two names of "being taken off the table": such a process runs nothing and holds no memory.
DEAD_STATES = frozenset("ZXx")
OUR_OWN_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
MARK_LIMIT = b"Max file locks"
RUN_SHIFT, INCARNATION_MASK = 30, (1 << 30) - 1  # 62 bits in all: the limit is a signed 64-bit number to Python


@dataclass(frozen=True)
class Stat:
    """One line of /proc/<pid>/stat. `start_ticks` counts from boot, so it never moves with the wall clock.
    `cpu_ticks`: its own and those of the children that it has waited for."""

    pid: int
    name: str
    state: str
    ppid: int
    session: int
    threads: int
    start_ticks: int
    cpu_ticks: int

    @property
    def dead(self) -> bool:
        """A main thread that ended before the others shows as a zombie too, yet its process lives."""
        return self.state in DEAD_STATES and self.threads < 2


@dataclass(frozen=True)
class ProcessRef:
    """One process for good: a pid alone may be given to another."""

    pid: int
    start_ticks: int
    name: str = field(compare=False)  # a process may rename itself


def parse_stat(line: bytes) -> Stat:
    """The name may hold spaces, newlines and brackets, so the fields are counted from the last ")"."""
    opening, closing = line.index(b"("), line.rindex(b")")
    rest = line[closing + 1 :].split()
    name = line[opening + 1 : closing].decode("utf-8", "replace")
    state, ppid, session, threads, start = rest[0].decode(), *(int(rest[place]) for place in (1, 3, 17, 19))
    return Stat(int(line[:opening]), name, state, ppid, session, threads, start, sum(map(int, rest[11:15])))


def read_bytes(pid: int, name: str) -> bytes | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError as exc:
        if exc.errno in OUR_OWN_SHORTAGES:
            raise
        return None


def is_ours() -> bool:
    """Whether /proc numbers processes as we do. After `unshare --pid` without a mount of its own it does not,
    and every pid read from it would name somebody else's process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def boot() -> str:
    """Names the time since this machine started; "" where only processes are mounted (subset=pid)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_space() -> str:
    """Names the PID namespace in which our pids are valid."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def stat(pid: int) -> Stat | None:
    line = read_bytes(pid, "stat")
    return parse_stat(line) if line else None


def table() -> dict[int, Stat]:
    """Every process that can be seen, dead ones not yet reaped included; none if /proc is another namespace's."""
    if not is_ours():
        return {}
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {one.pid: one for one in found if one is not None}


def children(pid: int) -> list[int] | None:
    """Without a look at every process of the machine. None if it has gone, or the kernel does not tell."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError as exc:
        if exc.errno in OUR_OWN_SHORTAGES:
            raise
        return None
    found = [read_bytes(pid, f"task/{thread}/children") for thread in threads]
    if all(one is None for one in found):
        return None
    return [int(child) for one in found for child in (one or b"").split()]


def ref(one: Stat) -> ProcessRef:
    return ProcessRef(one.pid, one.start_ticks, one.name)


def descendants(roots: Iterable[int], processes: dict[int, Stat]) -> list[Stat]:
    """All below `roots`, nearest first, the roots themselves left out."""
    children: dict[int, list[Stat]] = {}
    for one in processes.values():
        children.setdefault(one.ppid, []).append(one)
    seen = set(roots)
    found: list[Stat] = []
    layer = list(seen)
    while layer:
        below = [child for pid in layer for child in children.get(pid, ()) if child.pid not in seen]
        seen.update(child.pid for child in below)
        found += below
        layer = [child.pid for child in below]
    return found


def ancestors(pid: int, processes: dict[int, Stat]) -> set[int]:
    found: set[int] = set()
    while (one := processes.get(pid)) and one.ppid and one.ppid not in found:
        pid = one.ppid
        found.add(pid)
    return found


def environ_value(pid: int, name: str) -> str | None:
    """What the process was given at exec; later changes of its own do not show."""
    prefix = os.fsencode(name) + b"="
    for entry in (read_bytes(pid, "environ") or b"").split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def mark(run_tag: str, incarnation: str) -> int:
    return zlib.crc32(run_tag.encode()) << RUN_SHIFT | zlib.crc32(incarnation.encode()) & INCARNATION_MASK


def mark_of(pid: int) -> int | None:
    """Zombies still have theirs. None where the limit was never set."""
    for line in (read_bytes(pid, "limits") or b"").splitlines():
        if line.startswith(MARK_LIMIT):
            soft = line[len(MARK_LIMIT) :].split()[0]
            return int(soft) if soft.isdigit() else None
    return None


def belongs(pid: int, run_tag: str, incarnation: str | None = None) -> bool:
    """Whether it is of the run (of one incarnation of it), by its tag or by its mark."""
    if environ_value(pid, "AIRLOCK_RUN") == run_tag:
        return incarnation in (None, environ_value(pid, "AIRLOCK_INCARNATION"))
    found = mark_of(pid)
    if found is None:
        return False
    if incarnation is None:
        return found >> RUN_SHIFT == zlib.crc32(run_tag.encode())
    return found == mark(run_tag, incarnation)


def cmdline(pid: int) -> list[str]:
    return [os.fsdecode(part) for part in (read_bytes(pid, "cmdline") or b"").split(b"\0")[:-1]]
