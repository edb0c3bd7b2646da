"""What nobody foresaw: told in a sentence, its traceback kept where it can be found later."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.stores.home import airlock_home

#: By the names that they are imported by.
NEEDED = frozenset({"zmq", "msgpack", "msgspec", "psutil", "rich", "ruamel", "pynvml", "scipy", "jinja2"})
LOG_NAME = "coordinator.log"
_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """From now on, in this process: a run is under way. Else, or where that takes nothing, under AIRLOCK_HOME."""
    global _folder  # noqa: PLW0603 - as for logging, there is one place per process
    _folder = folder


def under_way() -> bool:
    return _folder is not None


def tell(exc: BaseException) -> str:
    """One sentence; where no place takes the traceback, the traceback itself after it."""
    what = "".join(traceback.format_exception_only(exc)).strip().splitlines()[-1]
    trace = "".join(traceback.format_exception(exc))
    resumable = "; what is committed stays, --resume goes on from there" if under_way() else ""
    for folder in (_folder, _home()):
        with suppress(OSError):
            if folder is not None:
                return f"unforeseen: {what}; the traceback is in {_append(folder / LOG_NAME, trace)}{resumable}"
    return f"unforeseen: {what}{resumable}\n{trace}"


def not_installed(exc: ModuleNotFoundError) -> str:
    """What to do where this is a Python that Airlock was not installed into; "" where it is ours that is missing."""
    name = (exc.name or "").partition(".")[0]
    if name not in NEEDED:
        return ""
    return (
        f"Airlock is not installed for {sys.executable}, which has no package {name}: activate the environment that it "
        "is installed in (`. .venv/bin/activate`), or install it into this one (`pip install .` in its folder)"
    )


def nameless() -> str:
    """Whose an error of the system is that names no file."""
    try:
        os.getcwd()
    except OSError:
        return "the current folder"
    return "the system"


def _home() -> Path | None:
    try:
        return airlock_home() / "logs"
    except InputError:  # a user without a home
        return None


def _append(path: Path, trace: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{stamp} process {os.getpid()}\n{trace}\n")
    return path
