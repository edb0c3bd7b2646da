"""What the journal tells of the allocations of a cluster: the events, and the machine that one is on."""

from __future__ import annotations

from msgspec import Struct, field


class Node(Struct, frozen=True, kw_only=True):
    """A machine of a cluster, and what of it one allocation may use. `job`: as its back end names it."""

    host: str
    job: str = ""
    pid: int = 0
    devices: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    memory_bytes: list[int | None] = field(default_factory=list)
    cpu: str = ""
    cpus: str = ""


class SlotAsked(Struct, frozen=True, kw_only=True, tag="slot_asked"):
    """An allocation was asked for. It is there until `slot_left` tells of it."""

    at: float
    slot: str
    job: str
    attempt: int


class SlotJoined(Struct, frozen=True, kw_only=True, tag="slot_joined"):
    """An outpost has dialled back. `restarts`: how often the back end has begun its job anew by itself."""

    at: float
    slot: str
    attempt: int
    restarts: int
    node: Node


class SlotLeft(Struct, frozen=True, kw_only=True, tag="slot_left"):
    """An allocation is not used any more; what was out there runs again elsewhere."""

    at: float
    slot: str
    job: str
    attempt: int
    reason: str
