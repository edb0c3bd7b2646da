"""Which prompts of a file are taken: by their length in characters, and at random by a seed. Pure.

A prompt's place in the draw is the digest of the seed and of the prompt itself, and those with the smallest digests are
taken. So the sample is the same on every machine, whatever the order of the file, and a prompt that is added to the
file takes the place of one other at most. Where the same prompt stands in the file twice, the second one is drawn
for itself.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from orchestrator.definition.promptuse import Filter, Sample

T = TypeVar("T")


class Draw:
    """Gives each prompt its place in the draw."""

    def __init__(self, seed: int) -> None:
        self._seed = str(seed).encode()
        self._seen: dict[bytes, int] = {}

    def place(self, content: Iterable[Any]) -> bytes:
        """Smaller is drawn earlier. `content`: all that makes a prompt what it is, as JSON values."""
        digest = hashlib.sha256(msgspec.json.encode(list(content), order="sorted")).digest()
        nth = self._seen.get(digest, 0)
        self._seen[digest] = nth + 1
        return hashlib.sha256(b"%s/%d/%s" % (self._seed, nth, digest)).digest()


class Drawn(Generic[T]):
    """Those drawn first out of what is offered; no more than `count` are held at a time."""

    def __init__(self, sample: Sample | None) -> None:
        self._count = None if sample is None else sample.count
        self._held: list[tuple[int, int, T]] = []
        self.offered = 0

    def offer(self, place: bytes, item: T) -> None:
        entry = (-int.from_bytes(place), -self.offered, item)
        self.offered += 1
        if self._count is None:
            self._held.append(entry)
        elif len(self._held) < self._count:
            heapq.heappush(self._held, entry)
        elif entry[:2] > self._held[0][:2]:
            heapq.heapreplace(self._held, entry)

    def kept(self) -> list[T]:
        """In the order in which they were offered."""
        return [item for _, _, item in sorted(self._held, key=lambda entry: -entry[1])]


def characters(text: str | list[int] | None, messages: Iterable[Any] | None) -> int:
    """Of a prompt, or of all text in a chat; token ids have none."""
    if text is not None:
        return len(text) if isinstance(text, str) else 0
    return sum(_of_content(message.get("content")) for message in messages or ())


def _of_content(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) for part in content or () if part.get("type") == "text")


def too_long_or_short(limits: Filter, count: int) -> str:
    """Why a prompt of so many characters is left out, "" if it is not."""
    return _outside(count, limits.min_chars, limits.max_chars, "characters")


def outside_tokens(limits: Filter, count: int) -> str:
    return _outside(count, limits.min_prompt_tokens, limits.max_prompt_tokens, "tokens")


def _outside(count: int, least: int | None, most: int | None, unit: str) -> str:
    if least is not None and count < least:
        return f"have fewer than {least} {unit}"
    return f"have more than {most} {unit}" if most is not None and count > most else ""
