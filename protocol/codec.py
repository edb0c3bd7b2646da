"""Messages to bytes and back: msgpack with explicit limits, then typed validation."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from protocol.errors import Malformed, Oversized
from protocol.messages import Down, Message, Up

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
#: As large as a message, so that whatever was encoded can be decoded.
MAX_STRING_BYTES = MAX_MESSAGE_BYTES
MAX_ITEMS = 4 * 1024 * 1024


def encode(message: Message) -> bytes:
    """One msgpack map. Raises Oversized past the limit, Malformed for text that is
    not valid Unicode or an integer outside 64 bits."""
    try:
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        data: bytes = msgpack.packb(plain, use_bin_type=True)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError) as exc:
        raise Malformed(f"{type(message).__name__} can't be encoded: {exc}") from exc
    if len(data) > MAX_MESSAGE_BYTES:
        raise Oversized(len(data), MAX_MESSAGE_BYTES)
    return data


def decode_up(data: bytes) -> Up:
    """A worker's message. Raises Malformed or Oversized."""
    return _convert(_unpack(data), Up)  # type: ignore[no-any-return]


def decode_down(data: bytes) -> Down:
    """The coordinator's message. Raises Malformed or Oversized."""
    return _convert(_unpack(data), Down)  # type: ignore[no-any-return]


def _convert(plain: Any, union: Any) -> Any:
    try:
        return msgspec.convert(plain, union, builtin_types=(bytes,))
    except msgspec.ValidationError as exc:
        raise Malformed(str(exc)) from exc


def _unpack(data: bytes) -> Any:
    if len(data) > MAX_MESSAGE_BYTES:
        raise Oversized(len(data), MAX_MESSAGE_BYTES)
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            max_str_len=MAX_STRING_BYTES,
            max_bin_len=MAX_STRING_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except Exception as exc:  # msgpack raises ValueError, its own and UnicodeDecodeError; all mean one thing here
        raise Malformed(f"not msgpack: {type(exc).__name__}: {exc}") from exc
