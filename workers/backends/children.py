"""Watches the processes that an engine keeps beside this one.

An engine may not notice that one of them is gone: vLLM's `generate` then never
returns, and SGLang overlooks a child that ends with status 0 or while it loads.
Each is known by the title that its engine gives it, before that by how
multiprocessing starts it, and held by a pidfd, which tells of its end without
taking the exit status that the engine waits for.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

import psutil

from protocol.pidfd import open_pidfd
from workers.backends.base import EngineDead

#: How often new children are looked for while the engine loads; afterwards nothing is polled.
SCAN_S = 1.0
#: For the engine's own error, whose traceback says more, to come out of `generate` or of the load first.
#: A load takes its other children down before it raises.
GRACE_S, LOAD_GRACE_S = 2.0, 15.0
#: The watch and the engine wake at the same moment; on the way to an error there is time for the watch.
NEWS_S = 1.0
#: In the command line of what multiprocessing has spawned, until its engine writes a title over it.
SPAWNED = "--multiprocessing-fork"
#: Ends a child on request. By any other signal it did not go because its engine wanted it to.
POLITE = signal.SIGTERM
#: Of /proc/<pid>/stat, counted from the state.
EXIT_CODE_FIELD = 49
#: linux/pidfd.h: struct pidfd_info, whose first field is the mask and whose last is the wait status.
PIDFD_INFO_BYTES, PIDFD_INFO_EXIT = 64, 1 << 3
PIDFD_GET_INFO = 3 << 30 | PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11


@dataclass(frozen=True)
class Death:
    """How a child ended. Without `signum` and `status` its parent has taken them already."""

    name: str
    pid: int
    signum: int | None = None
    status: int | None = None

    def __str__(self) -> str:
        how = "ended"
        if self.signum is not None:
            how = f"was ended by {signal_name(self.signum)}"
        elif self.status is not None:
            how = f"exited with status {self.status}"
        return f"{self.name} (pid {self.pid}) {how}"

    @property
    def violent(self) -> bool:
        return self.signum not in (None, POLITE)


@dataclass
class Child:
    """`titled`: its engine needs it for as long as it lives itself. Of others only a violent end counts."""

    pid: int
    name: str
    titled: bool


class Children:
    """Descendants of this process whose title begins with `title`, or will. `give_up` is called, from
    a thread of its own, when one has ended and the engine says nothing about it."""

    def __init__(self, title: str, give_up: Callable[[BaseException], NoReturn]) -> None:
        self._title, self._give_up = title, give_up
        self._held: dict[int, Child] = {}  # by pidfd; the thread's own
        self._loading = True
        self._death: Death | None = None
        self._found = threading.Event()  # the last scan is done: all that the engine keeps are held
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="airlock-children", daemon=True)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Round the engine's start. Raises EngineDead for whatever the engine makes of a child that was
        killed, as its own words are often about another one, and for one that it has overlooked."""
        self._thread.start()
        try:
            yield
        except EngineDead:
            raise
        except Exception as exc:
            death = self.death(NEWS_S)
            if death and death.violent:
                raise EngineDead(str(death)) from exc
            raise
        self._loading = False
        self._rouse()
        self._found.wait(NEWS_S)
        if death := self.death():
            raise EngineDead(str(death))

    def stop(self) -> None:
        """Before a shutdown, in which they end. Safe to call twice; the main thread's, like `loading`."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._rouse()
        if self._thread.is_alive():
            self._thread.join(NEWS_S)
        if not self._thread.is_alive():
            for fd in (self._wake, *self._held):
                os.close(fd)

    def death(self, patience_s: float = 0.0) -> Death | None:
        """The first end of a child; waits for the news of it for at most `patience_s`."""
        if self._held:
            self._news.wait(patience_s)
        return self._death

    def _run(self) -> None:
        looking = True
        while not self._stopped.is_set():
            if looking:
                looking = self._loading  # asked before the scan: the last one finds all
                self._scan()
                if not looking:
                    self._found.set()
            for pidfd in self._wait(SCAN_S if looking else None):
                self._end_of(pidfd)

    def _wait(self, timeout_s: float | None) -> list[int]:
        """The pidfds of children that have ended."""
        poll = select.poll()
        for fd in (self._wake, *self._held):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return [fd for fd in ready if fd != self._wake]

    def _end_of(self, pidfd: int) -> None:
        child = self._held[pidfd]
        death = how_it_ended(child.name, child.pid, pidfd)
        if (child.titled or death.violent) and not self._stopped.is_set():
            self._report(death)
        del self._held[pidfd]
        os.close(pidfd)

    def _report(self, death: Death) -> None:
        self._death = self._death or death
        self._news.set()
        if not self._stopped.wait(LOAD_GRACE_S if self._loading else GRACE_S):
            self._give_up(EngineDead(str(self._death)))

    def _scan(self) -> None:
        known = {child.pid: child for child in self._held.values()}
        for process in descendants():
            with suppress(psutil.Error, OSError):
                name = process.name().rstrip()
                titled = name.startswith(self._title)
                if (child := known.get(process.pid)) is not None:
                    child.name, child.titled = name, titled
                elif titled or SPAWNED in process.cmdline():
                    self._held[open_pidfd(process.pid)] = Child(process.pid, name, titled)

    def _rouse(self) -> None:
        os.eventfd_write(self._wake, 1)


def descendants() -> list[psutil.Process]:
    try:
        return list(psutil.Process().children(recursive=True))
    except (psutil.Error, OSError):
        return []


def how_it_ended(name: str, pid: int, pidfd: int) -> Death:
    """Takes nothing away: a zombie's status stands in /proc until its parent asks for it, and
    the kernel keeps it with the pidfd from then on, if it is as new as 6.15."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        comm, _, rest = file.read().partition(b"(")[2].rpartition(b")")
        fields = rest.split()
        if fields[0] == b"Z":
            return of_status(max(name, comm.decode("utf-8", "replace"), key=len), pid, int(fields[EXIT_CODE_FIELD]))
    with suppress(OSError):
        info = bytearray(PIDFD_INFO_BYTES)
        info[0] = PIDFD_INFO_EXIT
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        if info[0] & PIDFD_INFO_EXIT:
            return of_status(name, pid, int.from_bytes(info[-4:], sys.byteorder))
    return Death(name, pid)


def of_status(name: str, pid: int, wait_status: int) -> Death:
    if os.WIFSIGNALED(wait_status):
        return Death(name, pid, signum=os.WTERMSIG(wait_status))
    return Death(name, pid, status=os.WEXITSTATUS(wait_status))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
