"""One entry of the store of artefacts, open: read under a shared lock, removed under one of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from orchestrator.stores.trees import Differs, Marks

FILES, LOCK = "files.json", "lock"


class Folder:
    """An entry, open: where it is moved to does not matter to who reads it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:  # not ours to lock: then not ours to remove either
            self._lock = -1

    def close(self) -> None:
        os.close(self.fd)
        if self._lock >= 0:
            os.close(self._lock)

    def share(self) -> bool:
        return self._take(fcntl.LOCK_SH)

    def own(self) -> bool:
        return self._take(fcntl.LOCK_EX)

    def _take(self, how: int) -> bool:
        if self._lock < 0:
            return how == fcntl.LOCK_SH
        try:
            fcntl.flock(self._lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: whoever reads finds out that something is missing
            return True
        return True

    def marks(self) -> Marks:
        """Raises Differs."""
        try:
            fd = os.open(FILES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
            with open(fd, "rb") as file:
                return msgspec.json.decode(file.read(), type=Marks)
        except (OSError, msgspec.MsgspecError) as exc:
            raise Differs(f"{FILES} can't be read: {exc}") from exc

    def touch(self) -> None:
        with suppress(OSError):
            os.utime(LOCK, dir_fd=self.fd, follow_symlinks=False)


@contextmanager
def opened(path: Path) -> Iterator[Folder | None]:
    """None if there is no such entry."""
    try:
        folder = Folder(path)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield folder
    finally:
        folder.close()


def discard(path: Path) -> None:
    """Not while somebody reads it or still writes it: then a later start does it."""
    with suppress(OSError), opened(path) as folder:
        if folder is not None and (folder.own() or not (path / LOCK).exists()):
            shutil.rmtree(path, ignore_errors=True)
