"""What was found in one cell. Plain values that cross a pipe as JSON."""

from __future__ import annotations

from msgspec import Struct, field


class Ended(Struct, frozen=True, kw_only=True):
    """How the worker that was struck ended: its cause (empty: nobody is to blame) and the proof of its teardown."""

    cls: str
    phase: str
    message: str
    exit_status: int | None
    signal: str | None
    rung: str
    teardown_s: float
    strays: list[str]
    shm_removed: int


class Found(Struct, frozen=True, kw_only=True):
    """
    pid, uid   of the coordinator
    kernel     whether it is the kernel that kills for memory, not the worker itself
    struck     how many times the cell's fault fired
    faulty     outcome of its point, with the class of its cause
    healthy    the same of the method after it
    lost       each batch that was blamed: the class of the cause and the prompts
    good       prompt ids of the faulty method's good records; `errors`: id → class of the others
    twice      records that are there more than once
    not_back   incarnations whose proof of release is not clean
    slowest_s  the longest teardown of any worker
    beyond_s   the longest part of one in which we did not wait for the worker to leave by itself
    left       what the sweep left behind, by kind
    again      it was run once more, alone, as the machine may have been too busy to tell how long a teardown takes
    trouble    why the cell could not be run
    """

    cell: str
    pid: int = 0
    uid: int = -1
    kernel: bool = False
    struck: int = 0
    exit_code: int = -1
    faulty: str = ""
    healthy: str = ""
    first: Ended | None = None
    workers: int = 0
    lost: list[tuple[str, list[str]]] = field(default_factory=list)
    good: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    not_back: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    beyond_s: float = 0.0
    incarnations: list[str] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    wall_s: float = 0.0
    again: bool = False
    trouble: str = ""
