"""Descriptors of processes. By number where Python has no name for them: conda's is built against headers of Linux 3.10
or 4.18, whatever kernel it runs on. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal

#: The same on every architecture.
SEND_SIGNAL, OPEN = 424, 434


def open_pidfd(pid: int) -> int:
    """Closed at exec. Raises OSError: ENOSYS before Linux 5.3, EPERM where a container forbids it."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call(OPEN, pid, 0)


def send_signal(pidfd: int, signum: int) -> None:
    """Raises OSError."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, signum)
    else:
        _call(SEND_SIGNAL, pidfd, signum, None, 0)


def _call(number: int, *arguments: int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = (None if one is None else ctypes.c_long(one) for one in arguments)
    result = int(libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return result
