"""What the person at the terminal sees, or the program that reads in its place.

Nothing here can fail the sweep: the stream may be closed, broken or stalled,
the text may hold anything, and no method raises.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, Concatenate, Final, Literal, ParamSpec, TextIO

from msgspec.structs import replace
from rich.console import RenderableType

from orchestrator.events import Event
from orchestrator.plan import Plan
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.terminal.modes import MODES, ModeName, Plain, Quiet
from orchestrator.terminal.narrator import Line, Narrator
from orchestrator.terminal.outlet import Outlet
from orchestrator.terminal.screen import Screen, is_terminal
from orchestrator.view.summary import labels, settings_of, varying
from orchestrator.view.wording import clean, counted

Mode = Literal["auto", "live", "plain", "quiet", "json"]
_P = ParamSpec("_P")

#: On which nothing can be painted.
_DUMB: Final = ("dumb", "unknown")
#: Of failures from before one began to watch so many are shown, the last ones.
RECALLED: Final = 50


def _harmless(method: Callable[Concatenate[Console, _P], None]) -> Callable[Concatenate[Console, _P], None]:
    """A view that fails is a view less, never a sweep less."""

    @wraps(method)
    def guarded(self: Console, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as exc:
            self.give_up(exc)

    return guarded  # type: ignore[return-value]  # mypy can't see through `wraps` here


class Console:
    """`live`: a view that repaints itself, with failures scrolling above. `plain`: lines. `json`: one object a line.
    `quiet`: failures and the final table only. `auto`: live on a terminal, else plain."""

    def __init__(
        self,
        stream: TextIO | None = None,
        mode: Mode | str = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stdout if stream is None else stream
        terminal = is_terminal(stream)
        chosen = _usual(terminal) if mode == "auto" else mode
        self._outlet = Outlet(stream)
        name: ModeName = next((one for one in MODES if one == chosen), "plain")
        self._view: Plain = MODES[name](Screen(self._outlet, terminal or name == "live"))
        self._narrator = Narrator()
        self._settings: Callable[[str], dict[str, Any]] = lambda _point: {}
        self._clock = clock
        self._shown_at: float | None = None
        self._recalled: deque[tuple[Event, Line]] = deque(maxlen=RECALLED)
        self._forgotten = 0

    @property
    def mode(self) -> ModeName:
        return self._view.name

    @property
    def gone(self) -> bool:
        """Nobody can read any more."""
        return self._outlet.dead

    @property
    def full(self) -> bool:
        """What it is written to has no room for more."""
        return self._outlet.full

    @_harmless
    def know(self, plan: Plan) -> None:
        """From now on points are named by what tells them apart, not by their ids."""

        @cache
        def known() -> dict[str, Any]:
            return {"names": varying(plan), "points": {point.id: point for point in plan.points}}

        def settings(point: str) -> dict[str, Any]:
            found = known()["points"].get(point)
            return settings_of(found, known()["names"]) if found else {}

        self._settings = settings
        self._narrator.know(lambda: self._labels(plan))

    @_harmless
    def say(self, text: str) -> None:
        """Text of our own, line by line."""
        self._view.say(text)

    @_harmless
    def show(self, event: Event) -> None:
        line = self._narrator.line(event)
        if line is not None:
            self._show(event, line)

    @_harmless
    def recall(self, event: Event) -> None:
        """One from before: if it is bad, `catch_up` shows it."""
        line = self._narrator.line(event)
        if line is not None and line.bad:
            self._forgotten += len(self._recalled) == RECALLED
            self._recalled.append((event, line))

    @_harmless
    def catch_up(self) -> None:
        """Shows the last of what was recalled."""
        if self._forgotten:
            self._view.say(f"{counted(self._forgotten, 'earlier line')} of what went wrong left out")
            self._forgotten = 0
        while self._recalled:
            self._show(*self._recalled.popleft())

    def _show(self, event: Event, line: Line) -> None:
        point = getattr(event, "point", "")
        self._view.show(event, line, self._narrator.point(point) if point else "")

    @_harmless
    def progress(self, snapshot: Progress) -> None:
        """At most one refresh per interval of the view, and none while the terminal is not keeping up."""
        now = self._clock()
        if self._view.interval_s is None or self._outlet.busy:
            return
        if self._shown_at is not None and now - self._shown_at < self._view.interval_s:
            return
        first, self._shown_at = self._shown_at is None, now
        if self._view.at_once or not first:
            self.glance(snapshot)

    @_harmless
    def glance(self, snapshot: Progress) -> None:
        """Whatever was shown when."""
        self._view.progress(replace(snapshot, workers=list(map(self._named, snapshot.workers))))

    def _named(self, worker: WorkerProgress) -> WorkerProgress:
        settings = self._settings(worker.point)
        return replace(worker, settings=settings) if settings else worker

    @_harmless
    def finish(self, table: RenderableType, text: str = "") -> None:
        """The live view gives way to the results."""
        self._view.finish(table, text)

    @_harmless
    def close(self) -> None:
        """Waits a few seconds at most for a slow reader. Safe to call again."""
        self._view.close()
        self._outlet.close()

    def give_up(self, exc: Exception) -> None:
        self._view.fail(f"the view failed and is off, the run goes on: {clean(repr(exc))}")
        if self._view.name != "json":
            self._view = Quiet(Screen(self._outlet, terminal=False))

    def _labels(self, plan: Plan) -> Mapping[str, str]:
        """None of them must not cost the line that they are wanted for."""
        try:
            return labels(plan)
        except Exception as exc:
            self.give_up(exc)
            return {}


def _usual(terminal: bool) -> ModeName:
    return "live" if terminal and os.environ.get("TERM") not in _DUMB else "plain"
