"""Nine hundred thousand damaged frames through the codec: nothing but WireError, and no growth."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_FREE_BYTES, decode_down, decode_up, encode
from protocol.errors import Malformed, Oversized, WireError
from protocol.messages import Down, Message, Up
from tests.unit.frames import NASTY, corpus, mutations, packed, resident_bytes

FRAMES = 900_000
WARM_UP = 50_000
SEED = 20_240_229
#: Of resident memory, over all frames after the warm-up.
MAX_GROWTH_BYTES = 8 * 1024 * 1024

DECODERS: tuple[Callable[[bytes], Message], ...] = (decode_up, decode_down)


def fed(frame: bytes, outcomes: Counter[str]) -> None:
    for decode, union in zip(DECODERS, (Up, Down), strict=True):
        try:
            message = decode(frame)
        except WireError as exc:
            outcomes[type(exc).__name__] += 1
        else:
            assert isinstance(message, get_args(union))
            outcomes[type(message).__name__] += 1


def test_a_flood_of_damaged_frames() -> None:
    frames = mutations(SEED)
    outcomes: Counter[str] = Counter()
    for frame in itertools.islice(frames, WARM_UP):
        fed(frame, outcomes)
    gc.collect()
    before = resident_bytes()
    for frame in itertools.islice(frames, FRAMES - WARM_UP):
        fed(frame, outcomes)
    gc.collect()
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    assert sum(outcomes.values()) == len(DECODERS) * FRAMES
    # The damage is of the right strength: every message still comes through now and then, most do not.
    assert {one.__name__ for one in (*get_args(Up), *get_args(Down))} <= set(outcomes)
    assert outcomes[Malformed.__name__] > FRAMES


@pytest.mark.parametrize("frame", NASTY, ids=lambda frame: frame[:24].hex())
def test_things_made_to_hurt(frame: bytes) -> None:
    fed(frame, Counter())


def test_what_was_understood_can_be_sent_on_and_journalled() -> None:
    """No decoded message holds anything that the coordinator's own encoders choke on."""
    understood = 0
    for frame in itertools.islice(mutations(SEED + 1), WARM_UP):
        for decode in DECODERS:
            try:
                message = decode(frame)
            except WireError:
                continue
            understood += 1
            msgspec.json.encode(message)
            assert encode(decode(encode(message))) == encode(message)
    assert understood > WARM_UP // 20


# --- by structure, not by bytes ----------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=12)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**32))
)
KEYS = st.text(max_size=8).filter(str.isascii) | st.binary(max_size=4) | st.integers(0, 9)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def _lenient(frame: bytes) -> object:
    try:
        return msgpack.unpackb(frame, strict_map_key=False)
    except Exception:
        return None


MAPS = [plain for frame in corpus() if isinstance(plain := _lenient(frame), dict) and "type" in plain]


@given(ANYTHING)
def test_any_structure(value: object) -> None:
    fed(packed(value), Counter())


@given(st.sampled_from(MAPS), st.data())
def test_any_value_in_any_field(plain: dict[str, object], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(list(plain)))
    fed(packed({**plain, field: data.draw(ANYTHING)}), Counter())


# --- what it may cost ------------------------------------------------------------

BOMB_ITEMS = 4_000_000
MAPS_OF_NOTHING = b"\xdd" + BOMB_ITEMS.to_bytes(4, "big") + b"\x80" * BOMB_ITEMS


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x82\xa4type\xa4beat\xa1x" + MAPS_OF_NOTHING, id="in a field nobody knows"),
        pytest.param(b"\x82\xa4type\xaabatch_done\xabgenerations" + MAPS_OF_NOTHING, id="as results"),
        pytest.param(b"\x82\xa4type\xa7goodbye\xa1x" + MAPS_OF_NOTHING, id="in a message of free form"),
    ],
)
def test_a_bomb_does_not_go_off(frame: bytes) -> None:
    """As plain objects these four megabytes would be a quarter of a gigabyte."""
    before = peak_bytes()
    with pytest.raises((Malformed, Oversized)):
        decode_up(frame)
    assert peak_bytes() - before < 2 * BOMB_ITEMS * 8 + MAX_FREE_BYTES


def peak_bytes() -> int:
    """High-water mark of resident memory since the last call."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.split()[1]) * 1024
