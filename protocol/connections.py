"""The connections at one listening socket, and which of them is one too many.

libzmq owns the descriptors; what is done here to one of them is done only after
looking that it still is such a connection. Standard library only.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

MAX_CONNECTIONS = 256
#: Room for those that come while nobody looks. Whom we start inherits it.
WANTED_DESCRIPTORS = 65536
#: How often connections that ended untold are looked for, at most.
PRUNE_S = 1.0
CREDENTIALS = struct.Struct("3i")

T = TypeVar("T")


def is_local(endpoint: str) -> bool:
    """Whether only processes of this machine can dial it: a Unix socket, not a TCP port."""
    return endpoint.startswith("ipc:")


class Connections:
    """Of `endpoint`, by peer: a process at an ipc socket, an address at a TCP port."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._peers: dict[int, Hashable] = {}
        self._of: dict[Hashable, list[int]] = {}
        self._born: dict[int, int] = {}
        self._pruned_at = 0.0

    def born(self, fd: int) -> int:
        """Tells a connection from those that had its number before it; from any thread. libzmq gives a number away
        once its connection is closed, and a connection says nothing before it was let in, which is after `opened`."""
        return self._born.get(fd, 0)

    def opened(self, fd: int) -> bool:
        """False, and it is hung up, for one of another user at a local socket."""
        self._born[fd] = self._born.get(fd, 0) + 1
        self.closed(fd)
        if self._with(fd, _is_of_another_user):
            self.hang_up(fd)
            return False
        peer = self._with(fd, _peer)
        self._peers[fd] = peer
        self._of.setdefault(peer, []).append(fd)
        return True

    def closed(self, fd: int) -> None:
        if fd not in self._peers:
            return
        peer = self._peers.pop(fd)
        self._of[peer].remove(fd)
        if not self._of[peer]:
            del self._of[peer]

    def descriptors(self) -> list[int]:
        """Of all that are open; safe from any thread."""
        return list(self._peers)

    def evict(self) -> bool:
        """If there are too many, the peer with most of them loses its newest: so none can shut out the others."""
        if len(self._peers) <= MAX_CONNECTIONS:
            return False
        self._prune()
        if len(self._peers) <= MAX_CONNECTIONS:
            return False
        newest = max(self._of.values(), key=len)[-1]
        self.closed(newest)
        return self.hang_up(newest)

    def hang_up(self, fd: int) -> bool:
        """libzmq closes it then, as if the peer had left."""
        return self._with(fd, _shut) or False

    def _prune(self) -> None:
        """A connection that another took over, with the same identity, ends without an event."""
        if time.monotonic() - self._pruned_at >= PRUNE_S:
            for fd in [fd for fd in self._peers if not self._with(fd, lambda _connection: True)]:
                self.closed(fd)
            self._pruned_at = time.monotonic()

    def _with(self, fd: int, act: Callable[[socket.socket], T]) -> T | None:
        """What `act` gives for the connection, None if `fd` is none of ours: libzmq may have closed it and the
        number be another thing's. Makes no descriptor, since there may be none left."""
        local, address = is_local(self.endpoint), self.endpoint.partition("://")[2]
        family = socket.AF_UNIX if local else socket.AF_INET6 if "[" in address else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM, 0, fileno=fd)
        except OSError:
            return None
        try:
            name = connection.getsockname()
            ours = name == address if local else name[:2] == _host_and_port(address)
            return act(connection) if ours else None
        except OSError:
            return None
        finally:
            connection.detach()


def _peer(connection: socket.socket) -> Hashable:
    if connection.family != socket.AF_UNIX:
        return str(connection.getpeername()[0])
    return _pid_and_uid(connection)[0]


def _is_of_another_user(connection: socket.socket) -> bool:
    return connection.family == socket.AF_UNIX and _pid_and_uid(connection)[1] != os.geteuid()


def _pid_and_uid(connection: socket.socket) -> tuple[int, int]:
    """As the kernel knows who connected."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(credentials)
    return pid, uid


def _shut(connection: socket.socket) -> bool:
    connection.shutdown(socket.SHUT_RDWR)
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def raise_descriptor_limit() -> None:
    """Both vLLM and SGLang raise it so far, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
