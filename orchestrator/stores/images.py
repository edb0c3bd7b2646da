"""Images as prompts name them: a file beside the prompt file, or a data URL. Read once, before anything starts.

An image is known by its header alone; engines decode it. Nothing is downloaded, here or in
a worker: two runs of one sweep could see different pictures.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.stores.named import Named, open_file

MAX_IMAGE_BYTES = 32 * 1024 * 1024
KINDS = "PNG, JPEG or WebP"
_DATA_URL = re.compile(r"data:(image/[\w.+-]+)?;base64,", re.ASCII)
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
#: The part of a data URL that is kept where the prompt is shown.
_SHOWN_CHARACTERS = 40


class NoImage(ValueError):
    """A sentence on why what is named can't be used as an image."""


class Place(Struct, frozen=True):
    """Where a prompt names an image: "images[0]" or "messages[1].content[0].image". `reference` is what
    stands there; None for a part that takes the next one of the prompt's `images`."""

    key: str
    reference: Any


class Album:
    """Reads images; a relative path is taken from `base`. A file that several prompts name is read once."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._files: dict[Path, bytes] = {}

    def take(self, reference: Any) -> bytes:
        """The encoded image. Raises NoImage."""
        if not isinstance(reference, str) or not reference:
            raise NoImage("is no image: write a file's name or a data URL")
        if reference.startswith("data:"):
            return _checked(_decoded(reference))
        if scheme := _SCHEME.match(reference):
            raise NoImage(f"is a {scheme[0]} address, and nothing is downloaded: save it beside the prompts")
        named = Named(reference, self._base, "the prompt file's")
        if named.path not in self._files:
            self._files[named.path] = _checked(_read(named))
        return self._files[named.path]


def _read(named: Named) -> bytes:
    try:
        with open_file(named.path) as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as exc:
        hint = named.instead(Path.is_file)
        message = f"{named} can't be read: {getattr(exc, 'strerror', None) or exc}"
        raise NoImage(f"{message} ({hint})" if hint else message) from exc


def _decoded(url: str) -> bytes:
    head = _DATA_URL.match(url)
    if head is None:
        raise NoImage("is no data URL of the form data:image/png;base64,…")
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise NoImage(f"is no valid base64: {exc}") from exc


def _checked(data: bytes) -> bytes:
    if len(data) > MAX_IMAGE_BYTES:
        raise NoImage(f"has more than {MAX_IMAGE_BYTES // 1024**2} MiB")
    if kind_of(data) is None:
        raise NoImage(f"is neither {KINDS.replace(' or ', ' nor ')}" if data else "is empty")
    return data


def kind_of(data: bytes) -> str | None:
    """By the first bytes; None if it is none that every engine reads."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    return "webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


# --- where they stand -----------------------------------------------------------


def places(said: Mapping[str, Any]) -> Iterator[Place]:
    """Of a prompt whose shape is right, in the order of their placeholders."""
    listed = [Place(f"images[{n}]", one) for n, one in enumerate(said.get("images") or ())]
    parts = [place for n, message in enumerate(said.get("messages") or ()) for place in _of_message(n, message)]
    if "messages" not in said:
        yield from listed
        return
    own = iter(listed)
    for place in parts:
        yield place if place.reference is not None else next(own)


def _of_message(number: int, message: Mapping[str, Any]) -> Iterator[Place]:
    content = message.get("content")
    for n, part in enumerate(content if isinstance(content, list | tuple) else ()):
        if is_image(part):
            key, reference = _named(part)
            yield Place(".".join(filter(None, (f"messages[{number}].content[{n}]", key))), reference)


def is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def _named(part: Mapping[str, Any]) -> tuple[str, Any]:
    """The key below a part that names its image, and what it says; ("", None) where nothing does."""
    if part["type"] == "image_url":
        url = part.get("image_url")
        return ("image_url.url", url.get("url", "")) if isinstance(url, Mapping) else ("image_url", url or "")
    return next(((name, part[name]) for name in ("image", "path", "url") if part.get(name) is not None), ("", None))


def shape(said: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """(key, message) of what is wrong with `images` and how many there are of them."""
    listed = said.get("images") or ()
    if not isinstance(listed, list | tuple):
        yield "images", "is no list of files or data URLs"
        return
    messages = said.get("messages")
    if not isinstance(messages, list | tuple):
        return
    parts = [p for n, m in enumerate(messages) if isinstance(m, Mapping) for p in _of_message(n, m)]
    bare = [part.key for part in parts if part.reference is None]
    if listed and len(bare) != len(listed):
        yield "images", f'has {len(listed)}, and {len(bare)} parts {{"type": "image"}} of the messages name none'
    elif len(bare) != len(listed):
        yield from ((key, 'names no image: {"type": "image", "image": "FILE"}') for key in bare)


def abridged(value: Any) -> Any:
    """`value` with the data URLs in it cut short: what is shown and exported need not hold the pictures."""
    if isinstance(value, str) and _DATA_URL.match(value) and len(value) > _SHOWN_CHARACTERS:
        return f"{value[:_SHOWN_CHARACTERS]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {key: abridged(part) for key, part in value.items()}
    return [abridged(part) for part in value] if isinstance(value, list | tuple) else value
