"""Prompts before they are tokenised."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orchestrator.readers.draws import Segment
from orchestrator.readers.tally import Tally
from orchestrator.stores import images


class RawPrompt(Struct, frozen=True):
    """One prompt before tokenising: `text` (or token ids) or `messages`, never both, or `segments` of random tokens;
    `continuation` for `task: score`. `where` is "prompts.jsonl:7". `images` are encoded files, in the order of their
    placeholders. `draw` is its place in the draw of a sample."""

    id: str
    text: str | list[int] | None
    messages: list[dict[str, Any]] | None
    fields: dict[str, Any]
    where: str
    continuation: str | list[int] | None = None
    images: tuple[bytes, ...] = ()
    segments: tuple[Segment, ...] = ()
    draw: bytes = b""

    def source(self) -> dict[str, Any]:
        """As the user gave it, without the id and without what is in data URLs."""
        if self.segments:
            return {"random_tokens": sum(one.tokens for one in self.segments), **self.fields}
        said: dict[str, Any] = {"prompt": self.text} if self.messages is None else {"messages": self.messages}
        more = {} if self.continuation is None else {"continuation": self.continuation}
        whole = {**said, **more, **self.fields}
        return images.abridged(whole) if self.images else whole


class Gathered(Struct, frozen=True):
    """Prompts in order; where `reading.sampled_later`, the sample is still to be drawn of them."""

    prompts: tuple[RawPrompt, ...]
    tally: Tally = Tally()
