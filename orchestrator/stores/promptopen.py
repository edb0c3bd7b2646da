"""A file of prompts, open: its records one by one, whatever it is written in."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import Struct

from orchestrator.definition.promptuse import PromptSource
from orchestrator.errors import InputError, Problem
from orchestrator.readers import lines
from orchestrator.readers.delimited import rows
from orchestrator.readers.found import Fault, Record, Unreadable
from orchestrator.readers.jsontext import json_lines, json_list
from orchestrator.stores import prompttables
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.named import Named, open_file
from orchestrator.view.wording import listed

Found = Iterator[Record | Fault]

#: What a file is taken apart by, by its ending.
ENDINGS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "jsonl"),
    **{".txt": "txt", ".csv": "csv", ".tsv": "tsv"},
    **{".parquet": "parquet", ".arrow": "hf_dataset"},
}
_TABLES = ("parquet", "hf_dataset")
_PACKED = ".gz"
#: Files of a folder, for a hint.
_LOOKED_AT = 1000
#: Looked at to tell a list from lines.
_AHEAD_BYTES = 4096


class Opened(Struct, frozen=True):
    """`found` raises Unreadable where nothing more can be read; its places are lines, or rows of a table."""

    label: str
    in_rows: bool
    found: Found

    def where(self, place: int) -> str:
        if not place:
            return self.label
        return f"{self.label} row {place}" if self.in_rows else f"{self.label}:{place}"


@contextmanager
def opened(named: Named, source: PromptSource, on_wait: OnWait = None) -> Iterator[Opened]:
    """Raises InputError where it can't be read at all."""
    container = _container(named, source)
    _check_split(container, source)
    with ExitStack() as stack:
        try:
            one = _opened(named, container, source, on_wait, stack)
        except (OSError, ValueError) as exc:
            raise _cant_read(named, source, exc) from exc
        try:
            yield one
        except OSError as exc:  # while it was read
            raise _cant_read(named, source, exc) from exc


def _opened(named: Named, container: str, source: PromptSource, on_wait: OnWait, stack: ExitStack) -> Opened:
    if container in _TABLES:
        rows_found = stack.enter_context(prompttables.table(named.path, source, on_wait))
        return Opened(named.written, True, rows_found)
    file = stack.enter_context(_file(named.path))
    return Opened(named.written, False, _records(file, container, source))


def _cant_read(named: Named, source: PromptSource, exc: Exception) -> InputError:
    reason = getattr(exc, "strerror", None) or exc
    hint = _inside(named.path) if os.path.isdir(named.path) else named.instead(_is_prompt_file)
    return _refused(source, f"{named} can't be read: {reason}", hint)


def _inside(folder: Path) -> str:
    """What to write instead of a folder that is no dataset, and perhaps holds one's files."""
    if prompttables.is_dataset(folder):
        return ""
    some = islice(folder.glob("**/*"), _LOOKED_AT)
    inside = sorted(str(path.relative_to(folder)) for path in some if _is_prompt_file(path))
    return f"name a file in it: {listed(inside, 1)}" if inside else ""


def _container(named: Named, source: PromptSource) -> str:
    reading = source.reading
    if os.path.isdir(named.path) and reading.container in (None, "hf_dataset"):
        return "hf_dataset"
    if reading.container is not None:
        return reading.container
    ending = _ending(named.path)
    found = ENDINGS.get(ending)
    if reading.shape is not None and found in (None, "txt"):
        return "jsonl"
    if found is None:
        told = f"ends in {ending}" if ending else "has no ending"
        hint = f"known endings: {', '.join(sorted(ENDINGS))}; or say its `format`"
        own = "; prompts themselves go into a list: [hello]"
        raise _refused(source, f"{source.file} {told}, which tells no kind of prompt file", hint + own)
    return found


def _ending(path: Path) -> str:
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix == _PACKED else suffix


def _check_split(container: str, source: PromptSource) -> None:
    if source.reading.split is not None and container != "hf_dataset":
        raise InputError([Problem(source.where, "prompts.split", "belongs to the folder of a saved dataset")])


def _refused(source: PromptSource, message: str, hint: str) -> InputError:
    """Of the file as a whole, where the sweep file names it."""
    return InputError([Problem(source.where or source.file or "", source.key, message, hint)])


def _is_prompt_file(path: Path) -> bool:
    return _ending(path) in ENDINGS and path.is_file()


@contextmanager
def _file(path: Path) -> Iterator[BinaryIO]:
    """Raises OSError and ValueError."""
    with open_file(path) as file:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.suffix.lower() == _PACKED else file


def _records(file: BinaryIO, container: str, source: PromptSource) -> Found:
    try:
        if container == "jsonl":
            listed = _ahead(file).lstrip().startswith(b"[")
            yield from json_list(file.read) if listed else json_lines(file.readline)
        elif container == "txt":
            yield from _texts(file.readline)
        else:
            yield from rows(file.readline, "\t" if container == "tsv" else source.reading.delimiter)
    except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
        raise Unreadable(0, f"is no whole gzip file: {exc}") from exc


def _ahead(file: Any) -> bytes:
    data: bytes = file.peek(_AHEAD_BYTES)
    return data.removeprefix(b"\xef\xbb\xbf")


def _texts(readline: lines.Read) -> Found:
    for number, raw in lines.numbered(readline):
        line = lines.text(number, raw)
        if isinstance(line, Fault):
            yield line
        elif line.strip():
            yield Record(lines.bare(line), number)
