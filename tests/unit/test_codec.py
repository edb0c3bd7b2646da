"""The wire: golden bytes, round trips, limits, and what happens to nonsense.

The golden bytes are those of every message at the present protocol number. A
change that alters them for the peer needs a new PROTOCOL_VERSION. To write them
anew, run this file once with AIRLOCK_WRITE_GOLDEN=1 (it fails, on purpose) and
read the difference.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from protocol import PROTOCOL_VERSION, codec
from protocol.codec import decode_down, decode_up, encode
from protocol.errors import Malformed, Oversized
from protocol.messages import (
    Beat,
    Down,
    Message,
    Ready,
    Shutdown,
    Up,
)
from tests.unit.samples import CONFIG, METADATA, SAMPLES

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
WRITE = "AIRLOCK_WRITE_GOLDEN"


def decode(data: bytes, union: Any) -> Message:
    return decode_up(data) if union == Up else decode_down(data)


def side(message: Message) -> Any:
    return Up if isinstance(message, get_args(Up)) else Down


# --- golden bytes ---------------------------------------------------------


def test_every_message_has_golden_bytes() -> None:
    assert {type(m) for m in SAMPLES.values()} == {*get_args(Up), *get_args(Down)}


def test_golden_bytes() -> None:
    now = {"protocol": PROTOCOL_VERSION, "messages": {name: encode(m).hex() for name, m in SAMPLES.items()}}
    if os.environ.get(WRITE):
        GOLDEN.write_text(json.dumps(now, indent=1) + "\n")
        pytest.fail(f"{GOLDEN.name} written anew; look at the difference and run without {WRITE}")
    assert now == json.loads(GOLDEN.read_text()), "the wire changed: a new PROTOCOL_VERSION, or a mistake"


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes_are_understood(name: str) -> None:
    data = bytes.fromhex(json.loads(GOLDEN.read_text())["messages"][name])
    assert decode(data, side(SAMPLES[name])) == SAMPLES[name]


# --- round trips ----------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """All values of a type, as msgspec sees it: a new field is covered the day it is added."""
    match kind:
        case inspect.Metadata(type=inner):
            return values(inner)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{f.name: values(f.type) for f in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(values, types))
        case inspect.LiteralType(values=options):
            return st.sampled_from(options)
        case inspect.ListType(item_type=item):
            return st.lists(values(item), max_size=3)
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.DictType(value_type=value):
            return st.dictionaries(TEXT, values(value), max_size=3)
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
        case inspect.FloatType(ge=low, gt=above, le=high):
            least = above if low is None else low
            return st.floats(least, high, allow_nan=False, exclude_min=above is not None)
    return {
        inspect.StrType: TEXT,
        inspect.BytesType: st.binary(max_size=20),
        inspect.BoolType: st.booleans(),
        inspect.NoneType: st.none(),
        inspect.AnyType: PLAIN,
    }[type(kind)]


@given(values(inspect.type_info(Up)))
def test_up_round_trip(message: Up) -> None:
    assert decode_up(encode(message)) == message


@given(values(inspect.type_info(Down)))
def test_down_round_trip(message: Down) -> None:
    assert decode_down(encode(message)) == message


# --- what is skipped and what is refused ----------------------------------


def raw(name: str, **changes: Any) -> bytes:
    plain = msgpack.unpackb(encode(SAMPLES[name]))
    data: bytes = msgpack.packb({**plain, **changes})
    return data


@pytest.mark.parametrize("name", SAMPLES)
def test_unknown_fields_are_skipped(name: str) -> None:
    assert decode(raw(name, added_later={"x": [1]}), side(SAMPLES[name])) == SAMPLES[name]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="never used byte"),
        pytest.param(encode(SAMPLES["hello"])[:-1], id="cut short"),
        pytest.param(encode(SAMPLES["hello"]) + b"\x00", id="something behind"),
        pytest.param(msgpack.packb([1]), id="no map"),
        pytest.param(msgpack.packb({"protocol": 1}), id="no tag"),
        pytest.param(raw("hello", type="hullo"), id="unknown tag"),
        pytest.param(encode(SAMPLES["shutdown"]), id="wrong direction"),
        pytest.param(raw("hello", pid="42"), id="wrong type"),
        pytest.param(raw("hello", pid=None), id="null"),
        pytest.param(raw("fatal", phase="asleep"), id="not one of the words"),
        pytest.param(msgpack.packb({"type": "hello"}), id="fields missing"),
        pytest.param(msgpack.packb({"type": b"hello"}), id="tag as bytes"),
        pytest.param(msgpack.packb({1: 2}), id="key no text"),
        pytest.param(msgpack.packb(msgpack.ExtType(1, b"")), id="ext type"),
        pytest.param(msgpack.packb({"type": "beat", "x": msgpack.ExtType(4, b"y")}), id="ext type inside"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array of 4 G items claimed"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="text of 4 GB claimed"),
        pytest.param(b"\x91" * 2000 + b"\xc0", id="too deep"),
        pytest.param(b"\x81\xa4type\xa3\xed\xa0\x80", id="surrogate as UTF-8"),
    ],
)
def test_nonsense_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_up(data)


@given(st.binary(max_size=64))
def test_noise_never_raises_anything_else(data: bytes) -> None:
    for read in (decode_up, decode_down):
        with suppress(Malformed):
            read(data)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_damage_never_raises_anything_else(name: str, data: st.DataObject) -> None:
    damaged = bytearray(encode(SAMPLES[name]))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        decode(bytes(damaged), side(SAMPLES[name]))


@pytest.mark.parametrize(
    "config", [{"surprise": 1}, {"batch_size": 0}, {"seed": 2**63}, {"top_p": 0}, {"dtype": "int3"}]
)
def test_init_is_held_to_its_bounds(config: dict[str, Any]) -> None:
    """An option that a worker does not know would be a comparison of something else, so here nothing is skipped."""
    plain = msgspec.to_builtins(CONFIG)
    with pytest.raises(Malformed):
        decode_down(raw("init", config={**plain, **config}))


# --- what can't be encoded ------------------------------------------------


@pytest.mark.parametrize("text", ["\ud800", "a\udc9d b"])
def test_lone_surrogates_are_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        encode(Shutdown(text))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_integers_beyond_64_bits_are_malformed(number: int) -> None:
    with pytest.raises(Malformed):
        encode(Beat("busy", number))


def test_objects_are_malformed() -> None:
    with pytest.raises(Malformed, match="Ready"):
        encode(Ready(msgspec.structs.replace(METADATA, options={"tensor": object()})))


def test_oversized_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Shutdown("x" * 1000))
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", len(data))
    assert decode_down(encode(Shutdown("x" * 1000))) == Shutdown("x" * 1000)
    with pytest.raises(Oversized) as caught:
        encode(Shutdown("x" * 1001))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(data) + 1, len(data))
    with pytest.raises(Oversized):
        decode_down(data + b" ")
