"""What was made for the user, delivered: as a file that is whole or not there at all, or on standard output."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from orchestrator.errors import OutputFailed
from orchestrator.record.disk import sync_folder, trouble
from orchestrator.view.answer import Answer


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """None: standard output. Raises OutputFailed where it can't be written. After whatever failure there is what was
    there before."""
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
