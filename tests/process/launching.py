"""Launching real processes in tests, and waiting for what they say without sleeping."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.launcher import Ended, Handle, Launcher, LaunchSpec, WardenDied, WardenEvent, base_environment
from protocol.pidfd import open_pidfd

TREE = str(Path(__file__).with_name("tree.py"))
PATIENCE_S = 20.0


class Fifo:
    """Where processes of a test say a line each. Held open for writing too, so it never ends."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._text = b""

    def line(self) -> str:
        while b"\n" not in self._text:
            assert select.select([self._fd], [], [], PATIENCE_S)[0], f"nothing said; so far {self._text!r}"
            self._text += os.read(self._fd, 4096)
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def pids(self, count: int) -> dict[str, int]:
        """The next `count` lines "<what> <pid>"."""
        return {what: int(pid) for what, pid in (self.line().split() for _ in range(count))}

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class Launching:
    """Launches under the test's run tag, in its folder. All is closed at the end of the test."""

    launcher: Launcher
    folder: Path
    run_tag: str
    fifo: Fifo
    stack: ExitStack

    def spec(self, *argv: str, env: Mapping[str, str] | None = None, incarnation: str = "w1-test") -> LaunchSpec:
        env = base_environment() if env is None else env
        return LaunchSpec(argv, env, str(self.folder), str(self.folder / "log"), self.run_tag, incarnation)

    def python(self, code: str, *args: str) -> LaunchSpec:
        return self.spec(sys.executable, "-I", "-S", "-c", code, *args)

    def launch(self, spec: LaunchSpec) -> Handle:
        handle = self.launcher.launch(spec)
        self.stack.callback(handle.close)
        return handle

    def tree(self, leader: str, *kinds: str, incarnation: str = "w1-test") -> tuple[Handle, dict[str, int]]:
        """A worker of tests/process/tree.py, and the pids of all that came to be; zombies do not say any."""
        argv = tree_argv(self.fifo, leader, *kinds)
        handle = self.launch(self.spec(*argv, incarnation=incarnation))
        return handle, self.fifo.pids(1 + sum(kind != "zombie" for kind in kinds))

    def log(self) -> str:
        return (self.folder / "log").read_text()


def tree_argv(fifo: Fifo, leader: str, *kinds: str) -> list[str]:
    return [sys.executable, "-I", "-S", TREE, fifo.path, leader, *kinds]


def until(handle: Handle, last: Callable[[WardenEvent], bool], timeout_s: float = PATIENCE_S) -> list[WardenEvent]:
    """Events up to the first for which `last` holds."""
    deadline = time.monotonic() + timeout_s
    events: list[WardenEvent] = []
    while not any(map(last, events)):
        assert time.monotonic() < deadline, f"only {events}"
        events += handle.read_events()
        if not any(map(last, events)):
            handle.wait(deadline - time.monotonic())
    return events


def to_the_end(handle: Handle, timeout_s: float = PATIENCE_S) -> list[WardenEvent]:
    return until(handle, lambda event: isinstance(event, (Ended, WardenDied)), timeout_s)


@contextmanager
def watched(pids: Iterable[int]) -> Iterator[Callable[[float], set[int]]]:
    """Gives a function that waits so many seconds at most and says which of the pids still run."""
    with ExitStack() as stack:
        fds = {}
        for pid in pids:
            fds[open_pidfd(pid)] = pid
        for fd in fds:
            stack.callback(os.close, fd)
        yield lambda timeout_s: still_running(fds, timeout_s)


def still_running(fds: dict[int, int], timeout_s: float) -> set[int]:
    deadline = time.monotonic() + timeout_s
    left = dict(fds)
    while left:
        ready = select.select(list(left), [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            break
        for fd in ready:
            del left[fd]
    return set(left.values())


def state_of(pid: int) -> str:
    one = proc.stat(pid)
    return one.state if one else "gone"
