"""An answer that is made once and given to many: its bytes, the same compressed, and a tag by which a browser tells
whether it has them already."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

#: What is smaller is not worth it.
_COMPRESSED_FROM_BYTES: Final = 1000
_LEVEL: Final = 5
JSON: Final = "application/json"


@dataclass(frozen=True)
class Sheet:
    body: bytes
    kind: str = JSON

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.blake2b(self.body, digest_size=12).hexdigest()}"'

    @cached_property
    def compressed(self) -> bytes | None:
        return gzip.compress(self.body, _LEVEL, mtime=0) if len(self.body) >= _COMPRESSED_FROM_BYTES else None

    def answer(self, request: Request, headers: dict[str, str] | None = None) -> Response:
        told = {"etag": self.tag, "vary": "accept-encoding", **(headers or {})}
        if self.tag in _tags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=told)
        if self.compressed is None or "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.body, media_type=self.kind, headers=told)
        return Response(self.compressed, media_type=self.kind, headers={**told, "content-encoding": "gzip"})


def _tags(header: str) -> list[str]:
    """A proxy that compresses makes weak ones, W/"…", of those that it passes on."""
    return [one.strip().removeprefix("W/") for one in header.split(",")]


def sheet(value: Any) -> Sheet:
    return compressed(Sheet(msgspec.json.encode(value)))


def compressed(made: Sheet) -> Sheet:
    """The same, compressed here and now: where it delays nobody."""
    _ = made.tag, made.compressed
    return made
