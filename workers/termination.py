"""SIGTERM as an exception that can arrive only where it does no harm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """Asked to end by SIGTERM. A BaseException, so that an engine's `except Exception` lets it pass."""


class Termination:
    """Inside `window` a SIGTERM raises Terminated at once; elsewhere it is kept
    for the next window, so that no answer is lost half-sent."""

    def __init__(self) -> None:
        self._asked = False
        self._open = False

    def install(self) -> None:
        """Main thread only. Called before every wait: SGLang puts a handler of its own
        in place that does nothing while its event loop rests."""
        signal.signal(signal.SIGTERM, self._on_signal)

    @contextmanager
    def window(self) -> Iterator[None]:
        self._open = True
        try:
            if self._asked:
                raise Terminated
            yield
        finally:
            self._open = False

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._open:
            self._open = False
            raise Terminated
