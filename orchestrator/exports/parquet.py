"""Parquet, a row group at a time: types are the schema's and never taken from the values.

A row group ends after so many lines, or sooner where they are long: memory stays the same however many lines there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from orchestrator.exports.columns import SCHEMA_VERSION, Column, Line, Table, Values
from orchestrator.exports.extras import needed

GROUP_LINES: Final = 1 << 16
#: Characters and numbers in lists.
GROUP_ITEMS: Final = 1 << 21
_LONG: Final = frozenset({"text", "json", "words", "integers", "numbers", "lists of integers", "lists of numbers"})


def arrow() -> Any:
    return needed("pyarrow", "Parquet")


def schema(table: Table, about: Mapping[str, str]) -> Any:
    """A pyarrow.Schema; `about` becomes metadata of the file."""
    pa = arrow()
    fields = [
        pa.field(column.name, _type(pa, column), metadata={"kind": column.kind, "meaning": column.meaning})
        for column in table.columns
    ]
    told = {"table": table.name, "schema_version": str(SCHEMA_VERSION), **about}
    return pa.schema(fields, metadata={f"airlock.{name}": value for name, value in told.items()})


def _type(pa: Any, column: Column) -> Any:
    text, integer, number = pa.string(), pa.int64(), pa.float64()
    return {
        "text": text,
        "word": pa.dictionary(pa.int32(), text),
        "integer": integer,
        "number": number,
        "flag": pa.bool_(),
        "time": pa.timestamp("us", "UTC"),
        "json": text,
        "words": pa.list_(text),
        "integers": pa.list_(integer),
        "numbers": pa.list_(number),
        "lists of integers": pa.list_(pa.list_(integer)),
        "lists of numbers": pa.list_(pa.list_(number)),
    }[column.kind]


def groups(table: Table, lines: Iterable[Line], schema: Any) -> Iterator[Any]:
    """Each a pyarrow.RecordBatch."""
    group = _Group(table, schema)
    for line in lines:
        group.add(line)
        if group.full:
            yield group.batch()
            group = _Group(table, schema)
    if group.places:
        yield group.batch()


def write(table: Table, lines: Iterable[Line], schema: Any, out: BinaryIO) -> None:
    """Raises what `out` and `lines` raise. What `out` was given before is no Parquet file then."""
    pq, sink = needed("pyarrow.parquet", "Parquet"), _Sink(out)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        try:
            for batch in groups(table, lines, schema):
                writer.write_batch(batch)
        except BaseException:
            sink.broken = True
            raise


class _Sink:
    """A writer that fails still writes what makes a whole file of its half: not into here."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.broken = False

    def write(self, data: bytes) -> int:
        return len(data) if self.broken else self._out.write(data)

    def flush(self) -> None:
        """`out` is flushed by whoever opened it."""

    def tell(self) -> int:
        return self._out.tell()


class _Group:
    """`places`: for each line, which of the shared values are its own."""

    def __init__(self, table: Table, schema: Any) -> None:
        self._table, self._schema = table, schema
        self._own: list[Values] = []
        self._shared: list[Values] = []
        self._long = [n for n, column in enumerate(table.own) if column.kind in _LONG]
        self._items = 0
        self.places: list[int] = []

    def add(self, line: Line) -> None:
        if not self._shared or self._shared[-1] is not line.shared:
            self._shared.append(line.shared)
        self.places.append(len(self._shared) - 1)
        self._own.append(line.own)
        self._items += sum([_size(line.own[n]) for n in self._long])

    @property
    def full(self) -> bool:
        return len(self.places) >= GROUP_LINES or self._items >= GROUP_ITEMS

    def batch(self) -> Any:
        pa = arrow()
        types = self._schema.types
        split = len(self._table.own)
        own = self._arrays(pa, self._table.own, types[:split], self._own)
        places = pa.array(self.places, pa.int32())
        shared = self._arrays(pa, self._table.shared, types[split:], self._shared)
        return pa.RecordBatch.from_arrays([*own, *(one.take(places) for one in shared)], schema=self._schema)

    @staticmethod
    def _arrays(pa: Any, columns: Sequence[Column], types: Sequence[Any], lines: Sequence[Values]) -> list[Any]:
        cells = zip(*lines, strict=True)
        return [
            pa.array([*map(_decoded, values)] if column.kind == "json" else values, kind)
            for column, kind, values in zip(columns, types, cells, strict=True)
        ]


def _size(value: Any) -> int:
    """Of lists of lists roughly: the inner ones are short."""
    if value is None:
        return 0
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, str)):
        return sum(map(len, value))
    return len(value)


def _decoded(raw: Any) -> str | None:
    return None if raw is None else bytes(raw).decode()
