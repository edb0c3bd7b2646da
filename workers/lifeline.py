"""Ties this process to the warden that started it, and lets it run at low priority while it waits."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
IOPRIO_WHO_PROCESS, IOPRIO_NONE, IOPRIO_IDLE = 1, 0, 3 << 13
#: The C library has no name for it.
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


class WardenGone(Exception):
    """The warden ended before we could tie ourselves to it."""


def die_with(warden_pid: int) -> None:
    """SIGKILL for this process once the warden ends; or the wrapper between us, where an environment's
    interpreter is a script that does not exec. Not inherited by children; those are the
    warden's to end, or the coordinator's if the warden was killed.

    Raises WardenGone. The parents are checked after the call: they may have ended before it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if warden_pid not in ancestors():
        raise WardenGone(f"parent is {os.getppid()}, and the warden {warden_pid} is not above it")


def ancestors() -> Iterator[int]:
    """Nearest first, as far up as may be looked."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            return


class Priority:
    """Lowered while another worker is being measured, put back when this one gets its slot."""

    def __init__(self) -> None:
        self._before: int | None = None

    def lower(self, nice: int) -> None:
        """Nor does its disk access hold up anybody's."""
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        set_io_priority(0, IOPRIO_IDLE)

    def restore(self) -> str | None:
        """None, or a note that it can't be done: that needs CAP_SYS_NICE."""
        if self._before is None:
            return None
        try:
            for tid in os.listdir("/proc/self/task"):  # on Linux the priorities are each thread's own
                os.setpriority(os.PRIO_PROCESS, int(tid), self._before)
                set_io_priority(int(tid), IOPRIO_NONE)
        except PermissionError:
            return f"ran at nice {os.getpriority(os.PRIO_PROCESS, 0)}, which this user may not undo"
        except ProcessLookupError:  # a thread ended meanwhile; the others follow
            return self.restore()
        return None


def set_io_priority(tid: int, priority: int) -> None:
    """Of one thread, 0 for this one. Nothing where the system call's number is not known."""
    if number := IOPRIO_SET.get(os.uname().machine):
        ctypes.CDLL(None).syscall(number, IOPRIO_WHO_PROCESS, tid, priority)
