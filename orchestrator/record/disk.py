"""Writing that survives crashes and full disks: atomic replace, set aside; see `appender` for appending.

os.write may take only part of the data without an error when the disk is
full, so every write loops on the count.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import JournalError
from orchestrator.view.wording import bytes_text

CHUNK_BYTES = 1 << 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. Raises OSError for anything else: the opening of a FIFO would
    wait for a partner for ever, and the reading of some devices never ends."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise _not_a_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_a_file(path)
    return fd


def _not_a_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "a FIFO, device, socket or folder, where a regular file is expected", str(path))


def reading(path: Path) -> BinaryIO:
    """A regular file, open. Raises OSError."""
    return open(path, "rb", opener=lambda _name, flags: open_regular(path, flags))


def read_regular(path: Path) -> bytes:
    """All of it. Raises OSError."""
    with reading(path) as file:
        return file.read()


def write_all(fd: int, data: bytes, offset: int) -> None:
    """All of `data` at `offset`, however many calls it takes. Raises OSError."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view, offset = view[count:], offset + count


def write_atomic(path: Path, chunks: Iterable[bytes]) -> None:
    """Either the old file or the whole new one, also after a power cut. Raises JournalError."""
    temporary = path.with_name(f".{path.name}.tmp")
    fd = _open_new(temporary)
    try:
        size = 0
        for chunk in _gathered(chunks):
            write_all(fd, chunk, size)
            size += len(chunk)
        os.fsync(fd)
        os.replace(temporary, path)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise JournalError(trouble(path, exc)) from exc
    finally:
        os.close(fd)
    sync_folder(path.parent)


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same in fewer and larger ones."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        if len(gathered) >= CHUNK_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def set_aside(path: Path, offset: int) -> Path | None:
    """Move what stands after byte `offset` to a side file `<name>.torn-N`, and return it.

    The side file is on the disk before the original is cut. None if there is nothing
    after `offset`. Raises JournalError.
    """
    size = path.stat().st_size
    if size <= offset:
        return None
    side = _free_name(path)
    try:
        _copy_tail(path, offset, side)
        with open(path, "r+b") as file:
            file.truncate(offset)
            os.fsync(file.fileno())
    except OSError as exc:
        # Only once the original is cut does the copy mean anything.
        if path.stat().st_size == size:
            side.unlink(missing_ok=True)
        raise JournalError(trouble(side, exc, size - offset)) from exc
    return side


def sync_folder(folder: Path) -> None:
    """Make new names in `folder` durable. File systems that can't sync a folder are left alone."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise JournalError(trouble(folder, exc)) from exc
    finally:
        os.close(fd)


def trouble(path: Path, exc: OSError, wanted_bytes: int = 0) -> str:
    """What failed, where, and what the file system says about its room.

    "No space left" also comes from quotas, inode limits and calls that write nothing,
    so a full disk is claimed only where statvfs confirms it.
    """
    what = f"{path}: {exc.strerror or exc}" + (f" while writing {wanted_bytes} bytes" if wanted_bytes else "")
    try:
        room = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return what
    free = room.f_bavail * room.f_frsize
    what += f"; its file system has {bytes_text(free)} of {bytes_text(room.f_blocks * room.f_frsize)} free"
    if exc.errno not in _NO_ROOM:
        return what
    if room.f_files and not room.f_favail:
        return what + ", but no inodes"
    if free < max(wanted_bytes, room.f_frsize):
        return what + ": the disk is full"
    return what + ", so the disk is not full: look for a quota or a limit on file size"


def _open_new(path: Path) -> int:
    try:
        return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError as exc:
        raise JournalError(trouble(path, exc)) from exc


def _free_name(path: Path) -> Path:
    number = 1
    while (side := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    return side


def _copy_tail(path: Path, offset: int, side: Path) -> None:
    with open(path, "rb") as source, open(side, "xb") as target:
        source.seek(offset)
        while chunk := source.read(CHUNK_BYTES):
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    sync_folder(side.parent)
