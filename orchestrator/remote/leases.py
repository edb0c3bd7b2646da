"""The allocations of a run's slots: asked for, looked after, given up. What their outposts tell is the yard's.

What the back end says decides only what is asked of it next.
"""

from __future__ import annotations

import re
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
#: And at most, where the back end is away for long.
ASK_MOST_S: Final = 60.0
#: Requests in vain of one slot, beside the attempts that count: an hour, in which a controller comes back from an
#: upgrade.
MOST_UNHEARD: Final = 100
#: After that why a job waits is told; most begin within seconds.
WAITS_S: Final = 30.0
#: From a job's begin to the first word of its outpost: a site's prolog, the fetching of a container's image and Python
#: on a slow file system are in it.
JOIN_S: Final = 1800.0


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
    _waits_told: set[str] = field(default_factory=set)

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

        try:
            errand = self.errand(name, berth.token, keys)
        except OSError as exc:
            self.give_up(berth, f"its orders can't be written: {exc}")
            return
        self._steward.submit(errand, slot, attempt, asked, refused)

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
        wait_s = 0 if berth.job else min(ASK_MOST_S, max(ASK_AGAIN_S, berth.unheard))
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
        elif found.stuck:
            self.give_up(berth, f"{berth.job} waits, and will not begin by itself: {found.reason}")
        elif found.restarts > max(berth.restarts, 0):
            self.await_next(berth)
            if found.state == "pending":
                self._steward.hasten(berth.job)
        if berth.job and not berth.here:
            self._await_outpost(berth, found, self.clock())

    def _await_outpost(self, berth: Berth, found: Sighting, now: float) -> None:
        """From a job that its back end knows of."""
        if found.state == "pending":
            berth.begun_at = float("inf")
            if now - berth.heard_at >= WAITS_S:
                self._tell_wait(berth, found.reason)
            return
        berth.begun_at = min(berth.begun_at, now)
        if now - berth.begun_at >= JOIN_S:
            words = found.reason or self.last_words(berth.name) or "its log is empty"
            self.give_up(berth, f"{berth.job} has begun, and for {JOIN_S / 60:g} min nobody has come from it: {words}")

    def _tell_wait(self, berth: Berth, reason: str) -> None:
        """Each reason once: it may be that of all slots, for hours."""
        if reason and gist(reason) not in self._waits_told:
            self._waits_told.add(gist(reason))
            self.say(f"{berth.slot.name}: job {berth.job} waits: {reason}")

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


def gist(reason: str) -> str:
    """Of why a job waits, without the nodes and figures that change meanwhile."""
    return re.split("[;,]", reason, maxsplit=1)[0]
