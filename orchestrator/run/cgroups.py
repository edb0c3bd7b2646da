"""Files of the control groups that this process is in, by their two versions. Read only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def files(controller: str, name: str, *, version: int) -> list[Path]:
    """`name` in our group of a controller, then in each group above it up to the mount: those that there might be. In
    a container the path is often that of the host, and the mount already our own group."""
    kind, mounted, listed = ("cgroup", controller, controller) if version == 1 else ("cgroup2", "", "")
    mount, group = _mount(kind, mounted), _group(listed)
    if mount is None or group is None:
        return []
    parts = Path(group.lstrip("/")).parts
    return [mount.joinpath(*parts[:depth], name) for depth in range(len(parts), -1, -1)]


def _group(controller: str) -> str | None:
    """Of "4:cpu,cpuacct:/a/b" → "/a/b"; version 2 names no controller."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path
    return None


def _mount(kind: str, controller: str) -> Path | None:
    for found, folder, options in _mounts():
        if found == kind and (not controller or controller in options):
            return folder
    return None


def _mounts() -> Iterator[tuple[str, Path, list[str]]]:
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            yield kind, Path(before.split()[4]), options.split(",")
