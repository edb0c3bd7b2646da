"""Values of an engine as the wire can carry them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.text import clean_text


def plain(value: Any) -> Any:
    """`value` as the wire can carry it: numbers of numpy and torch become Python's,
    text is cleaned, whatever else is unknown becomes its repr."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):  # numpy's float64 too
        return float(value)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return clean_text(str(value))[0]
    if isinstance(value, Mapping):
        return {clean_text(str(key))[0]: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    try:
        item = value.item()
    except Exception:  # no such method, or more than one element; its repr says as much
        item = None
    return plain(item) if isinstance(item, (bool, int, float, str)) else clean_text(repr(value))[0]
