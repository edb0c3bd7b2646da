"""AIRLOCK_HOME: where environments and models are kept between runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def airlock_home() -> Path:
    """`$AIRLOCK_HOME`, else `$XDG_DATA_HOME/airlock`, else `~/.local/share/airlock`. Not created here."""
    named = os.environ.get("AIRLOCK_HOME")
    if named:
        return Path(os.path.expanduser(named)).absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "airlock"


def tag_of(folder: Path) -> str:
    """The tag carried in the environment of every process started for `folder`:
    16 hex digits of its real path, so that a later life recognises an earlier one's."""
    return hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
