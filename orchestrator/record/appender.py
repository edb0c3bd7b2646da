"""Appending that survives crashes and full disks, and never goes on into a file that nobody will find.

A failed append leaves the file as it was, so whoever appends next never glues to half a line.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from orchestrator.errors import JournalError
from orchestrator.record.disk import open_regular, trouble, write_all

#: Of a path where nothing is any more; any other error may pass.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
#: There a file that is removed while it is open gets another name.
_REMOVED_ON_NFS = ".nfs"


class Appender:
    """The one writer of one append-only file.

    `size` is the last good offset in bytes: all before it is on the disk. Every
    method raises JournalError, which names the file and the free space.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._broken = ""
        try:
            self._fd = open_regular(path, os.O_WRONLY | os.O_CREAT)
        except OSError as exc:
            raise JournalError(f"{path}: can't be opened for writing: {exc.strerror}") from exc

    def append(self, data: bytes) -> int:
        """Write, force to disk, and only then count it. Returns the offset of the data. Where the file is no longer the
        one at its path, nothing is written."""
        if self._broken:
            raise JournalError(self._broken)
        if gone := self._astray():
            raise JournalError(f"{self.path}: {gone}")
        offset = self.size
        try:
            write_all(self._fd, data, offset)
            os.fdatasync(self._fd)
        except BaseException as exc:
            # Also after a KeyboardInterrupt: bytes past `size` would outlive a shorter next line.
            self.cut(offset)
            if isinstance(exc, OSError):
                raise JournalError(trouble(self.path, exc, len(data))) from exc
            raise
        self.size = offset + len(data)
        return offset

    def cut(self, offset: int) -> None:
        """Back to an earlier good offset. If even that fails, no later append is accepted."""
        try:
            os.ftruncate(self._fd, offset)
            self.size = offset
        except OSError as exc:
            self._broken = f"{self.path}: half a record could not be cut off at byte {offset}: {exc.strerror}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._broken = f"{self.path}: already closed"

    def _astray(self) -> str:
        """What became of the file since it was opened, if anything; in doubt nothing. Not by its number of links, which
        some file systems don't count, nor by its inode alone, which on some may change."""
        try:
            here = os.fstat(self._fd)
            if here.st_size < self.size:
                return f"was cut short, from {self.size} bytes to {here.st_size}, by something else than this run"
            there = os.stat(self.path)
        except OSError as exc:
            return self._elsewhere() if exc.errno in _GONE else ""
        if os.path.samestat(here, there) or there.st_size == self.size:  # another of the same size: the next time
            return ""
        return f"was replaced by another file while this run wrote to it{self._lost}"

    def _elsewhere(self) -> str:
        now = Path(os.readlink(f"/proc/self/fd/{self._fd}"))
        if now.name.startswith(_REMOVED_ON_NFS) or not now.exists():
            return f"was removed while this run wrote to it{self._lost}"
        folder = shlex.quote(str(now.parent))
        how = f"--resume it with --run-dir {folder}" if now.name == self.path.name else "move it back"
        return f"was moved while this run wrote to it: it is {now} now; {how}"

    @property
    def _lost(self) -> str:
        return f", and with it the {self.size} bytes that it held"
