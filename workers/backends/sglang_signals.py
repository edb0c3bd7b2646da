"""Signals round SGLang's event loop: the death of its children, and a SIGTERM for us.

Left to itself, SGLang answers the death of a child by killing its whole tree,
this process included, without a word.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

#: Set by SIGQUIT, which a dying child of SGLang sends, and by SGLang's own watch over its children.
child_failed = threading.Event()


def on_child_failure(_signum: int | None = None, _frame: object = None) -> None:
    """SGLang's handler while it starts and until the first request. Returning lets
    Engine() raise; the child's own traceback stands above in the log. Its children
    import this function by name, so it must stay at the top of a module."""
    child_failed.set()
    os.write(2, b"airlock: a child process of SGLang failed\n")


class StoppedBySigterm:
    """Lets SIGTERM end a running batch.

    Inside SGLang's event loop the exception that the session's handler raises is
    swallowed. So meanwhile ours stops the loop, and the session's is called after it.
    """

    def __init__(self, loop: Any, terminated: threading.Event) -> None:
        self._loop, self._terminated = loop, terminated
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._stop)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if self._terminated.is_set() and callable(self._before):
            self._before(signal.SIGTERM, None)

    def _stop(self, *_: object) -> None:
        self._terminated.set()
        self._loop.call_soon_threadsafe(self._loop.stop)


def signal_handlers(terminated: threading.Event) -> type:
    """The class whose methods SGLang makes its handlers once its event loop first runs.

    They run inside that loop, where an exception would only be logged; so they
    stop it, and with it `generate`, which finds the mark.
    """
    import asyncio

    from sglang.srt.managers.tokenizer_manager import SignalHandler

    class Handlers(SignalHandler):  # type: ignore[misc]
        def running_phase_sigquit_handler(self, signum: int | None = None, frame: object = None) -> None:
            if self.tokenizer_manager._subprocess_watchdog is not None:
                self.tokenizer_manager._subprocess_watchdog.stop()
            on_child_failure(signum, frame)
            asyncio.get_running_loop().stop()

        def sigterm_handler(self, *_: object) -> None:
            terminated.set()
            asyncio.get_running_loop().stop()

    return Handlers
