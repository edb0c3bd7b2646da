"""Finds the peer that fills our memory with a message that never ends.

libzmq keeps the parts of a message until its last one, without a bound and out of
sight. What can be seen is that this process grows while a peer keeps sending and
no message of it comes through. Linux and the standard library only.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import termios
import time
from collections.abc import Mapping

from protocol.codec import MAX_MESSAGE_BYTES

#: Beyond what this process held at first. Honest messages take up to four times their size while they are read.
MAX_HELD_BYTES = 6 * MAX_MESSAGE_BYTES
#: Between two looks, and how much more must be held at the second.
LOOK_AGAIN_S = 0.5
GROWTH_BYTES = 16 * 1024 * 1024


class Burden:
    def __init__(self) -> None:
        self._first_bytes = self._last_bytes = held_bytes()
        self._looked_at = time.monotonic()
        self._heard: set[str] = set()

    def heard(self, name: str) -> None:
        """A whole message of it came."""
        self._heard.add(name)

    def culprits(self, connections: Mapping[int, str]) -> list[int]:
        """Where something comes in now, and nothing whole has come since the last look, while we grew and are
        too large. `connections`: descriptor to name, "" for a stranger's. Costs nothing more than twice a second."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_AGAIN_S:
            return []
        self._looked_at = now
        last_bytes, self._last_bytes = self._last_bytes, held_bytes()
        heard, self._heard = self._heard, set()
        if self._last_bytes - self._first_bytes < MAX_HELD_BYTES:
            return []
        if self._last_bytes - last_bytes < GROWTH_BYTES:
            give_back()  # what was set free since stays with us by itself
            return []
        return [fd for fd, name in connections.items() if name not in heard and _sending(fd)]


def held_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as figures:
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Free memory to the system; glibc's is the only library that needs to be told."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _sending(fd: int) -> bool:
    """Whether something waits there to be read. A number that is no connection any more says no."""
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
    except OSError:
        return False
    return waiting[0] > 0
