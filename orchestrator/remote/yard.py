"""The slots of a cluster: asks for their allocations, hears their outposts, and gives up those that are lost.

Whether an outpost lives is told by its ticks alone. What the back end says decides only what is asked of it next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from orchestrator.clusters.base import Cluster, Errand, Sighting
from orchestrator.errors import ClusterError
from orchestrator.events import Node, SlotAsked, SlotJoined
from orchestrator.remote import messages
from orchestrator.remote.berth import Berth
from orchestrator.remote.messages import REMOTE_VERSION, Brief, Finished, Joined, Logged, Pulse, Tick, Told, Wrote
from orchestrator.remote.remotestint import RemoteStint, assigned
from orchestrator.remote.steward import Steward, Unreachable
from orchestrator.run.docket import Job
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.slots import Slot
from orchestrator.view.wording import counted
from protocol.channel import Keys, RouterChannel, join
from protocol.errors import PeerGone, WireError

PULSE_S: Final = 1.0
#: To leave in order; then its back end is told to end it.
LEAVE_S: Final = 90.0
#: After a refusal: what is wrong for a moment should not use up all attempts.
ASK_AGAIN_S: Final = 5.0
#: Requests in vain of one slot, beside the attempts that count. A controller's stand-in takes minutes to take over.
MOST_UNHEARD: Final = 100


@dataclass
class Yard:
    """
    errand    what to start for a slot, given its name, token and keys
    withdraw  takes away what the errand of that name reads first
    last_words  of the errand of that name, in its log; "" if it said nothing
    brief     what every outpost is told first
    left_s    of the run's time, None for no end
    lacking   what a node has not of what it was asked for
    left      allocations of earlier lives that may be there still
    """

    cluster: Cluster
    berths: Sequence[Berth]
    channel: RouterChannel
    gate: Gate
    brief: Brief
    errand: Callable[[str, str, Keys], Errand]
    withdraw: Callable[[str], None]
    ledger: Ledger
    keep_log: Callable[[str, bytes], None]
    left_s: Callable[[], float | None]
    say: Callable[[str], None]
    silence_s: float
    attempts: int
    lacking: Callable[[Node], str] = lambda _node: ""
    left: Sequence[SlotAsked] = ()
    last_words: Callable[[str], str] = lambda _name: ""
    clock: Callable[[], float] = time.monotonic
    _stints: dict[str, RemoteStint] = field(default_factory=dict)
    _of: dict[str, Berth] = field(default_factory=dict)
    _leave: str = ""
    _kill: bool = False
    _left_by: float = float("inf")
    _closed: bool = False

    def __post_init__(self) -> None:
        self._steward = Steward(self.cluster, self.ledger.emit, self.say, self.clock)
        self._steward.end_left_over(self.left)
        for berth in self.berths:
            self.gate.slots.absent.add(berth.slot.name)
            self._ask(berth)

    def fileno(self) -> int:
        return self._steward.fileno()

    # --- allocations --------------------------------------------------------------------

    def _ask(self, berth: Berth) -> None:
        berth.renew(self.clock())
        keys = self.channel.admit(berth.name, berth.token, berth.aliases)
        self._of.update(dict.fromkeys(berth.aliases, berth))
        slot, name, attempt = berth.slot.name, berth.name, berth.attempt

        def asked(job: str) -> None:
            if berth.name == name and not self._closed:
                berth.job = job
            else:  # given up meanwhile
                self._steward.end(slot, job, attempt, "it was given up before it was there")

        def refused(exc: ClusterError) -> None:
            if berth.name == name and not self._closed:
                self._refused(berth, exc)

        self._steward.submit(self.errand(name, berth.token, keys), slot, attempt, asked, refused)

    def _refused(self, berth: Berth, exc: ClusterError) -> None:
        if isinstance(exc, Unreachable) and berth.unheard < MOST_UNHEARD:
            berth.unheard += 1
            self.say(f"{berth.slot.name}: {exc}; it is asked again")
        self._give_up(berth, str(exc))

    def _give_up(self, berth: Berth, why: str) -> None:
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
        if self._leave:
            return
        if berth.used < self.attempts:
            berth.ask_at = self.clock() + wait_s
        else:
            self.gate.quarantine(berth.slot, "busy_device", f"given up after {counted(berth.used, 'attempt')}: {why}")

    def _lose(self, berth: Berth, why: str) -> None:
        self.gate.slots.absent.add(berth.slot.name)
        if stint := self._stints.pop(berth.slot.name, None):
            stint.lose(why)

    # --- one turn -----------------------------------------------------------------------

    def turn(self) -> None:
        self._steward.turn()
        now = self.clock()
        for berth in self.berths:
            if self.gate.slots.is_out(berth.slot):
                continue
            if now >= berth.ask_at and not self._leave:
                self._ask(berth)
            if berth.here:
                self._keep(berth, now)
            if berth.job and berth.wants_sighting(now):
                berth.sighted_at = now
                self._sight(berth)

    def _keep(self, berth: Berth, now: float) -> None:
        """An outpost that has joined."""
        if now - berth.heard_at > self.silence_s:
            self._give_up(berth, f"not heard of for {self.silence_s:g} s")
        elif now >= self._left_by:
            self._give_up(berth, "it did not leave in time")
        elif now - berth.pulsed_at >= PULSE_S:
            self._pulse(berth, now)

    def _pulse(self, berth: Berth, now: float) -> None:
        berth.pulsed_at = now
        pulse = Pulse(heard=berth.heard, assignment=berth.assignment, leave=self._leave, kill=self._kill)
        self._send(berth, pulse)

    def _send(self, berth: Berth, message: messages.Down) -> None:
        with suppress(PeerGone):  # it dials again, or it is silent: then that is told
            self.channel.send_frame(berth.here.encode("ascii"), messages.encode(message))

    def _sight(self, berth: Berth) -> None:
        job = berth.job

        def seen(found: Sighting) -> None:
            if berth.job == job and berth.is_quiet(self.clock()):
                self._seen(berth, found)

        self._steward.sight(job, seen)

    def _seen(self, berth: Berth, found: Sighting) -> None:
        if found.state == "ended":
            told = f", told to by {berth.leaving}" if berth.leaving else ""
            words = "" if berth.leaving else self.last_words(berth.name)  # who left on notice has nothing to explain
            why = found.reason or "its back end does not say why"
            self._give_up(berth, f"{berth.job} ended{told}: {why}{words and f'; its log ends: {words}'}")
        elif found.restarts > max(berth.restarts, 0):
            self._await_next(berth)
            if found.state == "pending":
                self._steward.hasten(berth.job)

    def _await_next(self, berth: Berth) -> None:
        """Its back end begins the job anew; what it is at now is over."""
        self._lose(berth, "its back end has begun the job anew")
        if berth.here:
            self._of.pop(berth.here, None)
            self.channel.forget(berth.here)
            berth.forget(self.clock())

    # --- what outposts tell ---------------------------------------------------------------

    def take(self, name: str, parts: list[bytes]) -> bool:
        """Whether it was for us."""
        berth = self._of.get(name)
        if berth is None:
            return False
        try:
            message = messages.decode_up(join(parts))
        except WireError as exc:
            self._give_up(berth, f"malformed message: {exc}")
            return True
        if isinstance(message, Joined):
            self._joined(berth, name, message)
        elif name == berth.here:
            berth.heard_at = self.clock()
            self._heard(berth, message)
        return True

    def _joined(self, berth: Berth, name: str, message: Joined) -> None:
        restarts = int(name.rpartition(".")[2])
        if not berth.knows(message) or restarts < berth.restarts:
            return
        if message.version != REMOTE_VERSION:
            self._give_up(berth, f"its Airlock {message.airlock} speaks version {message.version}, we {REMOTE_VERSION}")
            return
        if lacking := self.lacking(message.node):
            self._give_up(berth, lacking)
            return
        if restarts > berth.restarts:
            self._begin(berth, restarts, message)
        self._send(berth, self.brief)

    def _begin(self, berth: Berth, restarts: int, message: Joined) -> None:
        """A later start of the job than any that came before: those do not count any more."""
        self._await_next(berth)
        berth.forget(self.clock())
        berth.restarts, berth.node = restarts, message.node
        slot, attempt = berth.slot.name, berth.attempt
        self.ledger.emit(SlotJoined(at=time.time(), slot=slot, attempt=attempt, restarts=restarts, node=message.node))
        self.gate.slots.absent.discard(slot)

    def _heard(self, berth: Berth, message: messages.Up) -> None:
        stint = self._stints.get(berth.slot.name)
        match message:
            case Tick():
                self._ticked(berth, message, stint)
            case Told() | Wrote() | Logged() | Finished():
                if message.number == berth.heard + 1:
                    if stint and not self._took(berth, stint, message):
                        return
                    berth.heard = message.number
                    self._pulse(berth, self.clock())
                    if isinstance(message, Finished) and stint and stint.over:
                        self._finished(berth, stint)

    def _took(self, berth: Berth, stint: RemoteStint, message: messages.Numbered) -> bool:
        try:
            stint.take(message)
        except (msgspec.MsgspecError, ValueError) as exc:
            self._give_up(berth, f"told what is none of a run's events: {exc}")
            return False
        return True

    def _ticked(self, berth: Berth, tick: Tick, stint: RemoteStint | None) -> None:
        if tick.leaving and not berth.leaving:
            berth.leaving = tick.leaving
            self.gate.slots.absent.add(berth.slot.name)
        if not tick.briefed:
            self._send(berth, self.brief)
        elif stint and tick.assignment < stint.assign.assignment:
            self._send(berth, stint.assign)
        if stint:
            stint.ticked(tick.progress)

    def _finished(self, berth: Berth, stint: RemoteStint) -> None:
        del self._stints[berth.slot.name]
        if stint.trouble:
            self._give_up(berth, stint.trouble)

    # --- work -----------------------------------------------------------------------------

    def begin(self, job: Job, slot: Slot) -> RemoteStint:
        """The job is that slot's outpost's."""
        berth = next(one for one in self.berths if one.slot.name == slot.name)
        berth.assignment += 1
        assign = assigned(job, self.ledger, berth.assignment, self.left_s())
        stint = self._stints[slot.name] = RemoteStint(
            job, slot, assign, self.ledger, self.keep_log, berth.node.host if berth.node else ""
        )
        self._send(berth, assign)
        return stint

    def leave(self, reason: str, *, kill: bool = False) -> None:
        """Every outpost is to drain and to end."""
        if not self._leave:
            self._left_by = self.clock() + LEAVE_S
        fresh = (reason, kill) != (self._leave, self._kill)
        self._leave, self._kill = self._leave or reason, kill
        for berth in self.berths if fresh else ():
            if berth.here:
                self._pulse(berth, self.clock())

    def close(self) -> None:
        """No allocation is left, as far as the back end can be told so. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.leave("the run is over")  # and what was told last is acknowledged, or an outpost would wait for that
        for berth in self.berths:
            self.withdraw(berth.name)
            if berth.job:
                self._steward.end(berth.slot.name, berth.job, berth.attempt, self._leave)
        self._steward.close()
        for berth in self.berths:
            self.channel.dismiss(berth.name)
