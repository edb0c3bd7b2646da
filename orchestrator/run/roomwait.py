"""Room on the disks, asked for before each worker start, and waited for as the policy says. Charged to no method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.config import Limits, Policies
from orchestrator.events import Event, Waited, Waiting
from orchestrator.run.room import Places, Wanted, full, shortages

LOOK_AGAIN_S = 1.0


@dataclass
class RoomWait:
    """`short` is what was lacking when it was last looked at, "" for nothing."""

    places: Places
    limits: Limits
    policies: Policies
    emit: Callable[[Event], None]
    clock: Callable[[], float]
    short: str = ""
    _since: float | None = field(default=None, init=False)
    _reason: str = field(default="", init=False)
    _looked_at: float = field(default=float("-inf"), init=False)

    @property
    def waiting(self) -> bool:
        return self._since is not None

    def ask(self) -> Literal["yes", "wait", "no"]:
        """Ask again after "wait", as often as one likes: the disks are looked at once a second."""
        now = self.clock()
        if self._since is not None and now - self._looked_at < LOOK_AGAIN_S:
            return "wait"
        self._looked_at = now
        self.short = "; ".join(self._lacking())
        if not self.short:
            self._end(over=True)
            return "yes"
        return self._go_on_waiting(now)

    def _lacking(self) -> list[str]:
        limits = self.limits
        return shortages(self.places, Wanted(limits.run_dir_free_mib, limits.tmp_free_mib, limits.shm_free_mib))

    def _go_on_waiting(self, now: float) -> Literal["wait", "no"]:
        patience_s = self.policies.disk.wait_s if self.policies.disk.do == "wait" else 0.0
        if self._since is None:
            self._since, self._reason = now, self.short
            if patience_s:
                self.emit(Waiting(at=time.time(), what="room", reason=self.short, most_s=patience_s))
        if now - self._since < patience_s:
            return "wait"
        self._reason = self.short
        self._end(over=False)
        return "no"

    @property
    def is_short(self) -> bool:
        """Right now; nobody waits for it, and nothing is told."""
        return bool(self._lacking())

    def postpone(self, by_s: float) -> None:
        """We were stopped ourselves for so long."""
        if self._since is not None:
            self._since += by_s

    def leave(self) -> None:
        """Nobody waits any more."""
        self._end(over=False)

    def _end(self, *, over: bool) -> None:
        since, self._since = self._since, None
        if since is not None:
            wait_s = self.clock() - since
            self.emit(Waited(at=time.time(), what="room", reason=self._reason, wait_s=wait_s, over=over))

    def full(self) -> str:
        """Which places take nothing more right now, "" for none."""
        return full(self.places)
