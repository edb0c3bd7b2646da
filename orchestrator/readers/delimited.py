"""CSV and TSV: a header, then a row for each record, whose cells may hold line ends between quotes. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from orchestrator.readers.found import Fault, Record, Unreadable
from orchestrator.readers.lines import MAX_LINE_BYTES, Read, bare, numbered, text

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
#: What Excel heeds, where it is the first line.
_FOR_EXCEL = re.compile(r"\s*\"?sep=([^\"\r\n])\"?\s*")
#: In which an empty cell says nothing.
_MAY_LACK = ("expected", "continuation", "images")
_QUOTED = re.compile(r'"[^"]*"')


def rows(readline: Read, delimiter: str | None) -> Iterator[Record | Fault]:
    """Each a mapping of the header's names to text. `delimiter`: None for the one that the first line shows.
    Raises Unreadable."""
    lines = _Lines(readline)
    table = _table(lines, delimiter)
    names: list[str] | None = None
    while True:
        begins = lines.coming
        try:
            cells = next(table)
        except StopIteration:
            return
        except (csv.Error, _NotText) as exc:
            fault = exc.fault if isinstance(exc, _NotText) else _of_row(begins, lines, exc)
            if names is None:
                raise Unreadable(fault.place, fault.message, fault.suggestion) from exc
            yield fault
            continue
        if names is None:
            names = _names(cells, begins) if any(cells) else None
        elif any(cells):
            yield _row(names, cells, begins)


def _table(lines: _Lines, delimiter: str | None) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    told = _FOR_EXCEL.fullmatch(lines.peek())
    if told:
        next(lines)
    sign = delimiter or (told[1] if told else _delimiter(lines.peek(), lines.coming))
    return csv.reader(lines, delimiter=sign, strict=True)


def _row(names: list[str], cells: list[str], line: int) -> Record | Fault:
    if len(cells) != len(names):
        message = f"has {len(cells)} cells, and the header has {len(names)}"
        return Fault(line, message, "a cell that holds the delimiter or a line end goes between quotes")
    told = zip(names, cells, strict=True)
    return Record({name: cell for name, cell in told if cell or name not in _MAY_LACK}, line)


class _NotText(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Lines:
    """The file's lines as text; `number` is that of the last one that was taken."""

    def __init__(self, readline: Read) -> None:
        self._lines = numbered(readline)
        self._ahead: tuple[int, bytes] | None = None
        self.number = 0

    def peek(self) -> str:
        """The next line that is not blank, which is still to come."""
        if self._ahead is not None:
            return self._ahead[1].decode("utf-8", "replace")
        for number, line in self._lines:
            if line.strip():
                self._ahead = number, line
                return line.decode("utf-8", "replace")
        return ""

    @property
    def coming(self) -> int:
        return self._ahead[0] if self._ahead else self.number + 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = self._ahead or next(self._lines)
        self._ahead, self.number = None, number
        return _text(number, line)


def _text(number: int, line: bytes) -> str:
    found = text(number, line)
    if isinstance(found, Fault):
        raise _NotText(found)
    return found


def _delimiter(header: str, line: int) -> str:
    """Raises Unreadable where several may be meant."""
    shown = _QUOTED.sub("", bare(header))
    found = [sign for sign in DELIMITERS if sign in shown]
    if len(found) > 1:
        names = " and ".join(DELIMITERS[sign] for sign in found)
        raise Unreadable(line, f"has {names} in its header: which of them parts the columns?", 'write delimiter: ","')
    return found[0] if found else ","


def _names(cells: list[str], line: int) -> list[str]:
    """Those without a name, as an index that pandas wrote, are called by their place."""
    names = [cell.strip() or f"column_{n}" for n, cell in enumerate(cells, 1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Unreadable(line, f"names {', '.join(map(ascii, twice))} twice in its header")
    return names


def _of_row(begins: int, lines: _Lines, exc: csv.Error) -> Fault:
    reason = str(exc)
    if "unexpected end of data" in reason:
        return Fault(begins, "opens a quote that is never closed", 'a quote inside of quotes is written ""')
    if lines.number > begins:
        reason = f"{reason}, in line {lines.number}"
    return Fault(begins, f"is no row: {reason}", 'a quote inside of quotes is written ""')
