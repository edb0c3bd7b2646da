"""Addresses of the web: what is one, and which are secrets by themselves. Pure."""

from __future__ import annotations

import re
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


def is_secret(url: re.Match[str]) -> bool:
    """Of a match of URL: whether whoever knows it may use it."""
    host = url[2].rpartition("@")[2].partition(":")[0].lower()
    keyed = any(host == one or host.endswith(f".{one}") for one in _KEYED_HOSTS)
    return "@" in url[2] or keyed or bool(SECRETIVE.search(url[3].partition("?")[2]))


def unfit_value(key: str, value: str) -> str:
    """Why the environment's value can't stand where `key` names it, "" if it can; in words that do not tell it."""
    if key == "url":
        return "" if URL.fullmatch(value.strip()) else "is no address of the web"
    return "" if value.isascii() and value.strip().isprintable() else "is not one line of ASCII"
