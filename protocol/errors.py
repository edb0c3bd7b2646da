"""Errors of the wire, split by who is at fault.

WireError
├── Malformed       the peer sent bytes that are not a valid message
├── Oversized       a message is larger than the limit agreed by both sides
├── PeerGone        there is nobody connected under that identity
└── Unsupported     this interpreter's ZeroMQ can't speak to the other side
"""

from __future__ import annotations


class WireError(Exception):
    """Root of everything that can go wrong between coordinator and worker."""


class Malformed(WireError):
    """The frame is not msgpack, has an unknown tag, or a field of a wrong type."""


class Oversized(WireError):
    """The encoded message exceeds `codec.MAX_MESSAGE_BYTES`."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"message of {size_bytes} bytes exceeds the limit of {limit_bytes} bytes")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PeerGone(WireError):
    """ROUTER has no route to the identity: the worker never said Hello or has left."""


class Unsupported(WireError):
    """pyzmq was built without CURVE."""
