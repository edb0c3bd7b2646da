"""The two ends of the wire: a ROUTER for the coordinator, a DEALER for a worker.

Every socket has LINGER 0 and a bounded high-water mark, so that no exit waits
for a peer and no queue grows without end.
"""

from __future__ import annotations

import math

import zmq

from protocol.codec import MAX_MESSAGE_BYTES, decode_down, encode
from protocol.errors import Malformed, PeerGone
from protocol.messages import Down, Up

HIGH_WATER_MARK = 64
#: sun_path holds 108 bytes with its terminator; libzmq binds 107 and fails at 108.
MAX_IPC_PATH_BYTES = 107


class RouterChannel:
    """The coordinator's end. Raw frames come out of `receive`: the caller checks
    the identity before it decodes anything."""

    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        # Without it ROUTER drops what it can't deliver, silently.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(endpoint)
        self.endpoint = endpoint

    def send(self, identity: bytes, message: Down) -> None:
        """Raises PeerGone if nobody is connected as `identity` or its queue is full."""
        frame = encode(message)
        try:
            self.socket.send_multipart([identity, frame], flags=zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            raise PeerGone(f"no route to {identity!r}: {exc}") from exc

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """(identity, frames) of one waiting message, or None."""
        try:
            frames = self.socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames[0], frames[1:]

    def close(self) -> None:
        self.context.destroy(linger=0)


class DealerChannel:
    """A worker's end. Not thread-safe: one thread owns it."""

    def __init__(self, endpoint: str, identity: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode("ascii"))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.connect(endpoint)

    def send(self, message: Up) -> None:
        self.socket.send(encode(message))

    def offer(self, frame: bytes) -> bool:
        """Queues `frame`, or answers False where `send` would block: the coordinator is gone or slow."""
        try:
            self.socket.send(frame, flags=zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def wait(self, wake_fd: int, timeout_s: float, sending: bool) -> None:
        """Sleeps until a message is there, `wake_fd` is readable, the time is up, or,
        if `sending`, the queue has room again."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN | (zmq.POLLOUT if sending else 0))
        poller.register(wake_fd, zmq.POLLIN)
        poller.poll(max(0, math.ceil(timeout_s * 1000)))

    def receive(self, timeout_s: float) -> Down | None:
        """The next message, or None after `timeout_s`. Raises Malformed."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        frames = self.socket.recv_multipart()
        if len(frames) != 1:
            raise Malformed(f"{len(frames)} frames where one was expected")
        return decode_down(frames[0])

    def close(self, linger_s: float = 0.0) -> None:
        """`linger_s` lets a farewell leave before the context goes."""
        self.context.destroy(linger=int(linger_s * 1000))
