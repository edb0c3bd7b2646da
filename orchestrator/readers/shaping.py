"""What a record of any format is made into: a mapping as a prompt file of ours has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Made(Struct, frozen=True):
    """said     `prompt` or `messages`, `id`, `expected` …, and all other fields of the record
    remarks  what of the record is left out or not heeded, each a sentence without a subject
    """

    said: dict[str, Any]
    remarks: tuple[str, ...] = ()


def rest(record: Mapping[str, Any], *used: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in used}
