"""Where workers that are not local dial back to: an address of this machine that they can reach."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from orchestrator.config import SweepConfig
from orchestrator.definition.endpoint import SCHEME, BadEndpoint, IpAddress, endpoint
from orchestrator.errors import InputError, Problem

_LISTEN: Final = "cluster.listen"


def listening(text: str) -> str:
    """The endpoint to bind for `--listen`, "" for none. Raises InputError, also where it can't be had."""
    if not text:
        return ""
    try:
        ip, port = endpoint(text)
    except BadEndpoint as exc:
        raise _refusal(text, str(exc), exc.suggestion) from None
    _try(text, ip, port)
    host = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"{SCHEME}{host}:{port or '*'}"


def dialled(listen: str, config: SweepConfig) -> str:
    """The endpoint to bind for workers that dial back, "" where there are none. `listen`: that of `--listen`, which
    counts first. Raises InputError."""
    if listen or config.launcher == "local":
        return listening(listen)
    text = config.cluster.listen or own_endpoint()
    try:
        return listening(text)
    except InputError as exc:
        mine = "" if config.cluster.listen else "is not given, and this machine's name stands for what won't do: "
        found = [config.places.problem(_LISTEN, f"{mine}{one.message}", one.suggestion) for one in exc.problems]
        raise InputError(found) from None


def own_endpoint() -> str:
    """At the address that this machine's name stands for. Raises InputError where no other machine could dial that."""
    name = socket.gethostname()
    try:
        found = [str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        why = f"{name} stands for {', '.join(found)}"
    except OSError as exc:
        found, why = [], f"{name} stands for no address: {exc.strerror or exc}"
    usable = [one for one in found if not ipaddress.ip_address(one).is_loopback]
    if not usable:
        hint = f"write cluster.listen: {SCHEME}ADDRESS, the address that the nodes reach this machine by"
        raise InputError([Problem("", _LISTEN, f"is not given, and {why}", hint)])
    return f"{SCHEME}[{usable[0]}]" if ":" in usable[0] else f"{SCHEME}{usable[0]}"


def _try(text: str, ip: IpAddress, port: int) -> None:
    """Before anything starts, not in the middle of it."""
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    try:
        socket.create_server((str(ip), port), family=family).close()
    except OSError as exc:
        raise _refusal(text, f"can't be listened at: {exc.strerror}", "an address and a free port of its own") from exc


def _refusal(text: str, what: str, suggestion: str) -> InputError:
    return InputError([Problem("--listen", "", f"{text!r} {what}", suggestion)])
