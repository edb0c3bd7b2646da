"""A message in parts of one size: how it is cut, and how it is put together again."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.codec import MAX_MESSAGE_BYTES
from protocol.errors import Malformed

#: Larger ones would let strangers hold more, smaller ones cost a batch as much as encryption does.
PART_BYTES = 256 * 1024
MAX_PARTS = MAX_MESSAGE_BYTES // PART_BYTES


def split(data: bytes) -> list[memoryview]:
    """As parts of PART_BYTES, the last one shorter."""
    view = memoryview(data)
    return [view[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)] or [view]


def join(parts: Sequence[bytes]) -> bytes:
    """What `split` cut. Raises Malformed for anything else."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise Malformed("a message of more parts than memory can hold")
    if len(parts) > MAX_PARTS:
        raise Malformed(f"a message in more than {MAX_PARTS} parts")
    if any(len(part) != PART_BYTES for part in parts[:-1]) or not parts[-1]:
        raise Malformed(f"a message in {len(parts)} parts of other sizes than agreed")
    return b"".join(parts)
