"""Which TCP ports the processes of a worker listen on, as the kernel tells.

Nobody hands a port number to an engine here. vLLM, SGLang and gloo take what
the kernel gives for port 0, ZeroMQ goes over ipc in the worker's own TMPDIR,
and the rendezvous of torch.distributed is a file there. So two runs on one
host can't collide, and no number can be taken between the choice and the bind.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.proc import ProcessRef

LISTEN = "0A"


@dataclass(frozen=True, order=True)
class Listening:
    address: str
    port: int
    pid: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port} (pid {self.pid})"


def listening(tree: Iterable[ProcessRef]) -> list[Listening]:
    """Ports that processes of the tree have open for connections now, in their own network namespaces."""
    found = set()
    for ref in tree:
        held = _sockets(ref.pid)
        found |= {Listening(address, port, ref.pid) for inode, address, port in _listeners(ref.pid) if inode in held}
    return sorted(found)


def still_open(ports: Iterable[Listening]) -> list[Listening]:
    """Those that somebody in our network namespace still listens on. The pid is of the past."""
    now = {(address, port) for _, address, port in _listeners(os.getpid())}
    return [one for one in ports if (one.address, one.port) in now]


def _sockets(pid: int) -> set[int]:
    inodes = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.readlink(link)
                if target.startswith("socket:["):
                    inodes.add(int(target[8:-1]))
    return inodes


def _listeners(pid: int) -> Iterator[tuple[int, str, int]]:
    """Inode, address and port of every listener in the network namespace of `pid`."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (proc.read_bytes(pid, f"net/{name}") or b"").decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                address, _, port = fields[1].partition(":")
                yield int(fields[9]), _address(family, address), int(port, 16)


def _address(family: int, text: str) -> str:
    """The kernel prints 32-bit words in the machine's own order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
