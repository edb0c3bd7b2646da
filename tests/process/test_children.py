"""The watch over an engine's own processes, on real ones, titled as engines title theirs."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn, cast

import psutil
import pytest

from workers.backends import children
from workers.backends.base import EngineDead
from workers.backends.children import SPAWNED, Children

pytestmark = pytest.mark.usefixtures("nothing_leaked")

TITLE = "T::"
PATIENCE_S = 20.0
STEP_S = 0.02

#: Takes its title, makes a child if it is to have one, says who is the lowest, and ends as it is told.
PROCESS = """
import os, subprocess, sys
code, title, below, marker = sys.argv[1:]
if title:
    open("/proc/self/comm", "w").write(title)
pid = os.getpid()
if below:
    child = subprocess.Popen([sys.executable, "-c", code, code, below, "", marker], stdout=subprocess.PIPE)
    pid = int(child.stdout.readline())
print(pid, flush=True)
os._exit(int(sys.stdin.readline() or 0))
"""


class Engine:
    """A child of this process, perhaps with one of its own; and the watch over them."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.watch = Children(TITLE, cast("Callable[[BaseException], NoReturn]", self.said.put))
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, title: str = f"{TITLE}core", below: str = "") -> int:
        """The pid of the lower one."""
        command = [sys.executable, "-c", PROCESS, PROCESS, title, below, SPAWNED]
        process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout
        return int(process.stdout.readline())

    def let_go(self, status: int) -> None:
        stdin = self.processes[0].stdin
        assert stdin
        stdin.write(f"{status}\n")
        stdin.flush()

    def close(self) -> None:
        self.watch.stop()
        everyone = psutil.Process().children(recursive=True)
        for one in everyone:
            one.kill()
        for process in self.processes:
            process.communicate()
        for one in everyone:  # a grandchild comes to us, who are a subreaper
            with suppress(ChildProcessError):
                os.waitpid(one.pid, 0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(children, "GRACE_S", 0.0)
    monkeypatch.setattr(children, "LOAD_GRACE_S", PATIENCE_S)
    made = Engine()
    yield made
    made.close()


@pytest.mark.parametrize("below", ["", f"{TITLE}worker"], ids=["child", "grandchild"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_child_that_a_signal_ends_is_reported_by_name(engine: Engine, below: str, signum: signal.Signals) -> None:
    with engine.watch.loading():
        pid = engine.start(below=below)
    os.kill(pid, signum)
    error = engine.said.get(timeout=PATIENCE_S)
    assert isinstance(error, EngineDead)
    assert str(error) == f"{below or 'T::core'} (pid {pid}) was ended by {signum.name}"


def test_a_python_without_a_name_for_pidfd_open_watches_them_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conda's has none."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with engine.watch.loading():
        pid = engine.start()
    os.kill(pid, signal.SIGKILL)
    assert str(engine.said.get(timeout=PATIENCE_S)) == f"T::core (pid {pid}) was ended by SIGKILL"


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_leaves_by_itself_is_reported_and_its_status_left_to_its_parent(
    engine: Engine, status: int
) -> None:
    with engine.watch.loading():
        pid = engine.start()
    engine.let_go(status)
    assert str(engine.said.get(timeout=PATIENCE_S)) == f"T::core (pid {pid}) exited with status {status}"
    engine.processes[0].wait()
    assert engine.processes[0].returncode == status


def test_the_end_of_a_child_whose_status_is_taken_already_is_told(engine: Engine) -> None:
    pid = engine.start()
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    engine.processes[0].wait()
    try:
        told = str(children.how_it_ended("T::core", pid, pidfd))
    finally:
        os.close(pidfd)
    new_kernel = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
    assert told == f"T::core (pid {pid}) {'was ended by SIGKILL' if new_kernel else 'ended'}"


def test_after_stop_they_may_end(engine: Engine) -> None:
    with engine.watch.loading():
        engine.start()
    engine.watch.stop()
    engine.let_go(0)
    engine.processes[0].wait()
    assert engine.watch.death(0.1) is None
    assert engine.said.empty()


def test_all_children_are_known_when_the_load_is_over(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the last look for them comes: here not before the load is over."""
    look, over = children.descendants, threading.Event()
    rouse = engine.watch._rouse

    def late() -> list[psutil.Process]:
        return look() if over.wait(PATIENCE_S) else []

    def end_of_load() -> None:
        rouse()
        over.set()

    monkeypatch.setattr(children, "descendants", late)
    monkeypatch.setattr(children, "NEWS_S", PATIENCE_S)
    monkeypatch.setattr(engine.watch, "_rouse", end_of_load)
    with engine.watch.loading():
        pid = engine.start()
    assert [child.pid for child in engine.watch._held.values()] == [pid]


def test_the_engines_own_error_comes_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "GRACE_S", PATIENCE_S)
    with engine.watch.loading():
        pid = engine.start()
    os.kill(pid, signal.SIGKILL)
    assert str(engine.watch.death(PATIENCE_S)) == f"T::core (pid {pid}) was ended by SIGKILL"
    engine.watch.stop()
    assert engine.said.empty()


def test_a_load_that_fails_of_a_killed_child_says_so(engine: Engine) -> None:
    """Also when it was killed before it had its title."""

    def load() -> None:
        with engine.watch.loading():
            pid = engine.start(title="")
            wait_until_held(engine, pid)
            os.kill(pid, signal.SIGKILL)
            raise RuntimeError("see above")

    with pytest.raises(EngineDead, match="was ended by SIGKILL") as caught:
        load()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_load_that_fails_of_an_error_keeps_it(engine: Engine) -> None:
    def load() -> None:
        with engine.watch.loading():
            wait_until_held(engine, engine.start())
            engine.let_go(1)
            raise ValueError("no such option")

    with pytest.raises(ValueError, match="no such option"):
        load()


def test_a_load_that_overlooks_the_end_of_a_child_fails(engine: Engine) -> None:
    def load() -> None:
        with engine.watch.loading():
            wait_until_held(engine, engine.start())
            engine.let_go(0)
            assert engine.watch.death(PATIENCE_S)

    with pytest.raises(EngineDead, match="exited with status 0"):
        load()


def test_a_helper_without_a_title_may_end(engine: Engine) -> None:
    with engine.watch.loading():
        helper = engine.start(title="")
        wait_until_held(engine, helper)
        engine.let_go(0)
        pid = engine.start()
    os.kill(pid, signal.SIGKILL)
    assert f"(pid {pid})" in str(engine.said.get(timeout=PATIENCE_S))


def wait_until_held(engine: Engine, pid: int) -> None:
    """It looks for new ones once a second. Joining the thread, which goes on, only passes time."""
    for _ in range(int(PATIENCE_S / STEP_S)):
        if pid in [child.pid for child in engine.watch._held.values()]:
            return
        engine.watch._thread.join(STEP_S)
    raise AssertionError(f"{pid} is not watched")
