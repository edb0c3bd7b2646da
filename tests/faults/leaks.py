"""What a sweep may leave behind in the process that ran it, and on the machine. Exact: nothing is given time to go."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from tests.conftest import below_us, open_fds, os_threads, shm_entries, tagged
from tests.faults.cells import Places

LISTENING = "0A"
#: How a scripted worker calls its segments, with the incarnation behind.
SEGMENTS = "airlock-scripted-"


@dataclass(frozen=True)
class Snapshot:
    descriptors: frozenset[tuple[str, str]]
    threads: frozenset[str]
    children: frozenset[proc.ProcessRef]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            frozenset(open_fds().items()),
            frozenset(os_threads()),
            frozenset(below_us()),
        )


def left_since(
    before: Snapshot, places: Places, run_tag: str, incarnations: Sequence[str], pids: Iterable[int]
) -> dict[str, list[str]]:
    """By kind. `pids`: processes that told of themselves; they must be gone too, whatever their parent or tag."""
    gc.collect()
    now = Snapshot.take()
    found: dict[str, Iterable[object]] = {
        "descriptors": now.descriptors - before.descriptors,
        "threads": now.threads - before.threads,
        "children": now.children - before.children,
        "tagged": tagged(run_tag),
        "pids": [pid for pid in pids if (one := proc.stat(pid)) and not one.dead],
        "shm": [name for name in shm_entries() if name.startswith(SEGMENTS) and name.endswith(tuple(incarnations))],
        "ports": listening_at(places.address),
        "sockets": unix_sockets_below(places.root),
        "files": places.tmp.rglob("*"),
        "lock": [] if lock_is_free(places.run_dir / "lock") else ["held"],
    }
    return {kind: sorted(map(str, what)) for kind, items in found.items() if (what := list(items))}


def listening_at(address: str) -> list[str]:
    """Ports of TCP sockets that listen there. The kernel prints the four bytes as one number of this machine."""
    number = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [fields[1] for fields in lines if fields[3] == LISTENING and fields[1].startswith(number)]


def unix_sockets_below(folder: Path) -> list[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return [line.split(maxsplit=7)[7] for line in lines if f" {folder}/" in line]


def lock_is_free(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
