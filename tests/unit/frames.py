"""Frames that nobody meant to send: the golden messages, damaged in every cheap way, and things made to hurt."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from protocol.codec import encode
from tests.unit.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
MAX_FRAME_BYTES = 2048


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


def _typed(kind: str, **fields: Any) -> bytes:
    return packed({"type": kind, **fields})


def _claiming(header: bytes) -> bytes:
    """A batch whose results are said to be as many as `header` claims."""
    return b"\x82\xa4type\xaabatch_done\xabgenerations" + header


DEPTH = 5000
NASTY: tuple[bytes, ...] = (
    b"",
    b"\xc1",
    b"\x80",
    b"\x91" * DEPTH + b"\xc0",
    b"\x81\xa1x" * DEPTH + b"\xc0",
    b"\x82\xa4type\xa7goodbye\xa1x" + b"\x91" * DEPTH + b"\xc0",
    b"\x82\xa4type\xa7goodbye\xa8metadata" + b"\x81\xa1x" * DEPTH + b"\xc0",
    *(_claiming(b) for b in (b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x9f")),
    *(b"\x81\xa4type" + b for b in (b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01")),
    b"\x83\xa4type\xa5hello\xa4type\xa7goodbye\xa8metadata\xc0",
    b"\x83\xa4type\xa7goodbye\xa4type\xa5hello\xa8metadata\xc0",
    b"\x83\xa4type\xa8shutdown\xa6reason\xa1a\xa6reason\xc0",
    b"\x82\xa4type\xa8shutdown\xa6reason\xa2\xff\xfe",
    b"\x82\xa4type\xa8shutdown\xa6reason\xa3\xed\xa0\x80",
    b"\x82\xa4type\xa8shutdown\xa2\xff\xfe\xa0",
    b"\x82\xc4\x04type\xa7goodbye\xa1x\xc0",
    b"\x82\x01\x02\xa4type\xa7goodbye",
    b"\x82\x80\x02\xa4type\xa7goodbye",
    b"\x82\xa4type\xa7goodbye\xa8metadata\xd6\xff\x00\x00\x00\x00",
    b"\x82\xa4type\xa7goodbye\xa1x\xc7\x01\x05y",
    packed([]),
    packed("hello"),
    packed(2**64 - 1),
    packed(float("nan")),
    packed([{"type": "beat"}] * 100),
    packed({"type": ["beat"]}),
    packed({"type": None}),
    _typed("beat", phase="busy", progress=float("nan")),
    _typed("beat", phase="busy", progress=-(2**63)),
    _typed("beat", phase="busy", progress=2**64 - 1, memory={"host_rss_bytes": 2**64 - 1}),
    _typed("beat", phase="busy", progress=1, memory=[]),
    _typed("imported", import_s=float("inf"), engine_version="\0" * 100),
    _typed("batch_done", batch_id="b", generations=[{}] * 200, stats={}),
    _typed("batch_done", batch_id="b", generations=[], stats={"wall_s": float("nan"), "generated_tokens": 0}),
    _typed("goodbye", metadata={b"engine": "x"}),
    _typed("goodbye", metadata={"engine": "x", "options": {"a": {b"b": 1}}}),
    _typed("goodbye", metadata={"engine": "x", "options": {"a": msgpack.Timestamp(1)}}),
    _typed("fatal", phase="asleep", error={"type": "x", "message": "y"}),
    _typed("no such thing"),
)


def corpus() -> list[bytes]:
    golden = [bytes.fromhex(text) for text in json.loads(GOLDEN.read_text())["messages"].values()]
    return [*golden, *map(encode, SAMPLES.values()), *NASTY]


def mutations(seed: int) -> Iterator[bytes]:
    """Without end; the same for the same seed. None is much larger than MAX_FRAME_BYTES."""
    rng = random.Random(seed)
    seeds = [one for one in corpus() if len(one) <= MAX_FRAME_BYTES]
    while True:
        frame = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            rng.choice(DAMAGE)(rng, frame, seeds)
        yield bytes(frame[: 2 * MAX_FRAME_BYTES])


def _flip(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    if frame:
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    if frame:
        frame[rng.randrange(len(frame))] = rng.choice(TELLING)


def _cut(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    del frame[rng.randrange(len(frame) + 1) :]


def _omit(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    at = rng.randrange(len(frame) + 1)
    del frame[at : at + rng.randrange(1, 9)]


def _insert(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    at = rng.randrange(len(frame) + 1)
    frame[at:at] = rng.randbytes(rng.randrange(1, 9))


def _repeat(rng: random.Random, frame: bytearray, _seeds: list[bytes]) -> None:
    at = rng.randrange(len(frame) + 1)
    frame[at:at] = frame[at : at + rng.randrange(1, 65)] * rng.randrange(1, 4)


def _splice(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    frame[rng.randrange(len(frame) + 1) :] = other[rng.randrange(len(other) + 1) :]


#: Bytes with which msgpack begins something, and its lengths at their edges.
TELLING = bytes([*range(0xC0, 0xE0), 0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xFF])
DAMAGE = (_flip, _replace, _cut, _omit, _insert, _repeat, _splice)
