"""Addresses of the web: what is one, which can be posted to, and which are secrets by themselves. Pure."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

#: Scheme, host with all that stands beside it, and the rest.
URL: Final = re.compile(r"(https?)://([^\s/?#]+)([^\s]*)")
SECRETIVE: Final = re.compile(r"auth|token|secret|key|cookie|passw|signature", re.IGNORECASE)
#: Hosts whose addresses are keys themselves.
_KEYED_HOSTS: Final = (
    *("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "outlook.office.com", "hc-ping.com"),
    *("logic.azure.com", "api.powerplatform.com", "api.telegram.org", "hooks.zapier.com", "maker.ifttt.com"),
    *("open.feishu.cn", "open.larksuite.com"),
)
_LABEL: Final = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
#: Of a whole name, as the domain name system has it.
_LONGEST_NAME: Final = 253
_PORTS: Final = 1 << 16
#: An address of IPv6 in its brackets, or a name; and a port.
_AUTHORITY: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::(.{0,9}))?")
#: A name that ends in a number is an address for every resolver.
_NUMERIC: Final = re.compile(r"(?:.*\.)?[0-9]+\.?")


def is_secret(url: re.Match[str]) -> bool:
    """Of a match of URL: whether whoever knows it may use it."""
    host = url[2].rpartition("@")[2].partition(":")[0].lower().rstrip(".")
    keyed = any(host == one or host.endswith(f".{one}") for one in _KEYED_HOSTS)
    return "@" in url[2] or keyed or bool(SECRETIVE.search(url[3].partition("?")[2]))


def unpostable(url: str) -> str:
    """Why nothing can be posted there, whoever answers, "" if something can; in words that do not tell it."""
    match = URL.fullmatch(url)
    if match is None:
        return "is no address of the web"
    if not url.isascii():
        return "is not ASCII: its host is written with xn--, and its path with %"
    if not url.isprintable():
        return "holds a control character"
    if "@" in match[2]:
        return "has a user before its host, and none is sent: that is for a header, Authorization"
    return _unreachable(match[2])


def _unreachable(authority: str) -> str:
    """Host and port, as they stand in an address."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return "has a host that is none"
    bracketed, name, port = match.groups()
    if not (bracketed or name):
        return "has no host"
    if not (_is_ip(IPv6Address, bracketed) if bracketed else _is_name(name)):
        return "has a host that is none"
    return "" if not port or (port.isdigit() and 0 < int(port) < _PORTS) else "has a port that is none, from 1 to 65535"


def _is_name(host: str) -> bool:
    if _NUMERIC.fullmatch(host):
        return _is_ip(IPv4Address, host)
    return bool(_NAME.fullmatch(host)) and len(host.rstrip(".")) <= _LONGEST_NAME


def _is_ip(kind: type[IPv4Address | IPv6Address], host: str) -> bool:
    try:
        kind(host)
    except AddressValueError:
        return False
    return True


def unfit_value(key: str, value: str) -> str:
    """Why the environment's value can't stand where `key` names it, "" if it can; in words that do not tell it."""
    if key == "url":
        return unpostable(value.strip())
    return "" if value.isascii() and value.strip().isprintable() else "is not one line of ASCII"
