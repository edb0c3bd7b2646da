"""Asks a back end, in a thread: its commands take seconds where its controller is busy, and a run must not wait."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from orchestrator.errors import ClusterError

T = TypeVar("T")


class Clerk:
    """`ask` returns at once; the answer is handed over by `answers`, in the caller's thread."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = 0  # asked, and not handed over
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="airlock-clerk", daemon=True)
        self._thread.start()

    def ask(
        self, question: Callable[[], T], then: Callable[[T], None], or_else: Callable[[ClusterError], None]
    ) -> None:
        def work() -> Callable[[], None]:
            try:
                answer = question()
            except Exception as exc:  # the thread must outlive it: of what is asked later nobody would hear
                failed = exc if isinstance(exc, ClusterError) else ClusterError(f"{type(exc).__name__}: {exc}")
                return lambda: or_else(failed)
            return lambda: then(answer)

        self._open += 1
        self._todo.put(work)

    def fileno(self) -> int:
        """Readable when there are answers."""
        return self._read

    def answers(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        with suppress(Empty):
            while True:
                answer = self._done.get_nowait()
                self._open -= 1
                answer()

    def settle(self, patience_s: float) -> bool:
        """Whether all that was asked is answered, what the answers led to included; waits so long for that."""
        give_up_at = time.monotonic() + patience_s
        while self._open and (left_s := give_up_at - time.monotonic()) > 0:
            select.select([self._read], [], [], left_s)
            self.answers()
        return not self._open

    def close(self, patience_s: float) -> None:
        """All that was asked is done first, as far as that takes no longer than `patience_s`."""
        settled = self.settle(patience_s)
        self._todo.put(None)
        if settled:  # else the thread is in the middle of a command, and is left behind
            self._thread.join()
            os.close(self._read)
            os.close(self._write)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            self._done.put(work())
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")
