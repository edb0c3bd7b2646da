"""JSON in files: a value a line, or one list of them all, which is never held as a whole. Pure.

By itself Python's json takes NaN, which breaks every reader of the results, and drops the first of two equal keys.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from orchestrator.readers.found import Fault, Record, Unreadable
from orchestrator.readers.lines import MAX_LINE_BYTES, NOT_UTF8, Read, numbered, opening, text

ONE_A_LINE = 'each line is one object, like {"prompt": "hello"}'
ONE_A_LINE_OR_A_LIST = f"{ONE_A_LINE}, or the file is one list of them: [{{…}}, {{…}}]"
CHUNK_BYTES = 1024 * 1024
#: An error so near to the end of what was read may be that end.
_NEAR_END = 16
_SPACE = " \t\r\n"


class _Decoder:
    """Notes what json would let pass, instead of raising in the middle of a value whose end is then unknown."""

    def __init__(self) -> None:
        self._json = json.JSONDecoder(parse_constant=self._constant, object_pairs_hook=self._mapping)
        self._wrong: list[str] = []

    def at(self, source: str, start: int) -> tuple[Any, int, str]:
        """The value that begins at `start`, its end, and what is wrong with it."""
        self._wrong.clear()
        value, end = self._json.raw_decode(source, start)
        return value, end, "; ".join(dict.fromkeys(self._wrong))

    def _constant(self, name: str) -> None:
        self._wrong.append(f"{name} is not a JSON value")

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = sorted({key for key, _ in pairs if key in seen or seen.add(key)})  # type: ignore[func-returns-value]
            self._wrong.append(f"{', '.join(map(ascii, twice))} is given twice")
        return found


# --- a value a line ---------------------------------------------------------------


def json_lines(readline: Read) -> Iterator[Record | Fault]:
    """Raises Unreadable."""
    decoder, begun = _Decoder(), False
    for number, raw in numbered(readline):
        line = text(number, raw)
        if isinstance(line, Fault):
            yield line
        elif not begun and line.split() == ["{"] and line.endswith(("\n", "\r")):
            raise Unreadable(number, "begins an object that goes on in the next line", ONE_A_LINE_OR_A_LIST)
        elif line.strip():
            yield _of_line(decoder, number, line.rstrip())
            begun = True


def _of_line(decoder: _Decoder, number: int, line: str) -> Record | Fault:
    try:
        value, end, wrong = decoder.at(line, len(line) - len(line.lstrip(_SPACE)))
        if line[end:].strip(_SPACE):
            raise json.JSONDecodeError("Extra data", line, end)
    except json.JSONDecodeError as exc:
        return Fault(number, f"is not valid JSON: {exc.msg}, at character {exc.colno}", ONE_A_LINE)
    except ValueError as exc:
        return Fault(number, f"is not valid JSON: {exc}")
    except RecursionError:
        return Fault(number, "is nested too deeply")
    return Fault(number, f"is not valid JSON: {wrong}") if wrong else Record(value, number)


# --- a list -----------------------------------------------------------------------


class _Window:
    """The part of the file that is looked at: `text` from `at` on; what lies before is dropped as it grows."""

    def __init__(self, read: Read, most: int) -> None:
        self._read, self._most = read, most
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._lines = 0  # read as text so far
        self._ended = self._begun = False
        self.text = ""
        self.at = 0
        self.line = 1  # that `at` is in

    def more(self) -> bool:
        """Whether there was more. Raises Unreadable."""
        left = len(self.text) - self.at
        if self._ended:
            return False
        if left > self._most:
            raise Unreadable(self.line, f"begins a value of more than {self._most // 1024**2} MiB")
        data = self._read(max(CHUNK_BYTES, left))
        self._ended = not data
        if not self._begun:
            self._begun, data = True, opening(data)
        added = self._decoded(data)
        self._lines += added.count("\n")
        self.text, self.at = self.text[self.at :] + added, 0
        return True

    def _decoded(self, data: bytes) -> str:
        try:
            return self._utf8.decode(data, final=self._ended)
        except UnicodeDecodeError as exc:
            before = bytes(exc.object[: exc.start])
            byte = exc.start - before.rfind(b"\n")
            where = f"byte {byte} of the line" if b"\n" in before else "a byte"
            line = 1 + self._lines + before.count(b"\n")
            raise Unreadable(line, f"is not UTF-8: {where}: {exc.reason}", NOT_UTF8) from exc

    def to(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def next(self) -> str:
        """The next character that is no space, which `at` is then at; "" at the end."""
        while True:
            left = self.text[self.at : self.at + 64].lstrip(_SPACE)
            if left:
                self.to(self.text.index(left[0], self.at))
                return left[0]
            self.to(min(self.at + 64, len(self.text)))
            if self.at == len(self.text) and not self.more():
                return ""

    def place(self, at: int) -> tuple[int, int]:
        """Line and character of it, from 1; the character is counted from `at` where the line begins before that."""
        line = self.line + self.text.count("\n", self.at, at)
        return line, at - max(self.text.rfind("\n", 0, at), -1)


def json_list(read: Read, most: int = MAX_LINE_BYTES) -> Iterator[Record | Fault]:
    """The values of a list, each with the line where it begins. Raises Unreadable."""
    window, decoder = _Window(read, most), _Decoder()
    if window.next() != "[":
        raise Unreadable(window.line, "is no list", "a .json file holds a list of objects: [{…}, {…}]")
    window.to(window.at + 1)
    sign = window.next()
    while sign != "]":
        line = window.line
        value, wrong = _value(window, decoder)
        yield Fault(line, f"is not valid JSON: {wrong}") if wrong else Record(value, line)
        sign = window.next()
        if sign == ",":
            line = window.line
            window.to(window.at + 1)
            if window.next() == "]":
                raise Unreadable(line, "is not valid JSON: a comma before the end of the list")
        elif sign != "]":
            raise Unreadable(window.line, _expected(sign))
    window.to(window.at + 1)
    if window.next():
        raise Unreadable(window.line, "is not valid JSON: something follows the end of the list")


def _expected(sign: str) -> str:
    if not sign:
        return "is not valid JSON: the file ends before its list does, as if it had been cut off"
    return "is not valid JSON: a comma or the end of the list is missing"


def _value(window: _Window, decoder: _Decoder) -> tuple[Any, str]:
    """The value at the window, which is moved to its end. Raises Unreadable."""
    while True:
        try:
            value, end, wrong = decoder.at(window.text, window.at)
            # A number may go on in what is not read yet.
            if end == len(window.text) and window.more():
                continue
            window.to(end)
            return value, wrong
        except json.JSONDecodeError as exc:
            open_end = exc.msg.startswith("Unterminated") or exc.pos >= len(window.text) - _NEAR_END
            if not (open_end and window.more()):
                raise _unreadable(window, exc) from exc
        except ValueError as exc:
            raise Unreadable(window.line, f"is not valid JSON: {exc}") from exc
        except RecursionError as exc:
            raise Unreadable(window.line, "is nested too deeply") from exc


def _unreadable(window: _Window, exc: json.JSONDecodeError) -> Unreadable:
    line, character = window.place(exc.pos)
    cut = exc.msg.startswith("Unterminated") or exc.pos >= len(window.text.rstrip())
    why = f"{exc.msg}, at character {character}" + (": the file ends there, as if it had been cut off" if cut else "")
    begun = f", in the value that begins in line {window.line}" if line != window.line else ""
    return Unreadable(line, f"is not valid JSON: {why}{begun}")
