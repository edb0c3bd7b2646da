"""What is known of a worker's end beside what it said itself, and the cause that follows from all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec.structs

from orchestrator.errors import LaunchFailed
from orchestrator.launcher import Launcher
from orchestrator.outcomes import Cause
from orchestrator.reaper import ProcessRef
from orchestrator.run import evidence
from orchestrator.run.causes import classify, refine
from orchestrator.run.evidence import OomWatch
from orchestrator.run.life import Exited, State
from orchestrator.stores.logs import first_traceback, last_words, log_tail
from orchestrator.stores.tools import cause_in, one_line
from protocol.records import ErrorInfo

#: Characters of a log's last line, of a worker that could not say by itself why it did not begin.
_SAID = 160


def not_launched(exc: LaunchFailed) -> Cause:
    """An environment that can't be started is one that can't be imported."""
    cls = classify(State.IMPORTING, ErrorInfo(type=type(exc).__name__, message=str(exc)))
    return Cause(cls=cls, message=str(exc), phase=State.LAUNCHING.value)


@dataclass
class Autopsy:
    """Begun with the launch of one worker, asked once it is gone. `known`: its tree when it was ready."""

    log: Path
    run_tag: str
    incarnation: str
    oom: OomWatch = field(default_factory=OomWatch.now)
    known: Sequence[ProcessRef] = ()
    stacks: str = ""
    tail: str = ""

    def inspect(self, tree: Sequence[ProcessRef], launcher: Launcher) -> None:
        """Of a worker that hangs and is about to be ended. Blocks for up to a second."""
        self.tail = log_tail(self.log)  # the stacks go into the log too, and would be all of its end
        self.stacks = evidence.inspect(
            tree, self.log, launcher, run_tag=self.run_tag, incarnation=self.incarnation, known=self.known
        )

    def settle(self, cause: Cause, exited: Exited | None, *, device_lost: bool, short: str) -> Cause:
        """`cause` with its class as the evidence has it, and the evidence. `short`: which places have no room."""
        first, tail = first_traceback(self.log), cause.log_tail or self.tail or log_tail(self.log)
        said = cause_in(tail) if exited and cause.phase == State.LAUNCHING else ""
        complete = msgspec.structs.replace(
            cause,
            message=f"{cause.message}: {one_line(said, _SAID)}" if said else cause.message,
            log_tail=tail,
            first_traceback=first.text,
            stacks=self.stacks,
            exit_status=exited.status if exited else None,
            signal=exited.signal if exited else None,
        )
        return refine(
            complete,
            first_traceback="" if first.mild else first.text,
            log_tail=cause.log_tail or self.tail or "\n".join(last_words(self.log)),
            oom_kills=self.oom.kills(),
            device_lost=device_lost,
            disk=short,
        )
