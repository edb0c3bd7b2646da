"""The folders of the environments, and the locks beside them.

envs/NAME/venv, then envs/NAME/env.json, written last: a folder without it is
half-made and is removed at the next start. Locks stand beside the folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import EnvironmentFailed, InputError
from orchestrator.stores.envbuild import OnWait, Say, remove_tree
from orchestrator.stores.envstate import STATE_NAME, Stored, load, save
from orchestrator.stores.filelock import FileLock


class EnvShelf:
    """A lock that was taken is held until it is released, until `close`, or else until the process ends."""

    def __init__(self, home: Path, say: Say, on_wait: OnWait) -> None:
        self._root, self._say, self._on_wait = home / "envs", say, on_wait
        self._locks: dict[str, FileLock] = {}

    def close(self) -> None:
        for name in tuple(self._locks):
            self._release(name)

    def folder(self, name: str) -> Path:
        return self._root / name

    def load(self, name: str) -> Stored | None:
        """None if it is not there. Raises EnvironmentFailed for one that is damaged."""
        return load(self.folder(name), name)

    def is_damaged(self, name: str) -> bool:
        try:
            self.load(name)
        except EnvironmentFailed:
            return True
        return False

    def names(self) -> tuple[str, ...]:
        """Of all folders, half-made ones among them."""
        return tuple(sorted(p.name for p in self._root.iterdir() if p.is_dir())) if self._root.is_dir() else ()

    def complete(self) -> list[str]:
        return [name for name in self.names() if (self.folder(name) / STATE_NAME).exists()]

    def share(self, name: str) -> None:
        """Nobody builds it anew from here on."""
        waiting = f"environment {name}: another Airlock is building it; waiting"
        self._lock(name).shared(waiting, self._say, self._on_wait)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Nobody builds or uses it meanwhile."""
        waiting = f"environment {name}: another Airlock builds or uses it; waiting"
        self._lock(name).exclusive(waiting, self._say, self._on_wait)
        try:
            yield
        finally:
            self._release(name)

    def amend(self, name: str, before: Stored, after: Stored) -> None:
        """Writes `after` in the place of `before`; not where nothing can be written, or where another Airlock is
        making the environment anew."""
        ours = name in self._locks
        with suppress(OSError, InputError, EnvironmentFailed):
            if self._lock(name).try_shared() and self.load(name) == before:
                save(self.folder(name), after)
        if not ours:
            self._release(name)

    def remove_half_made(self) -> None:
        for name in self.names():
            state = self.folder(name) / STATE_NAME
            if state.exists() or name in self._locks:
                continue
            if self._lock(name).try_exclusive() and not state.exists():  # else somebody is building it, or just has
                self._say(f"environment {name}: removing what an interrupted build left behind")
                remove_tree(self.folder(name))
            self._release(name)

    def _lock(self, name: str) -> FileLock:
        if name not in self._locks:
            self._locks[name] = FileLock(self._root / f".{name}.lock")
        return self._locks[name]

    def _release(self, name: str) -> None:
        if lock := self._locks.pop(name, None):
            lock.close()
