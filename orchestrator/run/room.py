"""Whether there is room to work in: asked of the file systems before each worker start.

A worker that meets a full disk half-way costs its whole load, and engines say
so in many ways, SIGBUS among them. Asking before costs nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.definition.sizes import MIB
from orchestrator.reaper import SHM
from orchestrator.view.wording import bytes_text

#: Compile caches are thousands of small files.
MIN_INODES = 1000
#: What a write must get for a place to count as taking any; and how much of what is wanted is really asked for,
#: which costs nothing on a disk and some milliseconds in memory.
PROBE_BYTES, MAX_PROBE_BYTES = 4096, 16 * MIB
LOGIND, LINGERING = Path("/etc/systemd/logind.conf"), Path("/var/lib/systemd/linger")
FIRST_USER_UID = 1000


@dataclass(frozen=True)
class Places:
    """Where a run writes: itself, its workers, and what these share with their children."""

    run_dir: Path
    tmp: Path
    shm: Path

    @classmethod
    def of(cls, run_dir: Path) -> Places:
        return cls(run_dir.absolute(), Path(tempfile.gettempdir()).absolute(), Path(SHM))


@dataclass(frozen=True)
class Wanted:
    """The least free space, MiB. 0 asks nothing of that place."""

    run_dir_mib: int = 0
    tmp_mib: int = 0
    shm_mib: int = 0


def shortages(places: Places, wanted: Wanted) -> list[str]:
    """A sentence for each place without enough room, with its path, what is free and what is wanted."""
    asked = (
        ("the run directory", places.run_dir, wanted.run_dir_mib),
        ("TMPDIR", places.tmp, wanted.tmp_mib),
        ("shared memory", places.shm, wanted.shm_mib if places.shm.is_dir() else 0),
    )
    found = (_shortage(name, path, mib * MIB) for name, path, mib in asked if mib)
    return [sentence for sentence in found if sentence]


def full(places: Places) -> str:
    """Which of them take nothing more now, for the record of a worker that failed for lack of room; "" for none."""
    found = (_full(name, path) for name, path in _named(places))
    return "; ".join(sentence for sentence in found if sentence)


def _named(places: Places) -> list[tuple[str, Path]]:
    named = [("the run directory", places.run_dir), ("TMPDIR", places.tmp)]
    return [*named, ("shared memory", places.shm)] if places.shm.is_dir() else named


def _shortage(name: str, path: Path, wanted_bytes: int) -> str:
    try:
        room = os.statvfs(path)
    except OSError as exc:
        return f"{name} {path} can't be asked for its room: {exc.strerror}"
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < wanted_bytes:
        return f"{name} {path} has {bytes_text(free_bytes)} free, {bytes_text(wanted_bytes)} are wanted"
    if room.f_files and room.f_favail < MIN_INODES:  # some file systems count none
        return f"{name} {path} has {room.f_favail} inodes free, {MIN_INODES} are wanted"
    return _refusal(name, path, min(wanted_bytes, MAX_PROBE_BYTES))


def _full(name: str, path: Path) -> str:
    try:
        room = os.statvfs(path)
    except OSError as exc:
        return f"{name} {path} can't be asked for its room: {exc.strerror}"
    if room.f_bavail * room.f_frsize < max(PROBE_BYTES, room.f_frsize):
        return f"{name} {path} is full: it has {bytes_text(room.f_bavail * room.f_frsize)} free"
    if room.f_files and not room.f_favail:
        return f"{name} {path} is full: it has no inodes free"
    return _refusal(name, path, PROBE_BYTES)


def _refusal(name: str, path: Path, wanted_bytes: int) -> str:
    """A quota of this user shows in no figure, only in what it is answered."""
    try:
        fd = _nameless_file(path)
    except OSError as exc:
        return f"{name} {path} takes no file: {exc.strerror}"
    try:
        _ask_for(fd, wanted_bytes)
    except OSError as exc:
        return f"{name} {path} has not even {bytes_text(wanted_bytes)} for us: {exc.strerror}"
    finally:
        os.close(fd)
    return ""


def _nameless_file(folder: Path) -> int:
    with suppress(OSError):
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fd, name = tempfile.mkstemp(prefix="airlock-room-", dir=folder)  # file systems without O_TMPFILE, such as NFS
    os.unlink(name)
    return fd


def _ask_for(fd: int, wanted_bytes: int) -> None:
    """Raises OSError. The system call and not posix_fallocate, which writes it all where it is not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_longlong(0), ctypes.c_longlong(wanted_bytes)) == 0:
        return
    if ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.write(fd, bytes(PROBE_BYTES))


def lost_at_logout(user: str, uid: int, *, logind: Path = LOGIND, lingering: Path = LINGERING) -> str:
    """A warning where systemd would take a run's shared memory away when its user logs out; "" where not.

    It does so by default, for users who are no system's and do not linger, and even while their processes run.
    """
    if uid < FIRST_USER_UID or not logind.parent.is_dir() or (lingering / user).exists():
        return ""
    if _removes_ipc(logind):
        return (
            f"systemd will remove {user}'s shared memory at logout, under running engines:"
            f" `loginctl enable-linger {user}`, or RemoveIPC=no in {logind}"
        )
    return ""


def _removes_ipc(logind: Path) -> bool:
    """The last word of the file and of the pieces beside it; yes, if none says anything."""
    said = "yes"
    for path in (logind, *sorted(logind.with_name(f"{logind.name}.d").glob("*.conf"))):
        with suppress(OSError, UnicodeDecodeError):
            values = [line.partition("=")[2] for line in path.read_text().splitlines() if line.startswith("RemoveIPC=")]
            said = values[-1] if values else said
    return said.strip().lower() in {"yes", "true", "1", "on"}
