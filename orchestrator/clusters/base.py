"""What a back end must do for us: start a command on devices it grants, say what it knows of it, stop it.

Nothing more goes through a back end. Whether the command lives, what it does and what came of it is told over
our own wire: a dead raylet says nothing for minutes, and a Slurm daemon that was killed starts a job a second time
beside the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, Protocol

from orchestrator.errors import ClusterError

JobState = Literal["pending", "running", "ended", "unknown"]


class Unheard(ClusterError):
    """The back end had no ear for what was asked; nothing is wrong with that."""


@dataclass(frozen=True)
class Errand:
    """One command on one allocation.

    env           added to what the back end gives a job
    log           its stdout and stderr, appended; a path that the node can write
    time_limit_s  None: the back end's own
    options       words for the back end that nobody else reads: "--partition=gpu"; a Ray resource "big=1"
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: PurePath
    log: PurePath
    gpus: int = 0
    cpus: int | None = None
    memory_mib: int | None = None
    time_limit_s: float | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sighting:
    """What the back end says of a job: a hint, never a proof that it lives or is gone.

    restarts  how often the back end has begun it anew by itself
    reason    why it waits or ended, in the back end's words
    stuck     it waits, and will not begin by itself
    """

    state: JobState
    node: str = ""
    restarts: int = 0
    reason: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)
    stuck: bool = False


class Cluster(Protocol):
    """Every call returns within seconds, or raises ClusterError with the back end's own words; Unheard, where they say
    that it may be asked again."""

    @property
    def name(self) -> str: ...

    def check(self) -> list[str]:
        """Why it can't be used from here, a sentence each; [] if it can."""

    def objections(self, errand: Errand) -> list[str]:
        """Why it would not take this one, a sentence each; nothing is started."""

    def submit(self, errand: Errand) -> str:
        """The job's id, good for `state` and `stop` from any process."""

    def state(self, job: str) -> Sighting: ...

    def stop(self, job: str) -> None:
        """Idempotent; one that has ended is no error. The command gets SIGTERM first, as far as the back end can."""

    def close(self) -> None:
        """Lets go of the back end; jobs go on, where it lets them."""
