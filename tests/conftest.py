"""Shared by all tests: the guard that each process test ends with, and a run tag of its own."""

from __future__ import annotations

import ctypes
import gc
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import hypothesis
import pytest

from orchestrator import proc
from orchestrator.reaper import shm_of

SETTLE_S = 5.0
STEP_MS = 10
PR_SET_CHILD_SUBREAPER = 36

# How fast an example is made or run says nothing on a machine with neighbours.
hypothesis.settings.register_profile("airlock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("airlock")

# A shell that starts us in the background has them ignored, and whatever a test starts would inherit that.
for _signum, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signum) == signal.SIG_IGN:
        signal.signal(_signum, _usual)


@pytest.fixture
def run_tag() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def nothing_leaked(run_tag: str) -> Iterator[None]:
    """Use it first: `pytestmark = pytest.mark.usefixtures("nothing_leaked")`.

    This process becomes a child subreaper, as the coordinator is, so an orphan
    comes back here and shows up as a child.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fds, children, shm, threads = open_fds(), below_us(), shm_entries(), os_threads()
    yield
    gc.collect()
    probes: dict[str, Callable[[], object]] = {
        "descriptors": lambda: sorted(open_fds().items() - fds.items()),
        "children": lambda: sorted(map(str, below_us() - children)),
        "tagged processes": lambda: tagged(run_tag),
        "/dev/shm": lambda: sorted(name for name in shm_entries() - shm if not used_by_a_stranger(name)),
        "threads": lambda: [os_threads() - threads, threading.enumerate()] if os_threads() - threads else [],
    }
    deadline = time.monotonic() + SETTLE_S
    left = {what: found for what, probe in probes.items() if (found := settled(probe, deadline))}
    assert not left, f"leaked: {left}"


def settled(probe: Callable[[], object], deadline: float) -> object:
    """The last answer of `probe`, as soon as it is empty or when time is up."""
    while (found := probe()) and time.monotonic() < deadline:
        wait_for_a_child_to_end(STEP_MS)
    return found


def wait_for_a_child_to_end(timeout_ms: int) -> None:
    poll = select.poll()
    fds: list[int] = []
    for ref in below_us():
        one = proc.stat(ref.pid)
        if one is None or one.dead:
            continue  # a zombie is always ready and would make this a busy loop
        with suppress(OSError):
            fds.append(os.pidfd_open(ref.pid))
            poll.register(fds[-1], select.POLLIN)
    poll.poll(timeout_ms)
    for fd in fds:
        os.close(fd)


def below_us() -> set[proc.ProcessRef]:
    """Zombies too: one that nobody reaps is a leak."""
    return {proc.ref(one) for one in proc.descendants([os.getpid()], proc.table())}


def tagged(run_tag: str) -> list[proc.ProcessRef]:
    return [proc.ref(s) for s in proc.table().values() if proc.belongs(s.pid, run_tag)]


def open_fds() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this very listing
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def os_threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def shm_entries() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def used_by_a_stranger(name: str) -> bool:
    """Other programs of this machine make segments while a test runs."""
    strangers = proc.table().keys() - {ref.pid for ref in below_us()} - {os.getpid()}
    with suppress(FileNotFoundError):
        inode = os.stat(f"/dev/shm/{name}").st_ino
        return any(inode in shm_of(pid) for pid in strangers)
    return True  # gone again
