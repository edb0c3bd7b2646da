"""A terminal, as far as Airlock's view makes use of one: wrapping, scrolling, cursor up, erase below. It reflows when
it is resized, as tmux and most others do."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Emulator:
    """Of logical lines, each as long as it was written; a row is what a window shows of one. ASCII and box lines only:
    every character is one column wide."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[str] = [""]
        self.line = self.column = 0

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows

    def feed(self, text: str) -> None:
        at = 0
        for match in _TOKEN.finditer(text):
            assert match.start() == at, f"not understood: {text[at : match.start()]!r}"
            at = match.end()
            self._take(*match.groups())
        assert at == len(text), f"not understood: {text[at:]!r}"

    def _take(self, numbers: str | None, command: str | None, control: str | None, text: str | None) -> None:
        if text:
            line = self.lines[self.line]
            self.lines[self.line] = line[: self.column] + text + line[self.column + len(text) :]
            self.column += len(text)
        elif control == "\r":
            self.column -= self.column % self.columns
        elif control == "\n":
            self.line, self.column = self.line + 1, 0
            if self.line == len(self.lines):
                self.lines.append("")
        elif command == "A":
            self._up(int(numbers or "1"))
        elif command == "J":
            self.lines[self.line] = self.lines[self.line][: self.column]
            del self.lines[self.line + 1 :]
        else:
            assert command == "m", f"not understood: {command}"

    def _height(self, line: str) -> int:
        return max(1, -(-len(line) // self.columns))

    def _up(self, rows: int) -> None:
        """From the beginning of a line; never past the top of the window."""
        assert self.column == 0
        rows = min(rows, self.rows - 1)
        while rows:
            self.line -= 1
            height = self._height(self.lines[self.line])
            self.column = max(0, height - rows) * self.columns
            rows -= min(rows, height)
