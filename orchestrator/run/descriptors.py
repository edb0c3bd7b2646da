"""Enough open files for a coordinator: libzmq ends the whole process where it gets none for its own threads."""

from __future__ import annotations

import resource

from orchestrator.errors import InputError, Problem
from protocol.connections import raise_descriptor_limit

LEAST = 64


def ensure() -> None:
    """Raises the soft limit, for our workers too. Raises InputError where even the hard one is too low."""
    raise_descriptor_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        message = f"only {soft} files may be open at a time, and at least {LEAST} are needed"
        raise InputError([Problem("", "ulimit -n", message, "raise the hard limit")])
