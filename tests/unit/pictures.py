"""Tiny images, made without any library."""

from __future__ import annotations

import base64
import struct
import zlib


def png(colour: tuple[int, int, int], width: int = 80, height: int = 60) -> bytes:
    """One colour all over, 8 bits a channel."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(colour) * width) * height
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode('ascii')}"


RED = png((255, 0, 0))
BLUE = png((0, 0, 255), 60, 90)
