"""The worker's end of the channel: the main thread speaks and hears for itself, and a thread beside it beats.

The main thread belongs to the engine and may sit in a C call for minutes, so the
beats have a thread of their own. It also takes over what can't leave at once: the
coordinator is slow, or a signal came in the middle of another message.

One thread at a time may use a socket of libzmq. So there is a lock, and nobody sleeps
with it: the main thread waits at the socket's descriptor, which says that something
may have come, and only once. Who used it up meanwhile, and sees a message, tells.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from protocol.channel import DealerChannel
from protocol.codec import encode
from protocol.errors import PeerGone
from protocol.messages import Beat, Down, Phase, Up
from workers.memory import MemoryMeter

BEAT_S = 1.0
#: While something can't leave.
RETRY_S = 0.05
#: How long a farewell may take to leave.
LINGER_S = 2.0
#: On top of it, until the thread is left to the end of the process.
JOIN_S = 1.0


class Wire:
    """`send` is safe from any thread and from a signal handler; `receive` is the main thread's."""

    def __init__(self, channel: DealerChannel) -> None:
        """`channel` is ours from now on."""
        self.phase: Phase = "importing"
        self.progress = 0
        self._channel = channel
        self._lock = threading.Lock()  # of the channel and of what is unsent
        self._outbox: SimpleQueue[bytes] = SimpleQueue()
        self._unsent: deque[bytes] = deque()
        self._closed = False
        self._deadline: float | None = None
        self._failure: BaseException | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()  # for the thread
        self._look = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # for the main thread
        self._arrivals = select.poll()
        self._arrivals.register(self._look, select.POLLIN)
        self._arrivals.register(channel.fileno(), select.POLLIN)
        self._memory = MemoryMeter()
        self._thread = threading.Thread(target=self._run, name="airlock-wire", daemon=True)
        self._thread.start()

    def send(self, message: Up) -> None:
        """Raises Oversized or Malformed here, where the cause can still be reported."""
        self.send_raw(encode(message))

    def send_raw(self, frame: bytes) -> None:
        self._outbox.put(frame)
        # Whoever has the lock looks into the outbox again once it has let go.
        while not (self._closed or self._outbox.empty()) and self._lock.acquire(blocking=False):
            try:
                self._push()
            finally:
                self._lock.release()
        if self._unsent:
            self._bell.put(None)

    def receive(self) -> Down:
        """The next message; blocks. Raises Malformed for nonsense, PeerGone once closed, or what ended the thread."""
        while True:
            with self._lock:
                if self._closed:
                    raise PeerGone("the wire is closed")
                message = self._channel.receive(0)
            if not self._outbox.empty():
                self._bell.put(None)
            if message is not None:
                return message
            if self._failure is not None:
                raise self._failure
            self._sleep()

    def close(self, linger_s: float = LINGER_S) -> None:
        """Returns once all that was sent has left, or after about `linger_s`. A second call waits for the first."""
        if self._deadline is None:
            self._deadline = time.monotonic() + linger_s
        self._bell.put(None)
        self._thread.join(linger_s + JOIN_S)
        if not self._thread.is_alive():
            with self._lock:
                self._end(self._deadline)
            self._look, look = -1, self._look
            if look >= 0:
                os.close(look)

    def _sleep(self) -> None:
        for fd, _ in self._arrivals.poll():
            if fd == self._look:
                os.eventfd_read(fd)

    # --- with the lock ----------------------------------------------------------

    def _push(self) -> None:
        """As much of what is to be sent as can leave now."""
        if self._closed:
            return
        with suppress(Empty):
            while True:
                self._unsent.append(self._outbox.get_nowait())
        while self._unsent:
            frame = self._unsent.popleft()  # first: a signal that ends us here must not have it sent twice
            if not self._channel.offer(frame):
                self._unsent.appendleft(frame)
                break
        if self._channel.has_message():
            os.eventfd_write(self._look, 1)

    def _end(self, deadline: float) -> None:
        if not self._closed:
            self._closed = True
            self._channel.close(max(0.0, deadline - time.monotonic()))

    # --- the thread -------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as exc:
            traceback.print_exc(file=sys.stderr)
            self._failure = exc
            os.eventfd_write(self._look, 1)

    def _loop(self) -> None:
        beat_at = time.monotonic() + BEAT_S
        while True:
            self._nap(beat_at)
            deadline, now = self._deadline, time.monotonic()  # before the outbox: what was put before close() leaves
            if now >= beat_at:
                beat_at = now + BEAT_S
                self._beat()
            with self._lock:
                self._push()
                if deadline is not None and (not self._unsent or now >= deadline):
                    return self._end(deadline)

    def _nap(self, beat_at: float) -> None:
        until = min(beat_at, self._deadline or beat_at)
        longest_s = RETRY_S if self._unsent else BEAT_S
        with suppress(Empty):
            self._bell.get(timeout=max(0.0, min(longest_s, until - time.monotonic())))

    def _beat(self) -> None:
        if not self._unsent:  # a beat is worth nothing late
            beat = Beat(self.phase, self.progress, self._memory.read(busy=self.phase == "busy"))
            self._outbox.put(encode(beat))
