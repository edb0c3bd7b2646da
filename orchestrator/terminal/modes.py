"""The four ways to show a run: lines, a live view, failures only, JSON lines. Each writes to one outlet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Literal

from rich.console import RenderableType
from rich.text import Text

from orchestrator.events import Event, Waited
from orchestrator.journal import encode
from orchestrator.progress import Progress
from orchestrator.terminal.jsonlines import event_object, note_object, progress_object, results_object
from orchestrator.terminal.layout import frame, progress_text
from orchestrator.terminal.narrator import Line
from orchestrator.terminal.painter import Painter
from orchestrator.terminal.screen import Screen
from orchestrator.view.wording import clean, counted

ModeName = Literal["live", "plain", "quiet", "json"]

LIVE_INTERVAL_S: Final = 0.5
#: A sign of life for logs; build servers end jobs that say nothing for long.
PLAIN_INTERVAL_S: Final = 60.0
JSON_INTERVAL_S: Final = 5.0


class Plain:
    """One line per notable event. `interval_s`: between two that say how far it is; the first after one of them,
    unless `at_once`."""

    name: ModeName = "plain"
    interval_s: float | None = PLAIN_INTERVAL_S
    at_once = False

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def say(self, text: str) -> None:
        """Text of our own, line by line."""
        for line in text.split("\n"):
            self._line(Line(clean(line)))

    def show(self, event: Event, line: Line, label: str) -> None:
        """`label`: what its point is called."""
        del label
        if self._is_shown(line):
            self._line(Line(f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {line.text}", line.bad))

    def progress(self, snapshot: Progress) -> None:
        self._line(Line(progress_text(snapshot)))

    def finish(self, table: RenderableType, text: str) -> None:
        self._screen.print(table)
        if text:
            self._line(Line(clean(text)))

    def close(self) -> None:
        if dropped := self._screen.outlet.dropped:
            self._screen.write(f"{counted(dropped, 'line')} not shown: nobody read them\n")

    def fail(self, text: str) -> None:
        """The view is broken, and this is why."""
        self._screen.write(f"\n{text}\n")

    def _is_shown(self, line: Line) -> bool:
        del line
        return True

    def _line(self, line: Line) -> None:
        self._screen.write(line.text + "\n")


class Quiet(Plain):
    """Failures and the results."""

    name = "quiet"
    interval_s = None

    def say(self, text: str) -> None: ...

    def _is_shown(self, line: Line) -> bool:
        return line.bad


class Live(Plain):
    """Where each worker is at the foot of the terminal, with failures scrolling by above."""

    name = "live"
    interval_s = LIVE_INTERVAL_S
    at_once = True

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._painter = Painter(screen)

    def show(self, event: Event, line: Line, label: str) -> None:
        if isinstance(event, Waited) and event.what == "suspended":  # a shell had the terminal meanwhile
            self._painter.forget()
        super().show(event, line, label)

    def progress(self, snapshot: Progress) -> None:
        self._painter.paint(frame(snapshot, *self._screen.fit()))

    def finish(self, table: RenderableType, text: str) -> None:
        self._painter.clear()
        super().finish(table, text)

    def close(self) -> None:
        self._painter.clear()
        super().close()

    def _is_shown(self, line: Line) -> bool:
        return line.bad

    def _line(self, line: Line) -> None:
        self._painter.above(Text(line.text, "red" if line.bad else ""))


class JsonLines(Plain):
    """See `jsonlines`."""

    name = "json"
    interval_s = JSON_INTERVAL_S
    at_once = True

    def say(self, text: str) -> None:
        for line in text.split("\n"):
            self._write(note_object(line, time.time()))

    def show(self, event: Event, line: Line, label: str) -> None:
        self._write(event_object(event, line.text, line.bad, label))

    def progress(self, snapshot: Progress) -> None:
        self._write(progress_object(snapshot, time.time()))

    def finish(self, table: RenderableType, text: str) -> None:
        self._write(results_object(getattr(table, "rows", ()), text or str(table), time.time()))

    def close(self) -> None:
        if dropped := self._screen.outlet.dropped:
            self._write({"type": "dropped", "at": time.time(), "lines": dropped})

    def fail(self, text: str) -> None:
        self.say(text)

    def _write(self, told: dict[str, Any]) -> None:
        self._screen.write(encode(told).decode() + "\n")


MODES: Final[dict[ModeName, Callable[[Screen], Plain]]] = {
    "live": Live,
    "plain": Plain,
    "quiet": Quiet,
    "json": JsonLines,
}
