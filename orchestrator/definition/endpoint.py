"""Endpoints that others dial, "tcp://ADDRESS[:PORT]", as people write them. Pure."""

from __future__ import annotations

import ipaddress
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
SCHEME: Final = "tcp://"
MAX_PORT: Final = 65535


class BadEndpoint(ValueError):
    """`suggestion`: what to write instead."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def endpoint(text: str) -> tuple[IpAddress, int]:
    """Address and port, 0 where none is given. Raises BadEndpoint."""
    address, port = _parted(text)
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise BadEndpoint("needs an address of this machine in figures", f"{SCHEME}127.0.0.1") from None
    if ip.is_unspecified:
        raise BadEndpoint("is no address that a worker can dial", "the address workers reach this machine by")
    if port and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= MAX_PORT):
        raise BadEndpoint(f"has no port between 1 and {MAX_PORT}", "leave it out for a free one")
    return ip, int(port or 0)


def _parted(text: str) -> tuple[str, str]:
    """Address and port; an IPv6 address stands in brackets."""
    if not text.startswith(SCHEME):
        raise BadEndpoint("is no TCP endpoint", f"{SCHEME}127.0.0.1")
    rest = text.removeprefix(SCHEME)
    if rest.startswith("["):
        address, _, port = rest.removeprefix("[").partition("]")
        return address, port.removeprefix(":")
    address, _, port = rest.partition(":")
    return address, port
