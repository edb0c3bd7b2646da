"""One output in a few arrays instead of many objects, as the reference's are held in memory all at once. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from math import isfinite, nan

from msgspec import Struct, field

from orchestrator.record.output import Record
from protocol.records import FLAG_DEGENERATE, FLAG_NO_TOKEN_IDS


class Told(Struct, frozen=True):
    """What a method answered to one prompt, or what it makes of a given continuation.

    ids      the output's tokens; empty where the task was to score
    chosen   log-probability of each token, NaN where it is not known; None where none were asked for
    top_ids, top   of each position the k likeliest tokens and theirs
    failed   why there is no output that could be compared; empty if there is one
    """

    prompt_id: str
    digest: str
    ids: array[int]
    text: str
    scored: bool
    degenerate: bool
    failed: str
    k: int = 0
    chosen: array[float] | None = None
    top_ids: array[int] = field(default_factory=lambda: array("I"))
    top: array[float] = field(default_factory=lambda: array("f"))

    def top_at(self, position: int) -> dict[int, float]:
        """Token → log-probability of the likeliest tokens there, as far as known."""
        here = slice(position * self.k, (position + 1) * self.k)
        pairs = zip(self.top_ids[here], self.top[here], strict=True)
        return {token: value for token, value in pairs if isfinite(value)}

    def chosen_at(self, position: int) -> float | None:
        if self.chosen is None or position >= len(self.chosen):
            return None
        value = self.chosen[position]
        return value if isfinite(value) else None

    @property
    def fingerprint(self) -> int:
        """Equal for equal outputs, and never 0."""
        return int.from_bytes(hashlib.sha256(self.ids.tobytes()).digest()[:8], "big") or 1


def told(record: Record) -> Told:
    found, k = record.logprobs, 0
    if found is not None and found.top_ids:
        k = len(found.top_ids[0])
    return Told(
        prompt_id=record.prompt_id,
        digest=record.prompt_digest,
        ids=array("I", record.token_ids),
        text=record.text,
        scored=record.finish_reason == "scored",
        degenerate=FLAG_DEGENERATE in record.flags,
        failed=_failed(record),
        k=k,
        chosen=None if found is None else _floats(found.chosen),
        top_ids=array("I", (one for row in found.top_ids for one in row)) if found else array("I"),
        top=_floats(one for row in found.top for one in row) if found else array("f"),
    )


def _failed(record: Record) -> str:
    if record.error is not None:
        return record.error.message or record.error.cls
    return "the engine told its text only, and no token ids" if FLAG_NO_TOKEN_IDS in record.flags else ""


def _floats(values: Iterable[float | None]) -> array[float]:
    return array("f", (nan if one is None else one for one in values))
