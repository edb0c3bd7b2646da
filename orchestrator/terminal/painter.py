"""A few lines at the foot of a terminal that are painted over and over, with other lines scrolling by above them.

Each repaint is one write, so a reader that is slow never sees half of one. The cursor stays below the lines, visible
at all times: whoever is killed leaves the terminal as a shell wants it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.terminal.screen import Screen


class Painter:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines: Sequence[Text] = ()

    def paint(self, lines: Sequence[Text]) -> None:
        self._screen.write(self._erased() + self._rendered(lines))
        self._lines = lines

    def above(self, line: Text) -> None:
        """A line that stays."""
        self._screen.write(self._erased() + self._screen.rendered(line) + self._rendered(self._lines))

    def clear(self) -> None:
        self._screen.write(self._erased())
        self._lines = ()

    def forget(self) -> None:
        """Somebody else has written below them: they stay as they are."""
        self._lines = ()

    def _rendered(self, lines: Sequence[Text]) -> str:
        return "".join(map(self._screen.rendered, lines))

    def _erased(self) -> str:
        """A window that became narrower has wrapped them since."""
        columns = self._screen.fit().columns
        height = sum(max(1, -(-line.cell_len // columns)) for line in self._lines)
        return f"\x1b[{height}A\r\x1b[J" if height else ""
