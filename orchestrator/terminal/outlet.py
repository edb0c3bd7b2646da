"""Output that can neither stop nor hurt the coordinator.

A terminal may be closed (EIO), a pipe's reader gone (EPIPE) or just not
reading: Ctrl-S, a pager, a stalled ssh. A write then blocks, and with it
every deadline of the sweep. So a thread of its own does the writing, on a
private copy of the descriptor; what can't be taken in time is dropped and counted.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import signal
import threading
from contextlib import suppress
from typing import TextIO

BACKLOG = 1000
#: How long the end of a run waits for a slow reader to take the last lines.
FLUSH_S = 5.0
#: What a file says that has no room for more; a reader that has gone is no fault of anybody's.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Outlet:
    """Where text goes. `write` returns at once and never raises; nor does `close`."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._fd = _private_copy(stream)
        self._queue: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._thread: threading.Thread | None = None
        self.dead = stream is None
        self.full = False
        self.dropped = 0

    @property
    def fd(self) -> int | None:
        return self._fd

    @property
    def busy(self) -> bool:
        """Whether earlier text still waits to be taken; then a mere refresh had better be left out."""
        return self._queue.unfinished_tasks > 0

    def write(self, text: str) -> None:
        if self.dead or not text:
            return
        if self._fd is None:
            self._write_plainly(text)
        else:
            self._hand_over(text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Waits FLUSH_S at most. Safe to call again."""
        if self._thread is not None:
            self._end_thread(self._thread)
        elif self._fd is not None:
            os.close(self._fd)
        self._fd, self.dead = None, True

    def _write_plainly(self, text: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.dead = True

    def _hand_over(self, data: bytes) -> None:
        if self._thread is None:
            assert self._fd is not None
            self._thread = threading.Thread(target=self._work, args=(self._fd,), name="console-outlet", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self.dropped += 1

    def _end_thread(self, thread: threading.Thread) -> None:
        try:
            self._queue.put(None, timeout=FLUSH_S)
        except queue.Full:
            # The reader takes nothing. Should it ever wake up, the thread finds its end and nothing else.
            self._discard()
            self._queue.put_nowait(None)
        thread.join(FLUSH_S)

    def _discard(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _work(self, fd: int) -> None:
        # A signal taken by this thread would not wake the main thread's poll.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while (data := self._queue.get()) is not None:
            if not self.dead:
                self._write_all(fd, data)
            self._queue.task_done()
        os.close(fd)

    def _write_all(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[_write_some(fd, view) :]
        except OSError as exc:
            self.dead, self.full = True, exc.errno in FULL


def _write_some(fd: int, view: memoryview) -> int:
    try:
        return os.write(fd, view)
    except BlockingIOError:  # somebody else made the terminal non-blocking
        select.select([], [fd], [])
        return 0


def _private_copy(stream: TextIO | None) -> int | None:
    """A descriptor that stays ours when the stream is closed and its number given to another file."""
    if stream is None:
        return None
    try:
        stream.flush()
        return os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
