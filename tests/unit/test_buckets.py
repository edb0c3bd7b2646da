"""Which shape a batch is padded to."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.buckets import Buckets, NoBucket, Shape, choose, doubled
from protocol.specs import BackendConfig, MethodSpec

SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=8)


def config(**fields: Any) -> BackendConfig:
    return BackendConfig(method=MethodSpec("m", "hf", rocket_bucket=True), model_path="/model", **fields)


def test_powers_of_two_up_to_what_can_occur() -> None:
    found = choose(config(batch_size=6, max_new_tokens=32), 512)
    assert found == Buckets((1, 2, 4, 6), (64, 128, 256, 480), 32)
    assert found.cache_tokens == 512


def test_given_sizes_are_sorted_and_those_that_can_not_occur_are_left_out() -> None:
    asked = config(batch_size=3, max_new_tokens=8, bucket_batch_sizes=(16, 4, 2, 4), bucket_lengths=(96, 32, 64))
    found = choose(asked, 64)
    assert (found.batch_sizes, found.lengths) == ((2, 4), (32, 64))
    assert found.cache_tokens == 72


def test_a_length_bucket_may_end_below_the_longest_admissible_prompt() -> None:
    found = choose(config(batch_size=1, max_new_tokens=8, bucket_lengths=(32, 48)), 256)
    assert found.lengths == (32, 48)
    with pytest.raises(NoBucket, match="no bucket holds a length of 49: the largest is 48"):
        found.fit(1, 49, 8)


def test_the_smallest_that_holds_the_batch() -> None:
    buckets = Buckets((1, 2, 4), (64, 128), 16)
    assert buckets.fit(1, 1, 16) == Shape(1, 64)
    assert buckets.fit(3, 65, 1) == Shape(4, 128)
    assert buckets.fit(3, 65, 1).cells == 512
    assert buckets.shapes() == [(4, 128), (4, 64), (2, 128), (2, 64), (1, 128), (1, 64)]


@pytest.mark.parametrize(
    ("fields", "limit", "why"),
    [
        ({"batch_size": 8, "bucket_batch_sizes": (1, 4)}, 256, "no bucket holds a batch size of 8: the largest is 4"),
        ({"batch_size": 1, "max_new_tokens": 32}, 32, "32 new tokens leave no room for a prompt in 32"),
    ],
)
def test_what_no_bucket_can_hold_is_refused(fields: dict[str, Any], limit: int, why: str) -> None:
    with pytest.raises(NoBucket, match=why):
        choose(config(**fields), limit)


def test_more_new_tokens_than_the_cache_was_made_for_are_refused() -> None:
    with pytest.raises(NoBucket, match="17 new tokens, and the buckets were made for 16"):
        Buckets((1,), (64,), 16).fit(1, 1, 17)


@given(SIZES, SIZES, st.integers(1, 4096), st.integers(1, 4096))
def test_a_bucket_holds_the_need_and_no_smaller_one_does(
    batches: list[int], lengths: list[int], rows: int, length: int
) -> None:
    buckets = Buckets(tuple(sorted(set(batches))), tuple(sorted(set(lengths))), 8)
    if rows > max(batches) or length > max(lengths):
        with pytest.raises(NoBucket):
            buckets.fit(rows, length, 8)
        return
    shape = buckets.fit(rows, length, 8)
    assert shape in buckets.shapes()
    assert shape.batch >= rows
    assert shape.length >= length
    assert not [size for size in batches if rows <= size < shape.batch]
    assert not [size for size in lengths if length <= size < shape.length]


@given(SIZES, st.integers(1, 4096), st.integers(1, 4096))
def test_a_larger_need_never_gets_a_smaller_bucket(lengths: list[int], one: int, other: int) -> None:
    buckets = Buckets((1,), (*sorted({*lengths}), 4097), 8)
    small, large = sorted((one, other))
    assert buckets.fit(1, small, 8).length <= buckets.fit(1, large, 8).length


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 1000),
    st.none() | SIZES.map(tuple),
)
def test_every_admissible_batch_fits_or_its_length_is_beyond_the_given_ones(
    batch_size: int, new: int, room: int, lengths: tuple[int, ...] | None
) -> None:
    found = choose(config(batch_size=batch_size, max_new_tokens=new, bucket_lengths=lengths), room + new)
    longest = room if lengths is None else min(room, max(lengths))
    assert found.fit(batch_size, longest, new) == (found.batch_sizes[-1], found.lengths[-1])
    assert found.cache_tokens >= longest + new
    assert list(found.batch_sizes) == sorted(set(found.batch_sizes))


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_doubling_ends_with_the_most(first: int, most: int) -> None:
    sizes = doubled(first, most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))
