"""The worker's end of the channel, owned by one thread of its own.

The main thread belongs to the engine and may sit in a C call for minutes, so
beats and frames are handled beside it. The thread sleeps in one poll until a
message comes, the main thread wakes it, or a beat is due.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from protocol.channel import DealerChannel
from protocol.codec import encode
from protocol.errors import WireError
from protocol.messages import Beat, Down, Phase, Up
from workers.memory import MemoryMeter

BEAT_S = 1.0
#: How long a farewell may take to leave.
LINGER_S = 2.0
#: On top of it, until the thread is left to the end of the process.
JOIN_S = 1.0
#: Messages read ahead of the main thread; what comes beyond them waits at the coordinator.
MOST_UNREAD = 16


class Wire:
    """`send` is safe from any thread and from a signal handler; `receive` is the main thread's."""

    def __init__(self, channel: DealerChannel) -> None:
        """`channel` is the thread's from now on."""
        self.phase: Phase = "importing"
        self.progress = 0
        self._channel = channel
        self._outbox: SimpleQueue[bytes] = SimpleQueue()
        self._inbox: SimpleQueue[Down | BaseException] = SimpleQueue()
        self._deadline: float | None = None
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._memory = MemoryMeter()
        self._thread = threading.Thread(target=self._run, name="airlock-wire", daemon=True)
        self._thread.start()

    def send(self, message: Up) -> None:
        """Raises Oversized or Malformed here, where the cause can still be reported."""
        self.send_raw(encode(message))

    def send_raw(self, frame: bytes) -> None:
        self._outbox.put(frame)
        self._wake()

    def receive(self) -> Down:
        """The next message; blocks. Raises Malformed for nonsense, or what ended the thread."""
        item = self._inbox.get()
        if self.unread >= MOST_UNREAD - 1:  # it was full, and the thread does not listen
            self._wake()
        if isinstance(item, BaseException):
            raise item
        return item

    @property
    def unread(self) -> int:
        return self._inbox.qsize()

    def close(self, linger_s: float = LINGER_S) -> None:
        """Returns once all that was sent has left, or after about `linger_s`. A second call waits for the first."""
        if self._deadline is None:
            self._deadline = time.monotonic() + linger_s
        self._wake()
        self._thread.join(linger_s + JOIN_S)
        if not self._thread.is_alive():
            self._waker.close()
            self._woken.close()

    def _wake(self) -> None:
        with suppress(OSError):  # it has not even read the last wake-ups, or is no more
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as exc:
            traceback.print_exc(file=sys.stderr)
            self._inbox.put(exc)

    def _loop(self) -> None:
        waiting: deque[bytes] = deque()
        beat_at = time.monotonic() + BEAT_S
        while True:
            deadline = self._deadline  # read before the outbox: what was put before close() still leaves
            self._offer(waiting)
            now = time.monotonic()
            if deadline is not None and (not waiting or now >= deadline):
                self._channel.close(max(0.0, deadline - now))
                return
            if now >= beat_at:
                beat_at = now + BEAT_S
                self._beat(waiting)
            self._sleep(min(beat_at, deadline or beat_at) - now, sending=bool(waiting))
            self._receive()

    def _offer(self, waiting: deque[bytes]) -> None:
        with suppress(Empty):
            while True:
                waiting.append(self._outbox.get_nowait())
        while waiting and self._channel.offer(waiting[0]):
            waiting.popleft()

    def _beat(self, waiting: deque[bytes]) -> None:
        if not waiting:  # a beat is worth nothing late
            self._channel.offer(encode(Beat(self.phase, self.progress, self._memory.read(busy=self.phase == "busy"))))

    def _sleep(self, seconds: float, *, sending: bool) -> None:
        self._channel.wait(self._woken.fileno(), seconds, sending=sending, receiving=self._has_room())
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _has_room(self) -> bool:
        return self.unread < MOST_UNREAD

    def _receive(self) -> None:
        while self._has_room():
            try:
                message = self._channel.receive(0)
            except WireError as exc:
                self._inbox.put(exc)
                continue
            if message is None:
                return
            self._inbox.put(message)
