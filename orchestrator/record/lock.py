"""One coordinator per run directory: flock on `lock`, whose text names the holder.

flock ends with the process however that dies. The descriptor is closed at
exec, so no worker inherits it; the text tells who holds it, on which host and
since when, since a lock that can't say so costs its finder an hour.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from orchestrator import proc
from orchestrator.errors import JournalError
from orchestrator.record.disk import read_regular, trouble

LOCK_NAME = "lock"
#: `holder` probes a lock that may be nobody's for an instant, which must not turn a start away.
_RETRY_S = 0.3
_RETRY_EVERY_S = 0.02
#: Of a file system that has none, such as Lustre mounted without them, or whose server of locks is away.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


Evict: TypeAlias = Callable[[], list[proc.ProcessRef]]


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock. `start_ticks` counts from that machine's boot, which `boot` names;
    `pid_space` is the PID namespace that `pid` is valid in."""

    pid: int
    start_ticks: int
    host: str
    boot: str
    pid_space: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def visible(self) -> bool:
        """Whether /proc here can tell if it lives."""
        return bool(self.boot) and self.boot == proc.boot() and self.pid_space == proc.pid_space()

    @property
    def alive(self) -> bool:
        found = proc.stat(self.pid)
        return found is not None and found.start_ticks == self.start_ticks and not found.dead


class RunLock:
    """Held from construction until `release` or the end of this process.

    Raises JournalError if somebody else holds it, naming them. A child of a killed life may
    hold it, because it waited for it or inherited it: `evict` ends what such a life left.
    `evicted` then tells whom.
    """

    def __init__(self, run_dir: Path, evict: Evict = list) -> None:
        path = run_dir / LOCK_NAME
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise JournalError(f"{path}: can't be opened: {exc.strerror}") from exc
        try:
            self.evicted = _take(self._fd, run_dir, evict)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(_ourselves()) + b"\n", 0)
        except OSError as exc:
            os.close(self._fd)
            if exc.errno in _NO_LOCKS:
                told = f"{run_dir}: takes no locks: {exc.strerror}; choose a --run-dir on a disk that does"
                raise JournalError(told) from exc
            raise JournalError(trouble(path, exc)) from exc
        except JournalError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            with suppress(OSError):  # a disk that fails now has failed before, and that error is the one to tell
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)


def holder(run_dir: Path) -> Holder | None:
    """Who runs `run_dir` now; None if nobody does. Takes no lock where the named one has ended; where it lives, this
    may be a copy that was made meanwhile."""
    named = _named(run_dir)
    if named is None or (named.visible and not named.alive):
        return None
    return named if _is_held(run_dir) else None


def _take(fd: int, run_dir: Path, evict: Evict) -> list[proc.ProcessRef]:
    if _locks_within(_RETRY_S, fd):
        return []
    if not _is_abandoned(run_dir):
        raise JournalError(_in_use(run_dir))
    ended = evict()
    if not _locks_within(_RETRY_S, fd):
        raise JournalError(_in_use(run_dir))
    return ended


def _locks_within(seconds: float, fd: int) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_RETRY_EVERY_S)


def _is_abandoned(run_dir: Path) -> bool:
    """Looked at twice: whoever has just locked it names itself at once, and has workers only much later."""
    for _ in range(2):
        time.sleep(_RETRY_EVERY_S)
        named = _named(run_dir)
        if named is None or not named.visible or named.alive:
            return False
    return True


def _in_use(run_dir: Path) -> str:
    named = _named(run_dir)
    if named is None:
        return f"{run_dir}: in use by another coordinator, which has not yet said who it is"
    if named.visible and not named.alive:
        return f"{run_dir}: its coordinator ({named}) has ended, but a process forked from it still holds the lock"
    return f"{run_dir}: in use by {named}"


def _is_held(run_dir: Path) -> bool:
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _named(run_dir: Path) -> Holder | None:
    try:
        return msgspec.json.decode(read_regular(run_dir / LOCK_NAME), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None


def _ourselves() -> Holder:
    own = proc.stat(os.getpid())
    return Holder(os.getpid(), own.start_ticks if own else 0, os.uname().nodename, proc.boot(), proc.pid_space())
