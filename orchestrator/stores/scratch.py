"""The folder that one run of a tool has to itself, and what becomes of it when its coordinator is killed.

Its name says who made it: al-tool-SPACE-PID-START-RANDOM, SPACE standing for the
boot and the PID namespace that the other two are valid in. So a later start knows
which are abandoned, and that only by looking; a temporary folder may be shared
with other containers, and its names with other programs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.reaper import Reaper

PREFIX = "al-tool-"
#: Of another boot or namespace nothing can be known but that no tool takes that long.
FOREIGN_AGE_S = 2 * 24 * 3600.0


@dataclass(frozen=True)
class Scratch:
    folder: Path

    @property
    def incarnation(self) -> str:
        return f"tool-{self.folder.name.rsplit('-', 1)[1]}"


@contextmanager
def scratch() -> Iterator[Scratch]:
    own = proc.stat(os.getpid())
    prefix = f"{PREFIX}{_space()}-{os.getpid()}-{own.start_ticks if own else 0}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Scratch(Path(folder))


def remove_abandoned(run_tag: str) -> None:
    """What killed coordinators of this user left: their tools' processes under `run_tag`, then their folders."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if _is_ours(folder) and _is_abandoned(folder):
                Reaper(run_tag).sweep(Scratch(folder).incarnation)
                shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    return folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()


def _is_abandoned(folder: Path) -> bool:
    try:
        space, pid, start_ticks, _ = folder.name.removeprefix(PREFIX).split("-")
        owner = proc.stat(int(pid))
    except ValueError:
        return False
    if space != _space():
        return time.time() - folder.stat().st_mtime > FOREIGN_AGE_S
    return owner is None or owner.dead or owner.start_ticks != int(start_ticks)


def _space() -> str:
    return f"{zlib.crc32(f'{proc.boot()} {proc.pid_space()}'.encode()):08x}"
