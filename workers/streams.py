"""Standard output and error that lose a line rather than raise. Standard library only.

Both are the log. When its disk is full, or the file system goes away, a print
inside an engine would fail the batch that it is about; a log is worth less. So
is text that can't be encoded.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Any, TextIO


class Lossy(io.FileIO):
    def write(self, data: Any, /) -> int:
        with suppress(OSError):
            return super().write(data) or 0
        return memoryview(data).nbytes


def lose_rather_than_fail() -> None:
    """Before anything keeps a reference to the streams as they are."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, _lossy(stream))


def _lossy(stream: TextIO) -> TextIO:
    raw = Lossy(stream.fileno(), "w", closefd=False)
    # Unbuffered, as it was: what is said right before a crash counts most.
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
