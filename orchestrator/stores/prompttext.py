"""What of a prompt, its messages and its other fields can't reach every engine and every file unchanged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: How bytes that are no text begin, once they come out of a table.
BINARY = "data:;base64,"
_INT64 = range(-(2**63), 2**64)


def unclean(value: Any, key: str = "") -> Iterable[str]:
    """What in any text or number below `value` can't be sent, stored or tokenised faithfully."""
    if isinstance(value, str):
        yield from _unclean_text(value, key)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, str):
                yield f"{key or 'its'} key {name!r} is not text"
                continue
            yield from _unclean_text(name, f"a key of {key or 'it'}")
            yield from unclean(part, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for n, part in enumerate(value):
            yield from unclean(part, f"{key}[{n}]")
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        yield f"{key} is {value}, which is not JSON"
    elif isinstance(value, int) and value not in _INT64:
        yield f"{key} is a number of more than 64 bits; write it as text"


def _unclean_text(text: str, key: str) -> Iterable[str]:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        yield f"{key} has a lone surrogate (U+{ord(text[exc.start]):04X}) at character {exc.start}"
    if "\0" in text:
        yield f"{key} has a NUL at character {text.index(chr(0))}; some engines would cut the prompt there"
