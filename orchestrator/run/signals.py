"""The wish to stop, as something a poll can wait for.

The first SIGINT or SIGTERM asks for an orderly end, the second for a kill at
once. SIGHUP counts as SIGTERM unless it was inherited as ignored (nohup), and so
do the signals by which batch systems say that the time is nearly up. SIGQUIT is
survived: engines send it to whoever they take for their parent.

Only ^C is ever pressed twice by a person: other signals come doubled by
themselves (`timeout` signals its child and then its group, a closing terminal's
shell passes SIGHUP on, systemd adds one), so they count again only after REPEAT_S.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from orchestrator.errors import Interrupted

LAST_NOTICES = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
HANDLED = (signal.SIGINT, signal.SIGTERM, *LAST_NOTICES, signal.SIGQUIT)
REPEAT_S = 1.0


class StopFlag:
    """Use as a context manager in the main thread; `fileno()` turns readable when a signal came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.raises = False  # a handler that only sets a flag does not end a blocking read (PEP 475)
        self.signum: int | None = None
        self.count = 0
        self._clock = clock
        self._counted_at = 0.0
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    @property
    def name(self) -> str:
        """Of the signal that asked first."""
        return signal.Signals(self.signum).name if self.signum else ""

    @property
    def requested(self) -> bool:
        return self.count > 0

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after any other, as shells report them."""
        return 130 if self.signum == signal.SIGINT else 143

    def ask(self, times: int) -> None:
        """As if SIGTERM had come so often; from any thread."""
        if self.count < times:
            self.signum = self.signum or signal.SIGTERM
            self.count = times
        self.wake()

    def wake(self) -> None:
        """Makes `fileno()` readable; from any thread."""
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def wait(self) -> None:
        """Until a signal comes, or somebody wakes us."""
        select.select([self._read], [], [])
        self.drain()

    def fileno(self) -> int:
        return self._read

    def drain(self) -> None:
        """Make `fileno()` quiet again."""
        try:
            while os.read(self._read, 512):
                pass
        except BlockingIOError:
            pass

    def __enter__(self) -> Self:
        # Without the wake-up descriptor a handler that only sets a flag would not end a poll (PEP 475).
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in HANDLED:
            before = signal.getsignal(signum)
            if signum in LAST_NOTICES and before == signal.SIG_IGN:
                continue
            self._before[signum] = before
            signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGQUIT:
            return
        now = self._clock()
        if self.count and signum != signal.SIGINT and now - self._counted_at < REPEAT_S:
            return
        self.signum = self.signum or signum
        self.count += 1
        self._counted_at = now
        if self.raises:
            raise Interrupted(signum)
