"""Which runs there are: the one that was named, or those in the folders of a folder. A run is asked for by a key that
is looked up among those that were found, so no request can name a path. Symbolic links are not followed."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from orchestrator.errors import InputError, Problem
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.lock import LOCK_NAME
from orchestrator.view.whichrun import is_run

R = TypeVar("R")

KEY_CHARACTERS: Final = 12


def key_of(name: str) -> str:
    """The same after a restart, so that an address can be kept."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:KEY_CHARACTERS]


Look = tuple[int, int, int] | None
Stamp = tuple[Look, ...]


def stamp_of(run_dir: Path) -> Stamp:
    """Differs when there is something new to be read: a journal that grew, a coordinator that came or left. One that
    was killed leaves all as it was."""
    return tuple(_look(run_dir / name) for name in (JOURNAL_NAME, LOCK_NAME))


def _look(path: Path) -> Look:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


@dataclass(frozen=True)
class Found:
    """
    runs      by key
    stamps    what each was like
    left_out  what else there is, and why it is none, a sentence each
    """

    runs: dict[str, Path] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """What was named on the command line. `alone`: it is a run itself."""

    folder: Path
    alone: bool

    def look(self) -> Found:
        """What is there now. A folder that is gone, or may not be read, holds nothing, and that is told."""
        if self.alone:
            return _found({key_of(self.folder.name): self.folder})
        runs: dict[str, Path] = {}
        left_out: list[str] = []
        try:
            for name, reason in _entries(self.folder):
                if reason:
                    left_out.append(f"{name}: {reason}")
                else:
                    runs[key_of(name)] = self.folder / name
        except OSError as exc:
            left_out.append(f"{self.folder}: {exc.strerror}")
        return _found(runs, tuple(sorted(left_out)))


def _found(runs: dict[str, Path], left_out: tuple[str, ...] = ()) -> Found:
    return Found(runs, {key: stamp_of(folder) for key, folder in runs.items()}, left_out)


def place(named: str) -> Place:
    """Raises InputError if there is no such folder."""
    folder = Path(named).resolve()
    if not folder.is_dir():
        hint = "a run directory, or a folder that holds some, e.g. runs"
        raise InputError([Problem("", named, "is no folder", hint)])
    return Place(folder, alone=is_run(folder))


def _entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Folders, each with why it is no run, "" if it is one. Files are not spoken of."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.name, "a symbolic link, not followed"
            elif entry.is_dir(follow_symlinks=False):
                yield entry.name, "" if is_run(Path(entry.path)) else "a folder that holds no run"


class Shelf(Generic[R]):
    """One object per run, as long as its folder is there.

    make  of a folder
    rest  is called for those that nobody has asked for lately: they give up what is large
    """

    def __init__(self, make: Callable[[str, Path], R], rest: Callable[[R], None], most_awake: int) -> None:
        self._make, self._rest, self._most_awake = make, rest, most_awake
        self._made: dict[str, R] = {}
        self._awake: OrderedDict[str, R] = OrderedDict()

    def arrange(self, runs: dict[str, Path]) -> dict[str, R]:
        for key in self._made.keys() - runs.keys():
            del self._made[key]
            self._awake.pop(key, None)
        for key, folder in runs.items():
            if key not in self._made:
                self._made[key] = self._make(key, folder)
        return {key: self._made[key] for key in runs}

    def wake(self, key: str) -> None:
        self._awake[key] = self._made[key]
        self._awake.move_to_end(key)
        while len(self._awake) > self._most_awake:
            self._rest(self._awake.popitem(last=False)[1])
