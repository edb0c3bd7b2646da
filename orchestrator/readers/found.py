"""What a reader of prompt files finds. Places are line numbers, or those of rows, from 1; 0 stands for the whole file.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Record(Struct, frozen=True):
    """One value, and where it begins."""

    value: Any
    place: int


class Fault(Struct, frozen=True):
    """What can't be read, while what follows can."""

    place: int
    message: str
    suggestion: str = ""


class Unreadable(Exception):
    """From here on nothing more can be read."""

    def __init__(self, place: int, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.fault = Fault(place, message, suggestion)


class Unfit(ValueError):
    """A record that is not what its format says: the key and what is wrong with it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Passed(Exception):
    """A record that is as its format has it, and holds no prompt all the same: why, as "they …"."""


def unlike(record: Mapping[str, Any], name: str, wanted: str) -> str:
    """ "is null, not text" """
    return f"is {kind(record[name])}, not {wanted}" if name in record else "is missing"


def kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
