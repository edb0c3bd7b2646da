"""Standard output for what was asked for: the one thing that a reader of runs has to deliver.

It may be full, closed, a terminal that is gone or a pipe whose reader has left.
A sweep goes on without it (see `outlet`); for a report or an export that is a failure.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from orchestrator.errors import OutputFailed


class Answer:
    """Methods raise OutputFailed. What can't be said in the encoding of the output is escaped."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        try:
            self._stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        except (AttributeError, ValueError):  # closed, or another program's own kind of stream
            return
        except OSError as exc:  # it flushes what was written before
            raise self._failure(exc) from exc

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError, AttributeError) as exc:
            raise self._failure(exc) from exc

    def write_data(self, data: bytes) -> int:
        """As it is. Nothing may have been written as text before."""
        try:
            return self._stream.buffer.write(data)
        except (OSError, ValueError, AttributeError) as exc:
            raise self._failure(exc) from exc

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(f"{line}\n")

    def finish(self) -> None:
        """Only now is it known that all has arrived."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as exc:
            raise self._failure(exc) from exc
        except AttributeError:  # closed from the start, and nothing was to be said
            return

    def _failure(self, exc: Exception) -> OutputFailed:
        number = exc.errno if isinstance(exc, OSError) else errno.EBADF
        self._forget()
        return OutputFailed(f"standard output: {os.strerror(number or errno.EBADF)}", number == errno.EPIPE)

    def _forget(self) -> None:
        """What is still in the buffer must not fail once more when the interpreter ends."""
        with suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self._stream.fileno(), inheritable=True)
            os.close(null)
