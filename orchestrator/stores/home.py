"""AIRLOCK_HOME: where environments and models are kept between runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from orchestrator.errors import InputError, Problem


def airlock_home() -> Path:
    """`$AIRLOCK_HOME`, else `$XDG_DATA_HOME/airlock`, else `~/.local/share/airlock`. Not created here.

    Raises InputError where there is no `~`: containers run as users that nobody has made.
    """
    named, data = os.environ.get("AIRLOCK_HOME"), os.environ.get("XDG_DATA_HOME")
    try:
        if named:
            return Path(named).expanduser().absolute()
        return (Path(data) if data else Path.home() / ".local" / "share").absolute() / "airlock"
    except RuntimeError as exc:
        message = "there is no home directory that it could be in"
        raise InputError([Problem("", "AIRLOCK_HOME", message, "set it to a folder of yours")]) from exc


def tag_of(folder: Path) -> str:
    """The tag carried in the environment of every process started for `folder`:
    16 hex digits of its real path, so that a later life recognises an earlier one's."""
    return _digest(os.fsencode(os.path.realpath(folder)))


def run_tag_of(run_dir: Path) -> str:
    """The same for a run: of its directory itself, not of the path alone. Two containers, or two jobs with a /tmp each,
    may have a run at the same path and see each other's processes."""
    itself = run_dir.stat()
    return _digest(b"%s\0%d:%d" % (os.fsencode(os.path.realpath(run_dir)), itself.st_dev, itself.st_ino))


def _digest(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:16]
