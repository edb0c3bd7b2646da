"""Whose an outpost is: what it is told of that on the disk, and the name that each of its starts comes under."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

VARIABLE: Final = "AIRLOCK_OUTPOST"


class Orders(Struct, frozen=True, forbid_unknown_fields=True):
    """What the coordinator wrote down for it. tag: of all processes of this slot of the run, whichever life started
    them; silence_s: of the coordinator, after which the outpost gives up."""

    endpoint: str
    name: str
    token: str
    server_key: str
    secret_key: str
    tag: str
    silence_s: float


def alias(name: str, restarts: int) -> str:
    """The name that a start of the job comes under, so that an earlier one that lives on can be told from it."""
    return f"{name}.{restarts}"
