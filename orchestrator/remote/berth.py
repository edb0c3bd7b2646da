"""One slot of a cluster: its allocation, the outpost that is there, and what that has told. No I/O of its own.

An allocation may be started again by its back end while its earlier start still lives: each comes under a name of its
own, and once a later one has come the earlier is not heard any more. One that is given up is asked for anew under
another name and key, so what is left of it can never be taken for its successor.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from orchestrator.clusters.allocations import Node
from orchestrator.remote.allegiance import alias
from orchestrator.remote.messages import Joined
from orchestrator.remote.remotestint import RemoteStint
from orchestrator.run.slots import Slot

#: A back end that starts a job more often than that is not to be waited for.
MOST_RESTARTS: Final = 16


#: An outpost that ticks no more may have gone, which its back end knows before our patience ends.
QUIET_S: Final = 4.0
#: How often a back end is asked about a job: of one that waits for hours ever more seldom.
SIGHT_S: Final = 5.0
SIGHT_MOST_S: Final = 60.0


@dataclass
class Berth:
    """
    attempt   how often an allocation was asked for; unheard: in vain, as the back end could not be reached
    ask_at    when it is to be asked for, infinite while it is
    job       as the back end names it; "" while it was not asked for, or has not answered
    restarts  which start of the job joined last, -1 for none yet
    begun_at  when the back end was first heard to have begun what nobody has come from yet, infinite before
    heard     number of the last of its messages that is taken care of
    stint     what its outpost works off
    """

    slot: Slot
    attempt: int = 0
    unheard: int = 0
    ask_at: float = float("inf")
    job: str = ""
    token: str = ""
    restarts: int = -1
    node: Node | None = None
    begun_at: float = float("inf")
    heard: int = 0
    heard_at: float = 0.0
    assignment: int = 0
    leaving: str = ""
    pulsed_at: float = float("-inf")
    briefed_at: float = float("-inf")
    sighted_at: float = float("-inf")
    stint: RemoteStint | None = None

    @property
    def name(self) -> str:
        """Of the present attempt."""
        return f"{self.slot.name}a{self.attempt}"

    @property
    def aliases(self) -> list[str]:
        return [alias(self.name, restarts) for restarts in range(MOST_RESTARTS)]

    @property
    def here(self) -> str:
        """The name under which its outpost comes; "" if none is there."""
        return alias(self.name, self.restarts) if self.node else ""

    @property
    def used(self) -> int:
        """Attempts that count."""
        return self.attempt - self.unheard

    def is_quiet(self, now: float) -> bool:
        """Nobody is there who could say more than the back end does."""
        return not self.here or now - self.heard_at > QUIET_S

    def wants_sighting(self, now: float) -> bool:
        interval_s = min(SIGHT_MOST_S, max(SIGHT_S, (now - self.heard_at) / 10))
        return self.is_quiet(now) and now - self.sighted_at >= interval_s

    def renew(self, now: float) -> None:
        """Nothing of what was there counts any more."""
        self.attempt += 1
        self.ask_at = float("inf")
        self.job, self.token = "", secrets.token_hex(16)
        self.forget(now)
        self.restarts = -1

    def forget(self, now: float) -> None:
        self.node, self.leaving = None, ""
        self.heard = self.assignment = 0
        self.begun_at = float("inf")
        self.heard_at = now
        self.pulsed_at = self.briefed_at = self.sighted_at = float("-inf")

    def knows(self, message: Joined) -> bool:
        return hmac.compare_digest(message.token.encode(), self.token.encode())
