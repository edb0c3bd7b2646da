"""JSON as `json.dumps(…, indent=2)` writes it, piece by piece: an iterator is a list, an item at a time. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_STEP: Final = "  "


def pieces(value: Any, pad: str = "") -> Iterator[str]:
    if isinstance(value, Iterator):
        yield from _joined("[]", (pieces(one, pad + _STEP) for one in value), pad)
    elif isinstance(value, Mapping) and _comes_in_pieces(value):
        yield from _joined("{}", (_named(name, one, pad + _STEP) for name, one in value.items()), pad)
    else:
        yield json.dumps(value, indent=len(_STEP)).replace("\n", f"\n{pad}")


def whole(value: Any) -> Any:
    """With lists in the place of iterators."""
    if isinstance(value, Iterator):
        return list(value)
    return {name: whole(one) for name, one in value.items()} if _comes_in_pieces(value) else value


def _comes_in_pieces(value: Any) -> bool:
    return isinstance(value, Iterator) or (isinstance(value, dict) and any(map(_comes_in_pieces, value.values())))


def _named(name: str, value: Any, pad: str) -> Iterator[str]:
    yield f"{json.dumps(name)}: "
    yield from pieces(value, pad)


def _joined(brackets: str, items: Iterator[Iterator[str]], pad: str) -> Iterator[str]:
    before = brackets[0]
    for item in items:
        yield f"{before}\n{pad}{_STEP}"
        yield from item
        before = ","
    yield brackets if before != "," else f"\n{pad}{brackets[1]}"
