"""An outpost's end of the wire: a thread that dials back, tells, tells again until it is acknowledged, and hears.

The loop of an outpost may be busy or asleep; this thread keeps the beat. What was told and not acknowledged yet is
kept and told again, in order, so a connection that breaks loses nothing. If the coordinator is silent for too long,
the outpost is on its own, and the link is `lost`: nobody will take what it measures any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from msgspec.structs import replace

from orchestrator.progress import WorkerProgress
from orchestrator.remote import messages
from orchestrator.remote.messages import Assign, Brief, Joined, Numbered, Pulse, Tick
from protocol.channel import DealerChannel
from protocol.errors import WireError

TICK_S: Final = 1.0
#: Without a word of what was told last it is told again.
TELL_AGAIN_S: Final = 3.0
#: Unacknowledged; whoever tells more waits.
MOST_WAITING_BYTES: Final = 64 << 20


class Link:
    """`tell` is safe from any thread. `on_word` is called, in the link's thread, when there is something new: an
    assignment, the wish that we leave, or that we are lost."""

    def __init__(
        self, dial: Callable[[], DealerChannel], joined: Joined, silence_s: float, on_word: Callable[[], None]
    ) -> None:
        self.assigned: SimpleQueue[tuple[Brief, Assign]] = SimpleQueue()
        self.leave = ""
        self.leaving: Callable[[], str] = lambda: ""
        self.kill = self.lost = False
        self.progress: Callable[[], WorkerProgress | None] = lambda: None
        self._dial, self._joined, self._silence_s, self._on_word = dial, joined, silence_s, on_word
        self._brief: Brief | None = None
        self._assignment = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = self._number = self._sent = 0
        self._room = threading.Condition()
        self._ended = threading.Event()
        self._told_leaving = ""
        self._heard_at = self._told_at = time.monotonic()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="airlock-link", daemon=True)
        self._thread.start()

    def tell(self, message: Numbered) -> None:
        """Returns once it is kept; waits while too much is. Nothing is told once the link is lost. Raises Oversized."""
        with self._room:
            self._room.wait_for(lambda: self._waiting_bytes <= MOST_WAITING_BYTES or self.lost)
            frame = messages.encode(replace(message, number=self._number + 1))
            self._number += 1
            self._waiting.append((self._number, frame))
            self._waiting_bytes += len(frame)
        self._wake()

    def close(self, linger_s: float) -> bool:
        """Whether all that was told is acknowledged; waits so long for that."""
        with self._room:
            done = self._room.wait_for(lambda: not self._waiting or self.lost, linger_s) and not self._waiting
        self._ended.set()
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        return done

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # --- the thread -------------------------------------------------------------------

    def _run(self) -> None:
        channel = self._dial()
        try:
            channel.offer(messages.encode(self._joined))
            tick_at = time.monotonic()
            while not self._ended.is_set():
                now = time.monotonic()
                if now >= tick_at or self.leaving() != self._told_leaving:  # before Finished, or more would be assigned
                    tick_at = now + TICK_S
                    self._tick(channel)
                self._offer(channel)
                channel.wait(self._wake_read, tick_at - now)
                self._drain()
                self._hear(channel)
                self._check_silence()
        finally:
            channel.close(TICK_S)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _tick(self, channel: DealerChannel) -> None:
        if self._brief is None:  # the first may have gone astray
            channel.offer(messages.encode(self._joined))
        self._told_leaving = self.leaving()
        tick = Tick(
            assignment=self._assignment,
            briefed=self._brief is not None,
            progress=self.progress(),
            leaving=self._told_leaving,
        )
        channel.offer(messages.encode(tick))

    def _offer(self, channel: DealerChannel) -> None:
        with self._room:
            if time.monotonic() - self._told_at >= TELL_AGAIN_S and self._waiting:
                self._sent = self._waiting[0][0] - 1
            todo = [(number, frame) for number, frame in self._waiting if number > self._sent]
        for number, frame in todo:
            if not channel.offer(frame):
                return
            self._sent = number
            self._told_at = time.monotonic()

    def _hear(self, channel: DealerChannel) -> None:
        while True:
            try:
                frame = channel.receive_frame(0)
                if frame is None:
                    return
                message = messages.decode_down(frame)
            except WireError:
                continue  # it will be said again
            self._heard_at = time.monotonic()
            self._take(message)

    def _take(self, message: messages.Down) -> None:
        match message:
            case Brief():
                self._brief = message
            case Assign():
                if self._brief and message.assignment == self._assignment + 1:
                    self._assignment = message.assignment
                    self.assigned.put((self._brief, message))
                    self._on_word()
            case Pulse():
                self._acknowledged(message.heard)
                if (message.leave, message.kill) != (self.leave, self.kill):
                    self.leave, self.kill = message.leave, message.kill
                    self._on_word()

    def _acknowledged(self, heard: int) -> None:
        with self._room:
            while self._waiting and self._waiting[0][0] <= heard:
                self._waiting_bytes -= len(self._waiting.popleft()[1])
                self._told_at = time.monotonic()
            self._room.notify_all()

    def _check_silence(self) -> None:
        if not self.lost and time.monotonic() - self._heard_at > self._silence_s:
            with self._room:
                self.lost = True
                self._room.notify_all()
            self._on_word()
