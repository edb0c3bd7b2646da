"""The logs of a run's workers: which there are, and the end of one. Nothing outside logs/ is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from orchestrator.view.wording import clean

FOLDER: Final = "logs"
TAIL_BYTES: Final = 64 * 1024
LISTED: Final = 200
LINE_CHARACTERS: Final = 2000


def listed(run_dir: Path) -> dict[str, Any]:
    """The newest LISTED, and how many more there are."""
    found = sorted(_logs(run_dir), key=lambda one: one[1].st_mtime, reverse=True)
    logs = [{"name": clean(name), "bytes": info.st_size, "at": info.st_mtime} for name, info in found[:LISTED]]
    return {"logs": logs, "not_listed": len(found) - len(logs)}


def tail(run_dir: Path, shown: str) -> dict[str, Any] | None:
    """The last TAIL_BYTES of the log that `listed` calls so, in lines that are safe to show; None if there is none."""
    name = next((name for name, _ in _logs(run_dir) if clean(name) == shown), None)
    if name is None:
        return None
    try:
        with _folder(run_dir) as folder:
            size, data = _end(name, folder)
    except OSError as exc:
        return {"name": shown, "bytes": None, "before_bytes": None, "lines": [], "reason": exc.strerror}
    lines = data.replace(b"\0", b"").decode("utf-8", errors="replace").splitlines()
    return {
        "name": shown,
        "bytes": size,
        "before_bytes": size - len(data),
        "lines": [clean(line[:LINE_CHARACTERS]) for line in lines],
        "reason": "",
    }


def _end(name: str, folder: int) -> tuple[int, bytes]:
    """How long it is, and whole lines of its end."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - TAIL_BYTES))
        data = file.read(TAIL_BYTES)
    if size > len(data) and b"\n" in data:
        data = data[data.index(b"\n") + 1 :]
    return size, data


def _logs(run_dir: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files. None where there is no folder of logs yet."""
    try:
        with _folder(run_dir) as folder, os.scandir(folder) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    yield entry.name, info
    except OSError:
        return


@contextmanager
def _folder(run_dir: Path) -> Iterator[int]:
    fd = os.open(run_dir / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def size(run_dir: Path) -> dict[str, int]:
    """Of all files of a run, in bytes."""
    with os.scandir(run_dir) as entries:
        infos = [entry.stat(follow_symlinks=False) for entry in entries]
    own = sum(info.st_size for info in infos if stat.S_ISREG(info.st_mode))
    return {"bytes": own + sum(info.st_size for _, info in _logs(run_dir))}
