"""The allocations of a run's slots: asked for, looked after, given up. What their outposts tell is the yard's.

What the back end says decides only what is asked of it next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.clusters.allocations import SlotAsked
from orchestrator.clusters.base import Cluster, Errand, Sighting
from orchestrator.errors import ClusterError
from orchestrator.events import Event
from orchestrator.remote.berth import Berth
from orchestrator.remote.steward import Steward, Unreachable
from orchestrator.run.gate import Gate
from orchestrator.view.wording import counted
from protocol.channel import RouterChannel
from protocol.keys import Keys

#: After a refusal: what is wrong for a moment should not use up all attempts.
ASK_AGAIN_S: Final = 5.0
#: Requests in vain of one slot, beside the attempts that count. A controller's stand-in takes minutes to take over.
MOST_UNHEARD: Final = 100


@dataclass
class Leases:
    """
    errand    what to start for a slot, given its name, token and keys
    withdraw  takes away what the errand of that name reads first
    last_words  of the errand of that name, in its log; "" if it said nothing
    left      allocations of earlier lives that may be there still
    leaving   why none is asked for any more, "" while they are
    """

    cluster: Cluster
    channel: RouterChannel
    gate: Gate
    errand: Callable[[str, str, Keys], Errand]
    withdraw: Callable[[str], None]
    emit: Callable[[Event], None]
    say: Callable[[str], None]
    attempts: int
    left: Sequence[SlotAsked] = ()
    last_words: Callable[[str], str] = lambda _name: ""
    clock: Callable[[], float] = time.monotonic
    leaving: str = ""
    closed: bool = False
    _of: dict[str, Berth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._steward = Steward(self.cluster, self.emit, self.say, self.clock)
        self._steward.end_left_over(self.left)

    def fileno(self) -> int:
        return self._steward.fileno()

    def turn(self) -> None:
        self._steward.turn()

    def find(self, name: str) -> Berth | None:
        """Whose outpost comes under this name."""
        return self._of.get(name)

    def ask(self, berth: Berth) -> None:
        berth.renew(self.clock())
        keys = self.channel.admit(berth.name, berth.token, berth.aliases)
        self._of.update(dict.fromkeys(berth.aliases, berth))
        slot, name, attempt = berth.slot.name, berth.name, berth.attempt

        def asked(job: str) -> None:
            if berth.name == name and not self.closed:
                berth.job = job
            else:  # given up meanwhile
                self._steward.end(slot, job, attempt, "it was given up before it was there")

        def refused(exc: ClusterError) -> None:
            if berth.name == name and not self.closed:
                self._refused(berth, exc)

        self._steward.submit(self.errand(name, berth.token, keys), slot, attempt, asked, refused)

    def _refused(self, berth: Berth, exc: ClusterError) -> None:
        if isinstance(exc, Unreachable) and berth.unheard < MOST_UNHEARD:
            berth.unheard += 1
            self.say(f"{berth.slot.name}: {exc}; it is asked again")
        self.give_up(berth, str(exc))

    def ask_again(self, berth: Berth, now: float) -> None:
        """If its time has come."""
        if now >= berth.ask_at and not self.leaving:
            self.ask(berth)

    def give_up(self, berth: Berth, why: str) -> None:
        """What is there does not count any more; another is asked for while attempts are left."""
        self._lose(berth, why)
        for name in berth.aliases:
            self._of.pop(name, None)
        self.channel.dismiss(berth.name)
        self.withdraw(berth.name)
        if berth.job:
            self._steward.end(berth.slot.name, berth.job, berth.attempt, why)
        wait_s = 0 if berth.job else ASK_AGAIN_S
        berth.job, berth.node = "", None  # so that nothing of it is waited for
        if self.leaving:
            return
        if berth.used < self.attempts:
            berth.ask_at = self.clock() + wait_s
        else:
            self.gate.quarantine(berth.slot, "busy_device", f"given up after {counted(berth.used, 'attempt')}: {why}")

    def _lose(self, berth: Berth, why: str) -> None:
        self.gate.slots.absent.add(berth.slot.name)
        stint, berth.stint = berth.stint, None
        if stint:
            stint.lose(why)

    def sight(self, berth: Berth, now: float) -> None:
        """Asks the back end what has become of it, where nobody is there who could say more."""
        if not berth.job or not berth.wants_sighting(now):
            return
        berth.sighted_at, job = now, berth.job

        def seen(found: Sighting) -> None:
            if berth.job == job and berth.is_quiet(self.clock()):
                self._seen(berth, found)

        self._steward.sight(job, seen)

    def _seen(self, berth: Berth, found: Sighting) -> None:
        if found.state == "ended":
            told = f", told to by {berth.leaving}" if berth.leaving else ""
            words = "" if berth.leaving else self.last_words(berth.name)  # who left on notice has nothing to explain
            why = found.reason or "its back end does not say why"
            self.give_up(berth, f"{berth.job} ended{told}: {why}{words and f'; its log ends: {words}'}")
        elif found.restarts > max(berth.restarts, 0):
            self.await_next(berth)
            if found.state == "pending":
                self._steward.hasten(berth.job)

    def await_next(self, berth: Berth) -> None:
        """Its back end begins the job anew; what it is at now is over."""
        self._lose(berth, "its back end has begun the job anew")
        if berth.here:
            self._of.pop(berth.here, None)
            self.channel.forget(berth.here)
            berth.forget(self.clock())

    def close(self, berths: Iterable[Berth]) -> None:
        """None is left of these, as far as the back end can be told so."""
        self.closed = True
        for berth in berths:
            self.withdraw(berth.name)
            if berth.job:
                self._steward.end(berth.slot.name, berth.job, berth.attempt, self.leaving)
        self._steward.close()
        for berth in berths:
            self.channel.dismiss(berth.name)
