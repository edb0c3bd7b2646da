"""The slots of a cluster: hears their outposts, gives them work, and gives up those that are lost.

Whether an outpost lives is told by its ticks alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from orchestrator.clusters.allocations import Node, SlotJoined
from orchestrator.remote import messages
from orchestrator.remote.berth import Berth
from orchestrator.remote.leases import Leases
from orchestrator.remote.messages import REMOTE_VERSION, Brief, Finished, Joined, Logged, Pulse, Tick, Told, Wrote
from orchestrator.remote.remotestint import RemoteStint, assigned
from orchestrator.run.docket import Job
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.slots import Slot
from protocol.channel import RouterChannel
from protocol.errors import PeerGone, WireError
from protocol.parts import join

PULSE_S: Final = 1.0
#: What may be of some hundred MiB is on its way for so long, and a second more for each of so many bytes; then it may
#: have gone astray. Each copy is held in memory until it has gone.
BRIEF_AGAIN_S: Final = 5.0
BRIEF_BYTES_PER_S: Final = 4 << 20
#: To leave in order; then its back end is told to end it.
LEAVE_S: Final = 90.0


@dataclass
class Yard:
    """
    brief    what every outpost is told first
    left_s   of the run's time, None for no end
    lacking  what a node has not of what it was asked for
    """

    leases: Leases
    berths: Sequence[Berth]
    channel: RouterChannel
    gate: Gate
    brief: Brief
    ledger: Ledger
    keep_log: Callable[[str, bytes], None]
    left_s: Callable[[], float | None]
    silence_s: float
    lacking: Callable[[Node], str] = lambda _node: ""
    clock: Callable[[], float] = time.monotonic
    _kill: bool = False
    _left_by: float = float("inf")

    def __post_init__(self) -> None:
        for berth in self.berths:
            self.gate.slots.absent.add(berth.slot.name)
            self.leases.ask(berth)

    def fileno(self) -> int:
        return self.leases.fileno()

    # --- one turn -----------------------------------------------------------------------

    def turn(self) -> None:
        self.leases.turn()
        now = self.clock()
        for berth in self.berths:
            if self.gate.slots.is_out(berth.slot):
                continue
            self.leases.ask_again(berth, now)
            if berth.here:
                self._keep(berth, now)
            self.leases.sight(berth, now)

    def _keep(self, berth: Berth, now: float) -> None:
        """An outpost that has joined."""
        if now - berth.heard_at > self.silence_s:
            self.leases.give_up(berth, f"not heard of for {self.silence_s:g} s")
        elif now >= self._left_by:
            self.leases.give_up(berth, "it did not leave in time")
        elif now - berth.pulsed_at >= PULSE_S:
            self._pulse(berth, now)

    def _pulse(self, berth: Berth, now: float) -> None:
        berth.pulsed_at = now
        pulse = Pulse(heard=berth.heard, assignment=berth.assignment, leave=self.leases.leaving, kill=self._kill)
        self._send(berth, pulse)

    def _send(self, berth: Berth, message: messages.Down) -> None:
        self._send_frame(berth, messages.encode(message))

    def _send_frame(self, berth: Berth, frame: bytes) -> None:
        with suppress(PeerGone):  # it dials again, or it is silent: then that is told
            self.channel.send_frame(berth.here.encode("ascii"), frame)

    def _tell_brief(self, berth: Berth, now: float) -> None:
        if now - berth.briefed_at >= BRIEF_AGAIN_S + len(self._brief) / BRIEF_BYTES_PER_S:
            berth.briefed_at = now
            self._send_frame(berth, self._brief)

    @cached_property
    def _brief(self) -> bytes:
        return messages.encode(self.brief)

    # --- what outposts tell ---------------------------------------------------------------

    def take(self, name: str, parts: list[bytes]) -> bool:
        """Whether it was for us."""
        berth = self.leases.find(name)
        if berth is None:
            return False
        try:
            message = messages.decode_up(join(parts))
        except WireError as exc:
            self.leases.give_up(berth, f"malformed message: {exc}")
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
            self.leases.give_up(
                berth, f"its Airlock {message.airlock} speaks version {message.version}, we {REMOTE_VERSION}"
            )
            return
        if lacking := self.lacking(message.node):
            self.leases.give_up(berth, lacking)
            return
        if restarts > berth.restarts:
            self._begin(berth, restarts, message)
        self._tell_brief(berth, self.clock())

    def _begin(self, berth: Berth, restarts: int, message: Joined) -> None:
        """A later start of the job than any that came before: those do not count any more."""
        self.leases.await_next(berth)
        berth.forget(self.clock())
        berth.restarts, berth.node = restarts, message.node
        slot, attempt = berth.slot.name, berth.attempt
        self.ledger.emit(SlotJoined(at=time.time(), slot=slot, attempt=attempt, restarts=restarts, node=message.node))
        self.gate.slots.absent.discard(slot)

    def _heard(self, berth: Berth, message: messages.Up) -> None:
        stint = berth.stint
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
            self.leases.give_up(berth, f"told what is none of a run's events: {exc}")
            return False
        return True

    def _ticked(self, berth: Berth, tick: Tick, stint: RemoteStint | None) -> None:
        if tick.leaving and not berth.leaving:
            berth.leaving = tick.leaving
            self.gate.slots.absent.add(berth.slot.name)
        if not tick.briefed:
            self._tell_brief(berth, self.clock())
        elif stint and tick.assignment < stint.assign.assignment:
            self._send(berth, stint.assign)
        if stint:
            stint.ticked(tick.progress)

    def _finished(self, berth: Berth, stint: RemoteStint) -> None:
        berth.stint = None
        if stint.trouble:
            self.leases.give_up(berth, stint.trouble)

    # --- work -----------------------------------------------------------------------------

    def begin(self, job: Job, slot: Slot) -> RemoteStint:
        """The job is that slot's outpost's."""
        berth = next(one for one in self.berths if one.slot.name == slot.name)
        berth.assignment += 1
        assign = assigned(job, self.ledger, berth.assignment, self.left_s())
        stint = berth.stint = RemoteStint(
            job, slot, assign, self.ledger, self.keep_log, berth.node.host if berth.node else ""
        )
        self._send(berth, assign)
        return stint

    def leave(self, reason: str, *, kill: bool = False) -> None:
        """Every outpost is to drain and to end."""
        if not self.leases.leaving:
            self._left_by = self.clock() + LEAVE_S
        fresh = (reason, kill) != (self.leases.leaving, self._kill)
        self.leases.leaving, self._kill = self.leases.leaving or reason, kill
        for berth in self.berths if fresh else ():
            if berth.here:
                self._pulse(berth, self.clock())

    def close(self) -> None:
        """No allocation is left, as far as the back end can be told so. Idempotent."""
        if self.leases.closed:
            return
        self.leave("the run is over")  # and what was told last is acknowledged, or an outpost would wait for that
        self.leases.close(self.berths)
