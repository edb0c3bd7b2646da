"""Who may touch an environment or a made model: makers alone, users together. flock, so it ends with its holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import InputError, Problem

POLL_S = 0.25
REMIND_S = 10.0


class FileLock:
    """One descriptor on one lock file, outside the folder it guards: the folder gets removed.

    Held until `close` or the end of the process; no child inherits it. Raises InputError
    where it can't be made.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            message = f"{path.parent} can't be written to: {exc.strerror}"
            raise InputError([Problem("", "AIRLOCK_HOME", message, "set it to a folder of yours")]) from exc

    def try_exclusive(self) -> bool:
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        return self._try(fcntl.LOCK_SH)

    def exclusive(self, waiting: str, say: Callable[[str], None], on_wait: Callable[[], None] | None) -> None:
        self._wait(self.try_exclusive, waiting, say, on_wait)

    def shared(self, waiting: str, say: Callable[[str], None], on_wait: Callable[[], None] | None) -> None:
        """Also from exclusive; another may get in between, so read again what the lock guards."""
        self._wait(self.try_shared, waiting, say, on_wait)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as exc:  # Lustre that was mounted without them, say
            message = f"{self._folder} takes no locks: {exc.strerror}"
            raise InputError([Problem("", "AIRLOCK_HOME", message, "set it to a folder whose disk does")]) from exc
        return True

    def _wait(
        self, attempt: Callable[[], bool], waiting: str, say: Callable[[str], None], on_wait: Callable[[], None] | None
    ) -> None:
        # Not a blocking flock: that would hold off whoever wants to stop until the other side is done.
        remind_at = 0.0
        while not attempt():
            if (now := time.monotonic()) >= remind_at:
                say(waiting)
                remind_at = now + REMIND_S
            time.sleep(POLL_S)
            if on_wait:
                on_wait()
