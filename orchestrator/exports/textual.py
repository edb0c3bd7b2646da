"""JSON lines and CSV, a line at a time, in UTF-8. Pure.

CSV is that of RFC 4180, with a header. Text stands in quotes as it is; everything else as JSON has it, lists and
objects in quotes too. A cell with nothing in it, not even quotes, is null: an empty text has quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from orchestrator.exports.columns import Column, Line, Table, Values

_encode: Final = msgspec.json.Encoder().encode
#: What a spreadsheet takes for the beginning of a formula.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_GUARD: Final = "'"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Encoded = Callable[[Values], bytes]


def jsonl(table: Table, lines: Iterable[Line]) -> Iterator[bytes]:
    """One object a line, with all columns in it."""
    own, shared = _object(table.own), _once(_object(table.shared))
    for line in lines:
        begin, end = own(line.own)[:-1], shared(line.shared)[1:]
        yield begin + (b"," if end != b"}" else b"") + end + b"\n"


def _object(columns: Sequence[Column]) -> Encoded:
    names = [column.name for column in columns]
    return lambda values: _encode(dict(zip(names, values, strict=True)))


def _once(encoded: Encoded) -> Encoded:
    """For values that come again and again: only those that are other ones than before are worked out."""
    last: Values | None = None
    found = b""

    def again(values: Values) -> bytes:
        nonlocal last, found
        if values is not last:
            last, found = values, encoded(values)
        return found

    return again


class Csv:
    """`guarded`: for a spreadsheet, with an apostrophe before each text that it would take for a formula, and a byte
    order mark. `formulas` counts those texts, guarded or not."""

    def __init__(self, guarded: bool = False) -> None:
        self.formulas = 0
        self._guarded = guarded

    def lines(self, table: Table, lines: Iterable[Line]) -> Iterator[bytes]:
        own, shared = self._row(table.own), _once(self._row(table.shared))
        between = b"," if table.shared else b""
        head = ",".join(f'"{column.name}"' for column in table.columns)
        yield (_BYTE_ORDER_MARK if self._guarded else b"") + head.encode() + b"\r\n"
        for line in lines:
            yield own(line.own) + between + shared(line.shared) + b"\r\n"

    def _row(self, columns: Sequence[Column]) -> Encoded:
        known: dict[str, Callable[[Any], str]] = {**_CELLS, "text": self._text, "word": self._text}
        cells = [known.get(column.kind, _listed) for column in columns]

        def row(values: Values) -> bytes:
            pairs = zip(cells, values, strict=True)
            return ",".join(["" if value is None else cell(value) for cell, value in pairs]).encode()

        return row

    def _text(self, value: str) -> str:
        if value.startswith(FORMULA):
            self.formulas += 1
            value = _GUARD + value if self._guarded else value
        return _quoted(value)


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _bare(value: Any) -> str:
    return _encode(value).decode()


def _listed(value: Any) -> str:
    return _quoted(_bare(value))


#: JSON has quotes round a time already.
_CELLS: Final[dict[str, Callable[[Any], str]]] = dict.fromkeys(("integer", "number", "flag", "time"), _bare)
