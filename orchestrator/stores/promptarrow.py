"""Writes the rows of Parquet or Arrow files as lines of JSON, in a process of its own: `… ANSWER ROWS FILE…`.

The answer is {"rows": count}, or {"refused": "why"}.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.stores.prompttext import BINARY

BATCH_ROWS = 1024
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"


def main(answer: str, rows: str, *files: str) -> None:
    try:
        found: dict[str, Any] = {"rows": _write(Path(rows), files)}
    except ImportError as exc:
        found = {"refused": f"{exc}: reading it takes pyarrow: pip install 'engine-airlock[data]'"}
    except Exception as exc:  # pyarrow raises whatever a damaged file made it meet
        found = {"refused": " ".join(str(exc).split()) or type(exc).__name__}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


def _write(rows: Path, files: tuple[str, ...]) -> int:
    count = 0
    with rows.open("w", encoding="utf-8") as out:
        for file in files:
            for batch in _batches(file):
                _check_names(batch.schema.names)
                for row in batch.to_pylist():
                    out.write(json.dumps(_plain(row)) + "\n")
                    count += 1
    return count


def _check_names(names: list[str]) -> None:
    """A row is a mapping, which would hold the last of them alone."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"it has several columns of the name {', '.join(map(ascii, twice))}")


def _batches(file: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    with open(file, "rb") as opened:
        mark = opened.read(len(_ARROW_FILE))
    if mark.startswith(_PARQUET):
        with parquet.ParquetFile(file) as table:
            yield from table.iter_batches(BATCH_ROWS)
        return
    with pa.memory_map(file) as source:
        reader = pa.ipc.open_file(source) if mark == _ARROW_FILE else pa.ipc.open_stream(source)
        several = (reader.get_batch(n) for n in range(reader.num_record_batches)) if mark == _ARROW_FILE else reader
        for batch in several:
            yield from (batch.slice(at, BATCH_ROWS) for at in range(0, batch.num_rows, BATCH_ROWS))


def _plain(value: Any) -> Any:
    """As JSON has it. An image, as datasets keep them, becomes its data URL or its path."""
    if isinstance(value, Mapping):
        if set(value) == {"bytes", "path"}:
            data = value["bytes"]
            return value["path"] if data is None else _data_url(data)
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, Decimal):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(data: bytes) -> str:
    """Texts are binary where their writer has not said that they are text, as several do."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return _data_url(data)
    return _data_url(data) if "\0" in text else text


def _data_url(data: bytes) -> str:
    return BINARY + base64.b64encode(data).decode("ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
