"""Real small disks: a tmpfs, and a folder of btrfs under a quota. Where they can't be had the test is skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

KIB, MIB = 1024, 1024 * 1024
#: btrfs needs so much for itself.
IMAGE_BYTES = 128 * MIB


def done(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0


@contextmanager
def mounted(folder: Path, *mount: str | Path) -> Iterator[Path]:
    """`mount` with the folder as its last argument; unmounted at the end."""
    folder.mkdir(exist_ok=True)
    if not done("mount", *mount, folder):
        pytest.skip(f"mount {' '.join(map(str, mount))} is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def small(folder: Path, size_bytes: int, inodes: int = 0) -> AbstractContextManager[Path]:
    """`inodes`: of its files and folders, its own among them; 0 for as many as will fit."""
    return mounted(folder, "-t", "tmpfs", "-o", f"size={size_bytes},nr_inodes={inodes},mode=755", "airlock-test")


def enlarge(folder: Path, size_bytes: int, inodes: int = 0) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_bytes},nr_inodes={inodes}", str(folder)], check=True)


@contextmanager
def under_quota(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A folder that may hold so many bytes, on a disk with far more room: what root is held to as well."""
    if not shutil.which("mkfs.btrfs") or not shutil.which("btrfs"):
        pytest.skip("btrfs-progs are not installed: no quota that holds for root")
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    if not done("mkfs.btrfs", "-q", image):
        pytest.skip("mkfs.btrfs failed")
    with mounted(folder.with_suffix(".disk"), "-o", "loop", image) as disk:
        part = disk / "part"
        if not (done("btrfs", "quota", "enable", disk) and done("btrfs", "subvolume", "create", part)):
            pytest.skip("btrfs has no quotas here")
        allow(part, size_bytes)
        yield part
    image.unlink()


def allow(part: Path, size_bytes: int) -> None:
    subprocess.run(["btrfs", "qgroup", "limit", str(size_bytes), str(part)], check=True)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Takes all room but so many bytes; the file that does."""
    ballast = folder / "ballast"
    chunk = bytes(4 * KIB)
    with ballast.open("wb", buffering=0) as file:
        try:
            while free_bytes(folder) > leave_bytes and file.write(chunk):
                pass
        except OSError:
            return ballast
    return ballast
