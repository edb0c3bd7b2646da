"""Results that are not what was asked: what a scripted worker can do to the answer of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from protocol.codec import MAX_MESSAGE_BYTES
from protocol.records import Generation


def apply(names: Iterable[str], generations: list[Generation]) -> list[Generation]:
    """`names` of RESULTS, in order."""
    for name in names:
        generations = RESULTS[name](generations)
    return generations


def _oversized(generations: list[Generation]) -> list[Generation]:
    return [replace(generations[0], text="x" * MAX_MESSAGE_BYTES), *generations[1:]]


def _unencodable(generations: list[Generation]) -> list[Generation]:
    return [replace(generations[0], generated_tokens=2**70), *generations[1:]]


RESULTS: dict[str, Callable[[list[Generation]], list[Generation]]] = {
    "missing": lambda generations: generations[1:],
    "duplicate": lambda generations: [*generations, generations[0]],
    "surplus": lambda generations: [*generations, replace(generations[0], prompt_id="nobody-asked")],
    "wrong_digest": lambda generations: [replace(generations[0], prompt_digest="0" * 16), *generations[1:]],
    "oversized": _oversized,
    "unencodable": _unencodable,
    "surrogates": lambda generations: generations,  # done when the text is made, see ScriptedBackend
}
