"""Whoever has a slot, as the loop sees it: a worker of this machine, or an outpost that runs one elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from orchestrator.progress import WorkerProgress
from orchestrator.run.docket import Job
from orchestrator.run.life import State
from orchestrator.run.slots import Slot


class Occupant(Protocol):
    """The loop calls, in every turn: `take_frames` for what came under `name`, then `take_news`, `check_clock`,
    `advance` and `meet`; and `end` once it is `over`."""

    @property
    def job(self) -> Job: ...

    @property
    def slot(self) -> Slot: ...

    @property
    def name(self) -> str:
        """Under which its messages come."""

    @property
    def called(self) -> bool:
        """Its slot is its own; false for one that stands by."""

    def call(self) -> None:
        """The slot is its own from now on; of one that stands by."""

    def send_away(self, reason: str) -> None:
        """It is not to wait for its slot any longer; of one that stands by."""

    @property
    def label(self) -> str:
        """As its neighbours know it."""

    @property
    def host(self) -> str:
        """The machine that it works on; "" for this one. Only those on one machine are neighbours."""

    @property
    def state(self) -> State: ...

    @property
    def over(self) -> bool: ...

    def wake_in_s(self, now: float, /) -> float:
        """When it wants to be looked at next, whatever happens."""

    def fds(self) -> Sequence[int]:
        """What is readable when there is news of it."""

    def find_segments(self, names: Iterable[str]) -> None:
        """`names` were just made in /dev/shm, by whomever."""

    def take_frames(self, parts: list[bytes]) -> None: ...

    def take_news(self) -> None: ...

    def check_clock(self) -> None: ...

    def suspended(self, for_s: float) -> None:
        """This coordinator was stopped."""

    def advance(self) -> None:
        """What there is to do in its state."""

    def meet(self, others: Iterable[str]) -> None:
        """Who is there while a batch of it runs."""

    def progress(self) -> WorkerProgress: ...

    def end(self) -> None:
        """Its life is over: the proof, who is to blame, and what that means for its job."""

    def close(self) -> None:
        """At once, with nothing left behind."""
