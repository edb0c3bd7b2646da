"""Where the dashboard listens: `--listen ADDRESS:PORT`."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.definition.endpoint import IpAddress
from orchestrator.errors import InputError, Problem

DEFAULT: Final = "127.0.0.1:8765"
ANY_FREE_PORT: Final = "127.0.0.1:0"


@dataclass(frozen=True)
class Address:
    ip: IpAddress
    port: int

    @property
    def local(self) -> bool:
        return self.ip.is_loopback

    def url(self, port: int) -> str:
        """To be opened in a browser."""
        host = socket.gethostname() if self.ip.is_unspecified else str(self.ip)
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def address(text: str) -> Address:
    """ ":0" is a loopback address too: nobody shows a run to a network without saying so. Raises InputError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "127.0.0.1", parts.port
        if parts.netloc != text or "@" in text:
            raise ValueError
        ip = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise _refusal(text, "is no address in figures with a port", DEFAULT) from None
    if port is None:
        raise _refusal(text, "has no port", f"{text}:8765, or :0 for any free one")
    return Address(ip, port)


def bound(place: Address, text: str) -> socket.socket:
    """Listens there. Raises InputError where that can't be had."""
    family = socket.AF_INET6 if place.ip.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(place.ip), place.port), family=family)
    except OSError as exc:
        what = f"can't be listened at: {exc.strerror}"
        raise _refusal(text, what, f"another port, or {ANY_FREE_PORT} for any free one") from exc


def _refusal(text: str, what: str, suggestion: str) -> InputError:
    return InputError([Problem("--listen", "", f"{text!r} {what}", suggestion)])
