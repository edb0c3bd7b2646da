"""Shared memory that our workers leave in /dev/shm: whose it is, and what may be removed.

A crash leaves segments of many gigabytes that only a reboot would clear. A
wrong guess breaks another program. So a segment counts as ours only if it
appeared while the worker ran, belongs to our user, and a process of the worker
was seen to have it, or its name carries the pid of one. It is removed only once
nobody has it any more. What appeared meanwhile and is held by nobody, but can't
be proven ours, is left and named.

`ShmWatch` tells at once that something new is there, so that a segment made in
the middle of a batch is looked at before its maker can die.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.proc import ProcessRef
from orchestrator.reaper import SHM, alive, shm_files, shm_in_use, shm_of, shm_paths
from orchestrator.view.wording import counted

IN_CREATE, IN_MOVED_TO, IN_Q_OVERFLOW = 0x100, 0x80, 0x4000
EVENT = struct.Struct("iIII")
READ_BYTES = 64 * 1024
NAMED_MAX = 5
#: Stands for names that were lost.
OVERFLOW = "?"
LOOK_SHARE = 0.05

#: Names that carry the pid of their maker: torch's, the OpenMP runtime's, CUDA's (hexadecimal).
_WITH_PID = (
    (re.compile(r"torch_(\d+)_"), 10),
    (re.compile(r"__KMP_REGISTERED_LIB_(\d+)_"), 10),
    (re.compile(r"cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\."), 16),
)


@dataclass(frozen=True)
class Segment:
    """A file in /dev/shm for good: a name may be given to another, an inode too, both together hardly."""

    path: str
    inode: int

    @property
    def note(self) -> str:
        return f"{self.inode} {self.path}"

    @classmethod
    def at(cls, path: str) -> Segment | None:
        try:
            return cls(path, os.lstat(path).st_ino)
        except OSError:
            return None

    @classmethod
    def of_note(cls, line: str) -> Segment | None:
        inode, _, path = line.partition(" ")
        return cls(path, int(inode)) if inode.isdigit() and path.startswith(SHM) else None


def listing() -> frozenset[Segment]:
    """Every file in /dev/shm that belongs to our user; empty where there is none."""
    found = set()
    for path in shm_files():
        with suppress(OSError):  # gone again
            one = path.lstat()
            if one.st_uid == os.geteuid() and path.is_file() and not path.is_symlink():
                found.add(Segment(str(path), one.st_ino))
    return frozenset(found)


def remove_unused(segments: Iterable[Segment]) -> list[str]:
    """Unlinks those that nobody has any more and that are still what they were; gives their paths."""
    left = {one for one in segments if _is_still(one)}
    return _remove(left, _held(left))


def _held(segments: Collection[Segment]) -> frozenset[str]:
    """Paths of those that any process has. Reads the maps of all processes on the machine, so it is asked once."""
    return shm_in_use({one.path for one in segments}) if segments else frozenset()


def _remove(segments: Iterable[Segment], held: Collection[str]) -> list[str]:
    removed = []
    for one in sorted(segments, key=lambda one: one.path):
        with suppress(OSError):
            if one.path not in held and _is_still(one):
                os.unlink(one.path)
                removed.append(one.path)
    return removed


def _is_still(one: Segment) -> bool:
    try:
        now = os.lstat(one.path)
    except OSError:
        return False
    return now.st_ino == one.inode and now.st_uid == os.geteuid()


@dataclass
class Segments:
    """Of one worker, from just before its launch until after its end."""

    before: frozenset[Segment] = field(default_factory=listing)
    ours: set[Segment] = field(default_factory=set)
    _pids: set[int] = field(default_factory=set)
    _pending: bool = False
    _next_look_at: float = 0.0

    def news(self, names: Iterable[str], tree: Callable[[], Sequence[ProcessRef]]) -> list[Segment]:
        """What is new of ours, after ShmWatch told of `names`. To be called with none at every turn too:
        where strangers make many, looks are put off, so that they cost no more than a LOOK_SHARE of the time."""
        self._pending = self._pending or any(map(self._may_be_ours, names))
        now = time.monotonic()
        if not self._pending or now < self._next_look_at:
            return []
        fresh = self.look(tree())
        self._pending = False
        self._next_look_at = now + (time.monotonic() - now) / LOOK_SHARE
        return fresh

    def _may_be_ours(self, name: str) -> bool:
        if name == OVERFLOW:
            return True
        one = Segment.at(SHM + name)  # None for the temporary name of a semaphore, say
        return one is not None and one not in self.before | self.ours and _is_still(one)

    def look(self, tree: Sequence[ProcessRef]) -> list[Segment]:
        """What the living tree has now and was not known yet. Reads each process's maps: some milliseconds."""
        return self.saw(tree, shm_paths(frozenset[int]().union(*(shm_of(ref.pid) for ref in tree if alive(ref)))))

    def saw(self, tree: Iterable[ProcessRef], paths: Iterable[str]) -> list[Segment]:
        """The same, where somebody has looked already."""
        self._pids |= {ref.pid for ref in tree}
        wanted = frozenset(paths)
        fresh = {one for one in self._appeared() if one.path in wanted} - self.ours if wanted else set()
        self.ours |= fresh
        return sorted(fresh, key=lambda one: one.path)

    def _appeared(self) -> frozenset[Segment]:
        return listing() - self.before

    def settle(self) -> tuple[list[str], list[str]]:
        """Once no process of the worker is left: the paths removed, and sentences on those that are left."""
        appeared = self._appeared()
        mine = {one for one in appeared if one in self.ours or self._made_by_us(one.path)}
        held = _held(appeared)
        unheld = sorted(one.path for one in appeared - mine if one.path not in held)
        return _remove(mine, held), [_left(unheld)] if unheld else []

    def _made_by_us(self, path: str) -> bool:
        pid = maker(os.path.basename(path))
        return pid is not None and pid in self._pids


def maker(name: str) -> int | None:
    """The pid of the process that made a segment of this name, where the name tells."""
    for pattern, base in _WITH_PID:
        if found := pattern.match(name):
            return int(found[1], base)
    return None


def _left(paths: list[str]) -> str:
    more = f" and {len(paths) - NAMED_MAX} more" if len(paths) > NAMED_MAX else ""
    return (
        f"{counted(len(paths), 'segment')} in {SHM} appeared while it ran and nobody has them, but they are not"
        f" ours for certain: left {', '.join(paths[:NAMED_MAX])}{more}"
    )


class ShmWatch:
    """Tells of new files in /dev/shm. Without inotify (none left, no such folder) it never has news, and
    segments are found only when a worker is looked at for another reason."""

    def __init__(self, folder: str = SHM) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(folder), IN_CREATE | IN_MOVED_TO) < 0:
            self.close()

    def fileno(self) -> int | None:
        """Readable once there is news; None where there will never be any."""
        return self._fd if self._fd >= 0 else None

    def read(self) -> frozenset[str]:
        """Names of what was made since the last call; OVERFLOW for those that were lost, too many at once."""
        names: set[str] = set()
        with suppress(BlockingIOError):
            while self._fd >= 0 and (data := os.read(self._fd, READ_BYTES)):
                names.update(_names(data))
        return frozenset(names)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _names(data: bytes) -> Iterable[str]:
    at = 0
    while at < len(data):
        _, mask, _, length = EVENT.unpack_from(data, at)
        at += EVENT.size + length
        yield OVERFLOW if mask & IN_Q_OVERFLOW else os.fsdecode(data[at - length : at].rstrip(b"\0"))
