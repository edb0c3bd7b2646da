"""What the person at the terminal sees: a live view, or one line per notable event.

Nothing here can fail the sweep: the stream may be closed, broken or stalled,
the text may hold anything, and no method raises.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import IO, Any, Concatenate, Literal, ParamSpec, TextIO, cast

from rich.console import Console as Screen
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.events import Event, Progress, WorkerProgress
from orchestrator.plan import Plan
from orchestrator.view.narrator import Line, Narrator
from orchestrator.view.outlet import Outlet
from orchestrator.view.summary import labels
from orchestrator.view.wording import bytes_text, clean, counted, seconds_text, settings_text

Mode = Literal["auto", "live", "plain", "quiet"]
_P = ParamSpec("_P")

LIVE_INTERVAL_S = 0.5
#: A sign of life for logs; build servers end jobs that say nothing for long.
PLAIN_INTERVAL_S = 60.0
#: Of a table that is not on a terminal; wide enough to cut nothing.
PLAIN_WIDTH = 240
BAR_WIDTH = 30
#: A coordinator killed in the middle must not leave a terminal without a cursor.
_HIDE_CURSOR = "\x1b[?25l"


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
    """`live`: a view that repaints itself, with failures scrolling above. `plain`: lines.
    `quiet`: failures and the final table only. `auto`: live on a terminal, else plain."""

    def __init__(
        self,
        stream: TextIO | None = None,
        mode: Mode | str = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stdout if stream is None else stream
        terminal = _is_terminal(stream)
        usable = terminal and os.environ.get("TERM") != "dumb"
        self.mode = ("live" if usable else "plain") if mode == "auto" else mode
        self._outlet = Outlet(stream)
        self._screen = _screen(self._outlet, terminal or self.mode == "live")
        self._narrator = Narrator()
        self._clock = clock
        self._live: Live | None = None
        self._shown_at: float | None = None

    @_harmless
    def know(self, plan: Plan) -> None:
        """From now on points are named by what tells them apart, not by their ids."""
        self._narrator.know(partial(self._labels, plan))

    @_harmless
    def say(self, text: str) -> None:
        """Text of our own, line by line."""
        if self.mode != "quiet":
            for line in text.split("\n"):
                self._line(Line(clean(line)))

    @_harmless
    def show(self, event: Event) -> None:
        line = self._narrator.line(event)
        if line is None or (not line.bad and self.mode != "plain"):
            return
        stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
        self._line(Line(f"{stamp} {line.text}", line.bad))

    @_harmless
    def progress(self, snapshot: Progress) -> None:
        """At most one refresh per LIVE_INTERVAL_S, and none while the terminal is not keeping up."""
        interval = PLAIN_INTERVAL_S if self.mode == "plain" else LIVE_INTERVAL_S
        now = self._clock()
        if (
            self.mode == "quiet"
            or self._outlet.busy
            or (self._shown_at is not None and now - self._shown_at < interval)
        ):
            return
        first, self._shown_at = self._shown_at is None, now
        if self.mode == "live":
            self._repaint(view(snapshot))
        elif not first:
            self._line(Line(progress_text(snapshot)))

    @_harmless
    def finish(self, table: RenderableType, text: str = "") -> None:
        """The live view gives way to the results."""
        self._stop_live()
        self._fit()
        self._screen.print(table)
        if text:
            self._line(Line(clean(text)))

    @_harmless
    def close(self) -> None:
        """Waits a few seconds at most for a slow reader. Safe to call again."""
        self._stop_live()
        if self._outlet.dropped:
            self._outlet.write(f"{counted(self._outlet.dropped, 'line')} not shown: nobody read them\n")
        self._outlet.close()

    def give_up(self, exc: Exception) -> None:
        self._live = None
        self._screen = _screen(self._outlet, terminal=False)
        self.mode = "quiet"
        self._outlet.write(f"\nthe view failed and is off, the run goes on: {clean(repr(exc))}\n")

    def _labels(self, plan: Plan) -> Mapping[str, str]:
        """None of them must not cost the line that they are wanted for."""
        try:
            return labels(plan)
        except Exception as exc:
            self.give_up(exc)
            return {}

    def _line(self, line: Line) -> None:
        if self._live is None:
            self._outlet.write(line.text + "\n")
        else:
            self._screen.print(Text(line.text, style="red" if line.bad else ""), soft_wrap=True)

    def _repaint(self, renderable: RenderableType) -> None:
        self._fit()
        if self._live is None:
            self._live = Live(
                console=self._screen, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(renderable, refresh=True)

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _fit(self) -> None:
        """The window may have been resized, and it need not be the one of stdin."""
        fd = self._outlet.fd
        if fd is not None and os.isatty(fd):
            columns, rows = os.get_terminal_size(fd)
            self._screen.size = (columns or 80, rows or 25)


def view(snapshot: Progress) -> RenderableType:
    """The live view: where each worker is, how far, how fast."""
    parts: list[RenderableType] = []
    for worker in snapshot.workers:
        bar = Table.grid(padding=(0, 1))
        done = ProgressBar(total=max(worker.batches_total, 1), completed=worker.batches_done, width=BAR_WIDTH)
        bar.add_row(done, Text(_batches(worker)), Text(_pace(worker)))
        parts += [Text(_where(worker), style="bold"), bar]
    return Group(*parts, Text(_points(snapshot)))


def progress_text(snapshot: Progress) -> str:
    parts = [part for worker in snapshot.workers for part in (_where(worker), _batches(worker), _pace(worker))]
    return ", ".join(part for part in (*parts, _points(snapshot)) if part)


def _where(worker: WorkerProgress) -> str:
    slot = f"{worker.slot}:" if worker.slot else ""
    parts = (slot, worker.method, worker.state, settings_text(worker.settings))
    return clean(" ".join(part for part in parts if part))


def _batches(worker: WorkerProgress) -> str:
    return f"batch {worker.batches_done}/{worker.batches_total}"


def _pace(worker: WorkerProgress) -> str:
    parts = (
        None if worker.tokens_per_s is None else f"{worker.tokens_per_s:.1f} tokens/s",
        None if worker.memory_bytes is None else bytes_text(worker.memory_bytes),
    )
    return ", ".join(part for part in parts if part)


def _points(snapshot: Progress) -> str:
    failed = f", {snapshot.points_failed} failed" if snapshot.points_failed else ""
    skipped = f", {snapshot.points_skipped} not needed" if snapshot.points_skipped else ""
    left = "" if snapshot.eta_s is None else f", about {seconds_text(snapshot.eta_s)} left"
    return f"points {snapshot.points_done}/{snapshot.points_total} done{failed}{skipped}{left}"


class _Sink:
    """What rich writes to: the little of a text file that it needs."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        self._outlet.write(text.replace(_HIDE_CURSOR, ""))
        return len(text)

    def flush(self) -> None: ...


def _screen(outlet: Outlet, terminal: bool) -> Screen:
    # The sink never breaks, so rich's own way with broken pipes (SystemExit) is out of reach.
    return Screen(
        file=cast("IO[str]", _Sink(outlet)),
        force_terminal=terminal,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
