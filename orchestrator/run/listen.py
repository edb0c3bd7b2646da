"""Where workers that are not local dial back to: an address of this machine that they can reach."""

from __future__ import annotations

import ipaddress
import socket

from orchestrator.errors import InputError, Problem

SCHEME = "tcp://"
MAX_PORT = 65535


def listening(text: str) -> str:
    """The endpoint to bind for `--listen`, "" for none. Raises InputError, also where it can't be had."""
    if not text:
        return ""
    address, port = _parted(text)
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise _refusal(text, "needs an address of this machine in figures", f"{SCHEME}127.0.0.1") from None
    if ip.is_unspecified:
        raise _refusal(text, "is no address that a worker can dial", "the address workers reach this machine by")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT):
        raise _refusal(text, f"has no port between 1 and {MAX_PORT}", "leave it out for a free one")
    _try(text, ip, int(port or 0))
    host = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"{SCHEME}{host}:{port or '*'}"


def _parted(text: str) -> tuple[str, str]:
    """Address and port; an IPv6 address stands in brackets."""
    if not text.startswith(SCHEME):
        raise _refusal(text, "is no TCP endpoint", f"{SCHEME}127.0.0.1")
    rest = text.removeprefix(SCHEME)
    if rest.startswith("["):
        address, _, port = rest.removeprefix("[").partition("]")
        return address, port.removeprefix(":")
    address, _, port = rest.partition(":")
    return address, port


def _try(text: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    """Before anything starts, not in the middle of it."""
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    try:
        socket.create_server((str(ip), port), family=family).close()
    except OSError as exc:
        raise _refusal(text, f"can't be listened at: {exc.strerror}", "an address and a free port of its own") from exc


def _refusal(text: str, what: str, suggestion: str) -> InputError:
    return InputError([Problem("--listen", "", f"{text!r} {what}", suggestion)])
