"""ZMTP by hand: what a peer can say that no library would say for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

GREETING_BYTES = 64


def greeting(mechanism: bytes = b"CURVE") -> bytes:
    """Version 3.0, as a client."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def command(body: bytes, *, claimed_bytes: int | None = None) -> bytes:
    """A long command frame; `claimed_bytes` is what it says of its size, true by default."""
    return b"\x06" + (len(body) if claimed_bytes is None else claimed_bytes).to_bytes(8, "big") + body


def asked_of(endpoint: str) -> tuple[bytes, bytes]:
    """The mechanism that a coordinator asks for there, and a first command of it that opens nothing."""
    if endpoint.startswith("ipc:"):
        return b"PLAIN", b"\x05HELLO\x02w1\x05guess"
    return b"CURVE", b"\x05HELLO" + bytes(194)


def connected(endpoint: str) -> socket.socket:
    """A plain connection to where a ZeroMQ socket listens."""
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        one = socket.socket(socket.AF_UNIX)
        one.connect(address)
    else:
        host, _, port = address.rpartition(":")
        one = socket.create_connection((host.strip("[]"), int(port)))
    return one


def hung_up(one: socket.socket, patience_s: float) -> bool:
    """Whether the other side ends the connection; what it says before is read and forgotten."""
    one.settimeout(patience_s)
    try:
        while one.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@dataclass(frozen=True)
class Ends:
    """One TCP connection of this process: its ports, and how the kernel looks after it."""

    ports: tuple[str, str]
    probing: tuple[int, ...]


def tcp_connections() -> Iterator[Ends]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), borrowed(int(name)) as one:
            if one.family != socket.AF_UNIX:
                yield Ends((str(one.getsockname()[1]), str(one.getpeername()[1])), _probing(one))


@contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """As a socket; stays open. Raises OSError if it is none."""
    one = socket.socket(fileno=fd)
    try:
        yield one
    finally:
        one.detach()


def _probing(one: socket.socket) -> tuple[int, ...]:
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    alive = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return (alive, *(one.getsockopt(socket.IPPROTO_TCP, option) for option in options))
