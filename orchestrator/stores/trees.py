"""Copies of folders that strangers to us have written into: regular files of ours and nothing else.

What is read is described by size, CRC-32 and mode, so that a copy can be told
from the original later, after a power cut or a flipped bit too.

Compilers' caches may be moved, but for Triton's: its lists of what belongs to one
kernel name files by their whole path, and take one that is not there for a miss.
In a copy that is kept such a path begins with HERE, which is the target's path again in a copy of that.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from orchestrator.record.disk import CHUNK_BYTES, write_all

#: Inside a JSON string, as the path is that it stands for.
HERE = b"<this folder>"


class Mark(Struct, frozen=True, array_like=True):
    """What is known of one file. mode: its permission bits."""

    size: int
    crc: int
    mode: int


class Differs(Exception):
    """A file is not what its mark says."""


class TooLarge(Exception):
    """More bytes than allowed."""


Marks = dict[str, Mark]


def files_of(folder: Path, skipped: Collection[str] = ()) -> Iterator[str]:
    """The paths of its regular files that are ours, from there, "a/b.so"; `skipped` are such paths of folders.

    No link is followed; sockets, FIFOs and devices are passed over, as are names that are not UTF-8.
    """
    yield from _files_of(folder, "", frozenset(skipped))


def _files_of(folder: Path, below: str, skipped: frozenset[str]) -> Iterator[str]:
    with os.scandir(folder / below) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}{entry.name}"
        if path in skipped or not _is_text(entry.name) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_of(folder, f"{path}/", skipped)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _is_text(name: str) -> bool:
    return not any("\udc80" <= char <= "\udcff" for char in name)


def marks_of(folder: Path, skipped: Collection[str] = (), most_bytes: int | None = None) -> Marks:
    """Raises OSError, or TooLarge."""
    return _each(folder, None, skipped, most_bytes)


def copy(folder: Path, target: Path, skipped: Collection[str] = (), most_bytes: int | None = None) -> Marks:
    """All that `files_of` finds, into `target`, which holds none of it yet. Raises OSError, or TooLarge."""
    return _each(folder, target, skipped, most_bytes)


def _each(folder: Path, target: Path | None, skipped: Collection[str], most_bytes: int | None) -> Marks:
    found: Marks = {}
    left = most_bytes
    for path in files_of(folder, skipped):
        fd = _open(folder / path)
        try:
            found[path] = _pour(fd, path, target, left, moved=(_in_json(folder), HERE))
        finally:
            os.close(fd)
        left = None if left is None else left - found[path].size
    return found


def copy_marked(folder_fd: int, below: str, marks: Marks, target: Path) -> None:
    """The marked files under `below` of an open folder, wherever that may be moved meanwhile, into `target`.

    Raises Differs for one that is not as marked or not there; OSError for what `target` does not take.
    """
    for path, mark in marks.items():
        if not _is_inside(path):
            raise Differs(f"{path} lies outside")
        try:
            fd = _open(Path(below) / path, folder_fd)
        except OSError as exc:
            raise Differs(f"{path}: {exc.strerror}") from exc
        try:
            found = _pour(fd, path, target, mode=mark.mode, moving=(HERE, _in_json(target)))
        finally:
            os.close(fd)
        if (found.size, found.crc) != (mark.size, mark.crc):
            raise Differs(f"{path} has changed")


def _is_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path


def _open(path: Path, folder_fd: int | None = None) -> int:
    """Raises OSError for what is no regular file by now. O_NONBLOCK: a FIFO would wait for a writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "no regular file", str(path))
    return fd


def _pour(
    fd: int,
    path: str,
    target: Path | None,
    most_bytes: int | None = None,
    mode: int | None = None,
    *,
    moved: tuple[bytes, bytes] | None = None,
    moving: tuple[bytes, bytes] | None = None,
) -> Mark:
    """One open file, read and, with a target, written there under its path. No bit but of permissions outlives it;
    its time does, by which build tools tell what is older than what.

    moved, moving: a path inside a list of Triton's and what it is to be; the mark is of what was moved, and of
    what is yet to be
    """
    size = crc = at = 0
    found = os.fstat(fd)
    bits = (found.st_mode if mode is None else mode) & 0o755 | 0o600
    out = -1 if target is None else _new_file(target / path, bits)
    try:
        for chunk in _chunks(fd, moved if _is_list(path) else None):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            if most_bytes is not None and size > most_bytes:
                raise TooLarge
            if out >= 0:
                data = chunk.replace(*moving) if moving and _is_list(path) else chunk
                write_all(out, data, at)
                at += len(data)
        if out >= 0:
            os.utime(out, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        if out >= 0:
            os.close(out)
    return Mark(size, crc, bits)


def _chunks(fd: int, moved: tuple[bytes, bytes] | None) -> Iterator[bytes]:
    while chunk := os.read(fd, CHUNK_BYTES):
        yield chunk.replace(*moved) if moved else chunk


def _is_list(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith("__grp__") and name.endswith(".json")


def _in_json(folder: Path) -> bytes:
    return json.dumps(str(folder))[1:-1].encode()


def _new_file(target: Path, bits: int) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    return os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, bits)
