"""ArtefactFate becomes of the artefacts of one worker after the other, and what is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from orchestrator.events import ArtefactFate, Artefacts, Event
from orchestrator.outcomes import Cause
from orchestrator.run.causes import from_error
from orchestrator.run.incarnation import Answer, Incarnation
from orchestrator.run.lending import Lending
from orchestrator.run.life import Exited, Failed, Life, State
from protocol.messages import BatchDone

POLICY = "load once more, without its artefacts; charged to nobody"


@dataclass(frozen=True)
class Keeper:
    lending: Lending
    emit: Callable[[Event], None]

    def launched(self, worker: Incarnation) -> None:
        lent = worker.loan.lent
        if lent.trouble:
            self._tell(worker, "dropped" if lent.dropped else "not_used", lent.trouble)

    def heard(self, worker: Incarnation, answer: Answer) -> bool:
        """Whether the answer counts. A warm worker that fails at its first batch as engines fail at
        what they find in a cache is ended instead."""
        if isinstance(answer, BatchDone):
            worker.loan.proved = True
        elif worker.loan.betrayed_by(answer.error):
            worker.feed(Failed(from_error(State.BUSY.value, answer.error)))
            return False
        return True

    def excuse(self, worker: Incarnation, cause: Cause | None) -> Cause | None:
        """The cause as nobody's fault, where what the worker was lent is suspected of it; that is dropped.
        None where not."""
        if cause is None or not worker.loan.suspected_of(cause):
            return None
        self.lending.drop(worker.loan)
        self._tell(worker, "dropped", f"a worker that was lent them failed: {cause.message}")
        return replace(cause, policy=POLICY)

    def ended(self, worker: Incarnation) -> None:
        """After a clean end what it compiled is kept; call it while its folder is still there."""
        if worker.loan.state and is_clean(worker.life):
            kept = self.lending.take_back(worker.loan)
            if kept.new:
                self._tell(worker, "kept", size=kept.bytes)
            elif kept.trouble:
                self._tell(worker, "not_kept", kept.trouble)

    def _tell(self, worker: Incarnation, what: ArtefactFate, reason: str = "", size: int = 0) -> None:
        key = worker.loan.key
        self.emit(Artefacts(at=time.time(), incarnation=worker.name, key=key, what=what, reason=reason, bytes=size))


def is_clean(life: Life) -> bool:
    """It left when it was asked to, by itself and with a farewell: nothing of it was cut off in mid-write."""
    left = life.farewell and life.exited == Exited(0, None)
    return life.state is State.RELEASED and life.cause is None and left
