"""Enough open files for a coordinator: libzmq ends the whole process where it gets none for its own threads."""

from __future__ import annotations

import resource

from orchestrator.errors import InputError, Problem

LEAST, ENOUGH = 64, 1024  # more than that and an engine that still uses select() would break


def ensure() -> None:
    """Raises the soft limit if it is low, for our workers too. Raises InputError if there is no way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH:
        return
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if wanted < LEAST:
        message = f"only {wanted} files may be open at a time, and at least {LEAST} are needed"
        raise InputError([Problem("", "ulimit -n", message, "raise the hard limit")])
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
