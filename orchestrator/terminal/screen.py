"""What is drawn on: rich's console over an outlet, as wide as its window is right now."""

from __future__ import annotations

import os
from typing import IO, Any, Final, NamedTuple, cast

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.text import Text

from orchestrator.terminal.outlet import Outlet

#: Of a table that is not on a terminal; wide enough to cut nothing.
PLAIN_WIDTH: Final = 240


class Size(NamedTuple):
    columns: int
    rows: int


#: Of a terminal that does not tell.
USUAL: Final = Size(80, 25)


class Screen:
    """`terminal`: colours and figures as wide as the window; else neither."""

    def __init__(self, outlet: Outlet, terminal: bool) -> None:
        self.outlet = outlet
        # The sink never breaks, so rich's own way with broken pipes (SystemExit) is out of reach.
        self._rich = RichConsole(
            file=cast("IO[str]", _Sink(outlet)),
            force_terminal=terminal,
            width=None if terminal else PLAIN_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def write(self, text: str) -> None:
        self.outlet.write(text)

    def print(self, renderable: RenderableType) -> None:
        """Fitted into the window."""
        self.fit()
        self._rich.print(renderable)

    def rendered(self, line: Text) -> str:
        """With its colours, as the terminal takes it, and its end; wrapped by nobody but the terminal."""
        with self._rich.capture() as captured:
            self._rich.print(line, soft_wrap=True)
        return captured.get()

    def fit(self) -> Size:
        """The window may have been resized, and it need not be the one of stdin."""
        fd = self.outlet.fd
        if fd is not None and os.isatty(fd):
            columns, rows = os.get_terminal_size(fd)
            self._rich.size = (columns or USUAL.columns, rows or USUAL.rows)
        return Size(*self._rich.size)


class _Sink:
    """What rich writes to: the little of a text file that it needs."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        self._outlet.write(text)
        return len(text)

    def flush(self) -> None: ...


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
