"""A worker for tests that makes descendants of every kind: `tree.py FIFO LEADER KIND...`.

Each process writes "<what> <pid>" into the FIFO once it is what it will be; the
leader comes last. Standard library only; nothing here ends by itself, except a
leader told to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

SPAWN_MAX = 1000


def mark(fifo: str, what: str) -> None:
    fd = os.open(fifo, os.O_WRONLY)
    os.write(fd, f"{what} {os.getpid()}\n".encode())
    os.close(fd)


def stay(fifo: str, what: str) -> NoReturn:
    mark(fifo, what)
    while True:
        signal.pause()


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def double_fork() -> None:
    os.setsid()
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == middle:  # who counts processes must not count this one
        os.sched_yield()


def clear_environment(fifo: str, then: str = "clean") -> NoReturn:
    if then == "clean":
        double_fork()
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, fifo, then], {})


def spawn_many(fifo: str) -> NoReturn:
    """Children in sessions of their own that stay, as fast as they can be made; not without end."""
    mark(fifo, "spawner")
    for _ in range(SPAWN_MAX):
        if not os.fork():
            os.setsid()
            while True:
                signal.pause()
    while True:
        signal.pause()


def zombie() -> NoReturn:
    os._exit(0)


def brief(fifo: str, what: str = "brief") -> NoReturn:
    mark(fifo, what)
    os._exit(0)


def fork_and_exit_for_ever(fifo: str) -> NoReturn:
    mark(fifo, "loop")
    while True:
        with contextlib.suppress(BlockingIOError):  # EAGAIN
            if os.fork():
                os._exit(0)
            os.setsid()


def child(fifo: str, kind: str) -> None:
    if os.fork():
        return
    becoming: dict[str, Callable[[], object]] = {
        "plain": lambda: None,
        "setsid": os.setsid,
        "setpgid": lambda: os.setpgid(0, 0),
        "daemon": double_fork,
        "clean": lambda: clear_environment(fifo),
        "stubborn": ignore_term,
        "zombie": zombie,
        "loop": lambda: fork_and_exit_for_ever(fifo),
        "brief": lambda: brief(fifo),
        "spawner": lambda: clear_environment(fifo, "spawner"),
    }
    becoming[kind]()
    stay(fifo, kind)


def lead(fifo: str, leader: str) -> NoReturn:
    if leader == "polite":
        signal.signal(signal.SIGTERM, lambda *_: brief(fifo, "term"))
    if leader == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: mark(fifo, "term"))
    if leader == "headless":  # the main thread ends, another one goes on
        threading.Thread(target=stay, args=(fifo, "thread")).start()
        ctypes.CDLL(None).pthread_exit(None)
    if leader == "spawner":
        spawn_many(fifo)
    if leader.startswith("exit"):
        mark(fifo, leader)
        os._exit(int(leader.removeprefix("exit")))
    if leader == "segv":
        mark(fifo, leader)
        os.kill(os.getpid(), signal.SIGSEGV)
    stay(fifo, leader)


if __name__ == "__main__":
    fifo, leader, *kinds = sys.argv[1:]
    for kind in kinds:
        child(fifo, kind)
    lead(fifo, leader)
