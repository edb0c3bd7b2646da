"""Messages to bytes and back: msgpack with explicit limits, typed while it is read.

A field that nobody knows is skipped and never becomes an object, so what a peer
can make us build is bounded by the types: one message, in the size of its bytes
times a small factor. Only the messages with free-form fields can hold anything
at all; these are small, and are read by rules that refuse what isn't plain.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union

import msgpack
import msgspec
from msgspec import Struct

from protocol.errors import Malformed, Oversized
from protocol.messages import (
    BatchDone,
    BatchFailed,
    Beat,
    Down,
    Fatal,
    Goodbye,
    Hello,
    Imported,
    Init,
    Message,
    Ready,
    Run,
    Shutdown,
    Up,
)

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
#: Of a message with free-form fields: engine options as they were asked for, or as the engine tells them.
MAX_FREE_BYTES = 1024 * 1024
#: An empty map is one byte on the wire and 64 in memory.
MAX_ITEMS = MAX_FREE_BYTES

#: With a field of type Any.
FREE_FORM = (Ready, Goodbye, Init)
M = TypeVar("M", bound=Message)


class _FreeForm(Struct):
    """A message with free-form fields, recognised and not read yet."""


_READY, _GOODBYE, _INIT = (
    msgspec.defstruct(kind.__name__, [], bases=(_FreeForm,), tag=kind.__struct_config__.tag) for kind in FREE_FORM
)
_UP = msgspec.msgpack.Decoder(Union[Hello, Imported, BatchDone, BatchFailed, Fatal, Beat, _READY, _GOODBYE])
_DOWN = msgspec.msgpack.Decoder(Union[Run, Shutdown, _INIT])
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """One msgpack map. Raises Oversized past the limit, Malformed for text that is
    not valid Unicode or an integer outside 64 bits."""
    limit_bytes = MAX_FREE_BYTES if isinstance(message, FREE_FORM) else MAX_MESSAGE_BYTES
    try:
        data = _pack(message) if isinstance(message, FREE_FORM) else _ENCODER.encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError, RecursionError) as exc:
        raise Malformed(f"{type(message).__name__} can't be encoded: {exc}") from exc
    if len(data) > limit_bytes:
        raise Oversized(len(data), limit_bytes)
    return data


def _pack(message: Message) -> bytes:
    """By way of plain values: msgspec's own encoder would make an ext type of a date."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    data: bytes = msgpack.packb(plain, use_bin_type=True)
    return data


def decode_up(data: bytes) -> Up:
    """A worker's message. Raises Malformed or Oversized."""
    return _decode(data, _UP, Up)  # type: ignore[no-any-return]


def decode_down(data: bytes) -> Down:
    """The coordinator's message. Raises Malformed or Oversized."""
    return _decode(data, _DOWN, Down)  # type: ignore[no-any-return]


def _decode(data: bytes, typed: msgspec.msgpack.Decoder[Any], union: Any) -> Any:
    if len(data) > MAX_MESSAGE_BYTES:
        raise Oversized(len(data), MAX_MESSAGE_BYTES)
    try:
        message = typed.decode(data)
    except (msgspec.DecodeError, RecursionError, MemoryError) as exc:
        raise Malformed(str(exc)) from exc
    return _convert(_unpack(data), union) if isinstance(message, _FreeForm) else message


def _convert(plain: Any, union: Any) -> Any:
    try:
        return msgspec.convert(plain, union, builtin_types=(bytes,))
    except msgspec.ValidationError as exc:
        raise Malformed(str(exc)) from exc


def _unpack(data: bytes) -> Any:
    if len(data) > MAX_FREE_BYTES:
        raise Oversized(len(data), MAX_FREE_BYTES)
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            max_str_len=MAX_FREE_BYTES,
            max_bin_len=MAX_FREE_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
            object_pairs_hook=_named,
        )
    except Exception as exc:  # msgpack raises ValueError, its own and UnicodeDecodeError; all mean one thing here
        raise Malformed(f"not msgpack: {type(exc).__name__}: {exc}") from exc


def _named(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """msgpack itself also lets bytes be keys, which JSON can't hold."""
    if not all(isinstance(name, str) for name, _ in pairs):
        raise TypeError("a key that is no text")
    return dict(pairs)
