"""What a coordinator needs of descriptors: enough of them, as libzmq ends the whole process where it gets none for its
own threads, and such of processes, without which no warden is started."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from orchestrator.errors import InputError, Problem
from protocol.connections import raise_descriptor_limit
from protocol.pidfd import open_pidfd

LEAST = 64


def ensure() -> None:
    """Raises the soft limit, for our workers too. Raises InputError where even the hard one is too low, or something
    between us and the kernel gives no descriptor of a process."""
    raise_descriptor_limit()
    if problems := [*_few(), *_no_pidfd()]:
        raise InputError(problems)


def _few() -> Iterator[Problem]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        message = f"only {soft} files may be open at a time, and at least {LEAST} are needed"
        yield Problem("", "ulimit -n", message, "raise the hard limit")


def _no_pidfd() -> Iterator[Problem]:
    try:
        os.close(open_pidfd(os.getpid()))
    except OSError as exc:
        message = f"gives no descriptor of a process (pidfd_open: {exc.strerror})"
        yield Problem("", "kernel", message, "Linux 5.4 or newer is needed, and a container that does not forbid it")
