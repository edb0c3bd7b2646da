"""Ties this process to the warden that started it, and lets it run at low priority while it waits."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


class WardenGone(Exception):
    """The warden ended before we could tie ourselves to it."""


def die_with(warden_pid: int) -> None:
    """SIGKILL for this process once the warden ends. Not inherited by children; those
    are the warden's to end, or the coordinator's if the warden was killed.

    Raises WardenGone. The parent is checked after the call: it may have ended before it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != warden_pid:
        raise WardenGone(f"parent is {os.getppid()}, not the warden {warden_pid}")


class Priority:
    """Lowered while another worker is being measured, put back when this one gets its slot."""

    def __init__(self) -> None:
        self._before: int | None = None

    def lower(self, nice: int) -> None:
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, nice)

    def restore(self) -> str | None:
        """None, or a note that it can't be done: that needs CAP_SYS_NICE."""
        if self._before is None:
            return None
        try:
            for tid in os.listdir("/proc/self/task"):  # on Linux the priority is each thread's own
                os.setpriority(os.PRIO_PROCESS, int(tid), self._before)
        except PermissionError:
            return f"ran at nice {os.getpriority(os.PRIO_PROCESS, 0)}, which this user may not undo"
        except ProcessLookupError:  # a thread ended meanwhile; the others follow
            return self.restore()
        return None
