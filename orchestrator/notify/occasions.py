"""From the events of a run to what is told of it, and when. Pure but for the clock that it is given.

Failures come in bursts, as a worker that can't load fails all its points: they are told together, SETTLE_S after the
first and WINDOW_S after the last message of any. What is pending when the run ends is part of what is told then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator import events as ev
from orchestrator.definition.notifyuse import NotifyUse, Occasion
from orchestrator.exits import ended_as
from orchestrator.notify.message import MOST_FAILURES, FailedPoint, Leader, Message, Points
from orchestrator.plan import Plan
from orchestrator.record.output import FLAG_SUSPENDED
from orchestrator.view.phrases import cause_text
from orchestrator.view.summary import labels, settings_of, varying
from orchestrator.view.wording import clean, settings_text

SETTLE_S: Final = 5.0
#: However much fails, nobody is told more often.
WINDOW_S: Final = 300.0
#: Of what happened. A helper gets a message in its environment, which the kernel takes up to 128 KiB of.
_MOST_CHARACTERS: Final = 1000


@dataclass(frozen=True)
class Stand:
    """What a message says of the run as a whole, asked for when one is made."""

    points: Callable[[], Points]
    eta_s: Callable[[], float | None]


@dataclass
class Occasions:
    """Tell it every event; `due` gives what is to be told later."""

    use: NotifyUse
    plan: Plan
    run_dir: str
    host: str
    stand: Stand
    clock: Callable[[], float] = time.monotonic
    _failed: list[FailedPoint] = field(default_factory=list)
    _last: list[FailedPoint] = field(default_factory=list)
    _failures: int = 0
    _due_at: float = float("-inf")
    _wait_told: bool = False
    _speeds: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began_at = self.clock()
        self._labels: Mapping[str, str] | None = None
        self._cells: dict[str, str] | None = None

    def heed(self, event: ev.Event) -> list[Message]:
        match event:
            case ev.RunStarted():
                return self._tell("start")
            case ev.BatchCommitted():
                self._measured(event)
            case ev.PointEnded() if event.outcome != "ok":
                self._fail(event)
            case ev.SlotQuarantined():
                return self._tell("quarantine", what=f"{event.slot}: {event.reason}")
            case ev.Waiting(what="room") | ev.Waited(what="room", over=False):
                return self._no_room(event)
            case ev.Waited(what="room"):
                self._wait_told = False
            case ev.RunEnded():
                return self.ended(event.exit_code, event.reason)
        return []

    def due(self) -> list[Message]:
        """What is to be told now of failures."""
        if not self._failed or self.clock() < self._due_at:
            return []
        failed, self._failed = self._failed, []
        self._due_at = self.clock() + WINDOW_S
        return self._tell("failure", failed)

    def ended(self, exit_code: int, reason: str) -> list[Message]:
        """Also of a run that could not come to write down its end."""
        pending, self._failed = self._failed, []
        if "end" not in self.use.on:
            return self._tell("failure", pending) if pending else []
        more = self._failures - len(self._last)
        return self._tell("end", self._last, more, what=reason, state=ended_as(exit_code), exit_code=exit_code)

    def crashed(self, why: str) -> list[Message]:
        return self._tell("end", self._last, self._failures - len(self._last), what=why, state="crashed")

    # --- what was measured, and what failed -----------------------------------------------

    def _measured(self, event: ev.BatchCommitted) -> None:
        if event.stats is not None and event.stats.wall_s > 0 and FLAG_SUSPENDED not in event.flags:
            cell = self._cell_of(event.point)
            tokens, wall_s = self._speeds.get(cell, (0.0, 0.0))
            self._speeds[cell] = tokens + event.stats.generated_tokens, wall_s + event.stats.wall_s

    def _cell_of(self, point: str) -> str:
        if self._cells is None:
            names = varying(self.plan)
            self._cells = {one.id: f"{one.method} {settings_text(settings_of(one, names))}" for one in self.plan.points}
        return self._cells.get(point, point)

    def _leader(self) -> Leader | None:
        rates = {cell: tokens / wall_s for cell, (tokens, wall_s) in self._speeds.items() if tokens}
        best = max(rates, key=rates.__getitem__, default=None)
        return None if best is None else Leader(label=best, tokens_per_s=rates[best])

    def _fail(self, event: ev.PointEnded) -> None:
        if self._labels is None:
            self._labels = labels(self.plan)
        label = self._labels.get(event.point) or event.point
        one = FailedPoint(label=label, cause=cause_text(event.cause) if event.cause else "")
        self._failures += 1
        self._last = [*self._last, one][-MOST_FAILURES:]
        if "failure" in self.use.on:
            self._due_at = self._due_at if self._failed else max(self._due_at, self.clock() + SETTLE_S)
            self._failed.append(one)

    def _no_room(self, event: ev.Waiting | ev.Waited) -> list[Message]:
        """Once for each time that room runs out."""
        told, self._wait_told = self._wait_told, isinstance(event, ev.Waiting)
        return [] if told else self._tell("low_disk", what=event.reason)

    # --- a message ---------------------------------------------------------------------------

    def _tell(
        self,
        event: Occasion,
        failed: list[FailedPoint] | None = None,
        more: int = 0,
        *,
        what: str = "",
        state: str = "running",
        exit_code: int | None = None,
    ) -> list[Message]:
        if event not in self.use.on:
            return []
        failures = failed or []
        found = Message(
            event=event,
            run=self.plan.name,
            run_dir=clean(self.run_dir),
            host=clean(self.host),
            at=time.time(),
            state=state,
            exit_code=exit_code,
            what=_cut(clean(what)),
            points=self.stand.points(),
            failures=failures[:MOST_FAILURES],
            failures_not_told=max(0, len(failures) - MOST_FAILURES) + more,
            elapsed_s=self.clock() - self._began_at,
            eta_s=self.stand.eta_s() if state == "running" else None,
            leader=self._leader(),
        )
        return [found]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
