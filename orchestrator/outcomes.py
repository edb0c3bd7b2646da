"""How a point, batch or worker ended, and why: never one for both."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from protocol.records import ErrorInfo

#: Why a point, batch or worker ended as it did. The first cause wins.
CauseClass = Literal[
    "environment",  # the engine can't be built or imported
    "config",  # the engine refused its settings
    "model",  # the model can't be loaded
    "oom",  # device or host memory ran out, in the worker or a child of it
    "device_lost",  # a GPU fell off the bus: nothing can run there until a reset
    "busy_device",  # the slot is not free: a stranger holds it, or memory that did not come back
    "engine_crash",  # the worker or a child of it ended without a farewell
    "engine_error",  # the engine raised
    "hang",  # a deadline passed
    "protocol",  # the worker spoke out of turn, or nonsense
    "bad_prompt",  # this prompt alone makes the engine fail; `root` says how
    "interrupted",  # we were asked to stop: nobody is to blame
    "disk",  # no room, or no permission to write
]
OutcomeKind = Literal["ok", "partial", "failed"]


class Cause(Struct, frozen=True, kw_only=True):
    """Why it ended so.

    phase            the worker's life-cycle state when it happened
    root             of a bad_prompt: the class of what the prompt does to the engine
    policy           what the sweep's policy made of it, "halve, 2 times"
    incarnation      the worker whose log has more on it
    first_traceback  the first one in the worker's log: the root, where the last is often an echo
    log_tail         the last lines of that log
    stacks           of a hung worker: its processes and their threads' stacks, taken before it was killed
    """

    cls: CauseClass
    message: str
    phase: str = ""
    exit_status: int | None = None
    signal: str | None = None
    error: ErrorInfo | None = None
    log_tail: str = ""
    root: CauseClass | None = None
    policy: str = ""
    incarnation: str = ""
    first_traceback: str = ""
    stacks: str = ""
