"""The values of an incarnation's life: its states, what can happen, what is then to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.outcomes import Cause


class State(StrEnum):
    LAUNCHING = "launching"
    IMPORTING = "importing"
    STANDBY = "standby"
    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    TERMINATING = "terminating"
    KILLING = "killing"
    REAPED = "reaped"
    RELEASED = "released"
    STUCK = "stuck"


TERMINAL = frozenset({State.RELEASED, State.STUCK})
#: The worker is expected to work; what ends these is a failure unless we asked for it.
WORKING = (State.LAUNCHING, State.IMPORTING, State.STANDBY, State.LOADING, State.READY, State.BUSY)
#: We are getting rid of it; late messages mean nothing any more.
ENDING = (State.DRAINING, State.TERMINATING, State.KILLING, State.REAPED)


# --- events ---------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """A valid Hello came."""


@dataclass(frozen=True)
class ImportDone:
    pass


@dataclass(frozen=True)
class Called:
    """The worker before it is gone: from now on the wait for the slot has a deadline."""


@dataclass(frozen=True)
class Granted:
    """The slot is this incarnation's: it may load."""


@dataclass(frozen=True)
class LoadDone:
    pass


@dataclass(frozen=True)
class Dispatched:
    batch_id: str


@dataclass(frozen=True)
class Answered:
    """BatchDone or BatchFailed."""

    batch_id: str


@dataclass(frozen=True)
class Failed:
    """The worker, or what it sent, gave a reason to end it. `leaving`: it exits by itself."""

    cause: Cause
    leaving: bool = False


@dataclass(frozen=True)
class StopRequested:
    reason: str


@dataclass(frozen=True)
class KillRequested:
    reason: str


@dataclass(frozen=True)
class Farewell:
    pass


@dataclass(frozen=True)
class Exited:
    status: int | None
    signal: str | None


@dataclass(frozen=True)
class SubtreeGone:
    strays: tuple[str, ...]


@dataclass(frozen=True)
class WardenLost:
    pass


@dataclass(frozen=True)
class MemoryBack:
    pass


@dataclass(frozen=True)
class MemoryStuck:
    reason: str


@dataclass(frozen=True)
class Expired:
    """The deadline of the present state passed."""


@dataclass(frozen=True)
class Postponed:
    """We were stopped ourselves for so long: nobody could have met a deadline meanwhile."""

    by_s: float


Event = (
    Connected
    | ImportDone
    | Called
    | Granted
    | LoadDone
    | Dispatched
    | Answered
    | Failed
    | StopRequested
    | KillRequested
    | Farewell
    | Exited
    | SubtreeGone
    | WardenLost
    | MemoryBack
    | MemoryStuck
    | Expired
    | Postponed
)


# --- actions --------------------------------------------------------------


@dataclass(frozen=True)
class SendInit:
    pass


@dataclass(frozen=True)
class SendRun:
    batch_id: str


@dataclass(frozen=True)
class SendShutdown:
    reason: str


@dataclass(frozen=True)
class Accept:
    """The answer to this batch counts."""

    batch_id: str


@dataclass(frozen=True)
class Inspect:
    """Ask a worker that hangs what it is doing, before it is ended."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM to the worker's process group."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL to everything below the warden."""


@dataclass(frozen=True)
class Sweep:
    """Look for processes with the incarnation's tag, kill them, and start watching the memory."""


@dataclass(frozen=True)
class Free:
    pass


@dataclass(frozen=True)
class Quarantine:
    reason: str


Action = SendInit | SendRun | SendShutdown | Accept | Inspect | Terminate | Kill | Sweep | Free | Quarantine


# --- the value ------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """Where one incarnation stands. `batch` is in flight; after the end it is the one to blame. `early`: its slot is
    still another's."""

    state: State
    since: float
    deadline: float
    batch: str | None = None
    cause: Cause | None = None
    asked_to_stop: bool = False
    farewell: bool = False
    exited: Exited | None = None
    exited_in: State | None = None
    strays: tuple[str, ...] = ()
    rung: str = "exit"
    early: bool = False
    history: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.state in TERMINAL
