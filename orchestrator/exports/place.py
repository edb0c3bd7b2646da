"""Where an export goes: a file that is whole or not there at all, or standard output.

What stands under the file's name is replaced only if it is an export as well, or on demand.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from orchestrator.errors import OutputFailed, Problem
from orchestrator.journal import PLAN_NAME, PROMPTS_NAME, SWEEP_NAME
from orchestrator.record.disk import reading, sync_folder, trouble
from orchestrator.record.lock import LOCK_NAME
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME
from orchestrator.view.answer import Answer

_OF_A_RUN: Final = frozenset({SWEEP_NAME, PLAN_NAME, PROMPTS_NAME, RECORDS_NAME, JOURNAL_NAME, LOCK_NAME})
#: How an export begins, by format; of Parquet the end tells.
_BEGINNINGS: Final = (b'{"run":', b'"run","run_id",', b'\xef\xbb\xbf"run","run_id",')
_PARQUET, _MARK, _TAIL_BYTES = b"PAR1", b"airlock.schema_version", 1 << 18


def problems(path: Path, force: bool) -> list[Problem]:
    """Why nothing can be put there."""
    where, real = f"--output {path}", Path(os.path.realpath(path))
    if not real.parent.is_dir():
        return [Problem(where, "", f"there is no folder {real.parent}", "make it first")]
    if real.name in _OF_A_RUN and (real.parent / JOURNAL_NAME).exists():
        return [Problem(where, "", "is part of a run", "choose another name")]
    if not real.exists():
        return []
    if not real.is_file():
        return [Problem(where, "", "is there, and is no regular file", "without --output it goes to standard output")]
    if force or _is_export(real):
        return []
    return [Problem(where, "", "is there, and was not made by `export`", "choose another name, or --force")]


def _is_export(path: Path) -> bool:
    """An empty one is: that of a run without outputs."""
    try:
        with reading(path) as file:
            begin = file.read(32)
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return not begin or begin.startswith(_BEGINNINGS) or (begin.startswith(_PARQUET) and _MARK in file.read())
    except OSError:
        return False


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """Raises OutputFailed where the export can't be written. After whatever failure there is what was there before."""
    if path is None:
        yield cast(BinaryIO, _Stdout())
    else:
        with _replacing(Path(os.path.realpath(path))) as file:
            yield file


class _Stdout:
    """A pipe can't tell how much was written to it."""

    def __init__(self) -> None:
        self._answer, self._written = Answer(), 0

    def write(self, data: bytes) -> int:
        self._written += self._answer.write_data(bytes(data))
        return len(data)

    def tell(self) -> int:
        return self._written


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    out = _Out(path, temporary)
    try:
        yield cast(BinaryIO, out)
        out.finish()
    finally:
        out.close()
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class _Out:
    """Tells trouble with the file from trouble with what is written into it."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self._path, self._temporary = path, temporary
        with self._told():
            self._file = open(temporary, "xb")  # noqa: SIM115

    def write(self, data: bytes) -> int:
        with self._told():
            return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def finish(self) -> None:
        """Only now does the name stand for it."""
        with self._told():
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._temporary, self._path)
        sync_folder(self._path.parent)

    def close(self) -> None:
        """What is still in the buffer after a failure may fail once more."""
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise OutputFailed(trouble(self._path, exc), reader_left=False) from exc
