"""Who may ask what. Pure but for the making of a token.

On a loopback address nobody needs a token unless one is given, but without one the name that the browser asked for must
be one of this machine's own: else a page of another site could have its name point here and read along. It could not
have the cookie, which belongs to the name that it was given under.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import InputError, Problem

TOKEN_VARIABLE: Final = "AIRLOCK_SERVE_TOKEN"
LEAST_CHARACTERS: Final = 16
METHODS: Final = ("GET", "HEAD")
LOCAL_NAMES: Final = frozenset({"localhost", "localhost."})
BEARER: Final = "bearer "
#: The cookie holds no token, so that who reads one can't ask as anybody else with the other.
_SALT: Final = b"airlock dashboard cookie"


@dataclass(frozen=True)
class Refusal:
    status: int
    reason: str


@dataclass(frozen=True)
class Access:
    """`token`: what must be shown; "" for none, which is for loopback addresses only."""

    token: str
    cookie_name: str = "airlock"

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """`headers`: names in lower case."""
        if method not in METHODS:
            return Refusal(405, "it only reads: GET and HEAD")
        if not self.token and not is_local_name(headers.get("host", "")):
            return Refusal(403, "the name asked for is none of this machine's own: ask for localhost, or use a token")
        if self.token and not is_open(path) and not self._knows(headers):
            return Refusal(401, "a token is needed")
        return None

    @property
    def cookie(self) -> str:
        return hmac.new(self.token.encode(), _SALT, hashlib.sha256).hexdigest()

    def shows_token(self, headers: Mapping[str, str]) -> bool:
        shown = headers.get("authorization", "")
        bearer = shown[: len(BEARER)].lower() == BEARER
        return bearer and _same(shown[len(BEARER) :].strip(), self.token)

    def _knows(self, headers: Mapping[str, str]) -> bool:
        shown = _cookies(headers.get("cookie", ""), self.cookie_name)
        return self.shows_token(headers) or any(_same(one, self.cookie) for one in shown)


def is_open(path: str) -> bool:
    """Holds nothing of any run."""
    return path in ("/healthz", "/login") or path.startswith("/assets/")


def is_local_name(host: str) -> bool:
    """`host`: as a browser sends it, "localhost:8765"."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return name.lower() in LOCAL_NAMES or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _same(shown: str, wanted: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), wanted.encode())


def _cookies(header: str, name: str) -> list[str]:
    """All of that name. Browsers send those of other ports along, which may hold anything: at a lone one that is odd
    http.cookies gives up the whole header."""
    pairs = (part.partition("=") for part in header.split(";"))
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def given_token(file: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Of the file, else of the environment; "" if neither is given. Raises InputError for one that can't be used."""
    if file is None:
        found = environ.get(TOKEN_VARIABLE, "").strip()
        return _checked(found, TOKEN_VARIABLE) if found else ""
    try:
        return _checked(Path(file).read_text(encoding="utf-8").strip(), file)
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "is no text"
        raise InputError([Problem("--token-file", "", f"{file}: {reason}")]) from exc


def _checked(token: str, where: str) -> str:
    if len(token) < LEAST_CHARACTERS or not all("!" <= character <= "~" for character in token):
        what = f"holds no token: {LEAST_CHARACTERS} characters or more, without spaces, in ASCII"
        raise InputError([Problem(where, "", what, "e.g. made by: openssl rand -hex 32")])
    return token


def new_token() -> str:
    return secrets.token_urlsafe(32)
