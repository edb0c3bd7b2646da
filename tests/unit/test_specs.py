"""BackendConfig's marks, CallParams, packed token ids."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from protocol.specs import (
    BackendConfig,
    CallParams,
    MethodSpec,
    call_fields,
    load_fields,
    pack_ids,
    unpack_ids,
    when,
)

CONFIG = BackendConfig(method=MethodSpec(name="m", engine="scripted"), model_path="/m")
ALL = [f.name for f in fields(BackendConfig)]


@pytest.mark.parametrize("name", ALL)
def test_each_field_says_when_it_acts(name: str) -> None:
    assert when(name) in ("load", "call")


def test_each_field_acts_once() -> None:
    assert sorted(load_fields() + call_fields()) == sorted(ALL)


def test_no_such_field() -> None:
    with pytest.raises(KeyError):
        when("nonsense")


def test_call_params_are_the_call_time_fields() -> None:
    assert {f.name: f.type for f in fields(CallParams)}.keys() == set(call_fields())


def test_what_builds_the_engine_is_load_time() -> None:
    assert {"method", "model_path", "dtype", "max_model_len", "kv_cache_bytes", "tensor_parallel_size"} <= {
        *load_fields()
    }


def test_call_params_of_a_config() -> None:
    call = CallParams.of(replace(CONFIG, seed=7, max_new_tokens=3, stop_token_ids=(2,)))
    assert (call.seed, call.max_new_tokens, call.stop_token_ids) == (7, 3, (2,))
    assert all(getattr(call, name) == getattr(CONFIG, name) for name in ("batch_size", "temperature", "top_p"))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_pack_and_unpack(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == ids
    assert len(pack_ids(ids)) == 4 * len(ids)


def test_packed_ids_are_little_endian() -> None:
    assert pack_ids([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert pack_ids(iter([2**32 - 1])) == struct.pack("<I", 2**32 - 1)


@pytest.mark.parametrize("bad", [-1, 2**32, 10**30])
def test_ids_outside_uint32_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="uint32"):
        pack_ids([0, bad])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_half_ids_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        unpack_ids(b"x" * size)
