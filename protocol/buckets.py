"""Which shape a batch is padded to: batch sizes and prompt lengths rounded up to fixed buckets. Pure.

A graph that was compiled or captured for one shape serves no other. Prompts of many lengths would be
compiled for again and again, or run uncompiled; a few shapes can all be warm before the first batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.specs import BackendConfig

#: Where the powers of two begin, tokens: shorter prompts are not worth a shape of their own.
LEAST_LENGTH = 64


class NoBucket(ValueError):
    """No bucket holds what is asked."""


class Shape(NamedTuple):
    """Of a padded batch: rows, and tokens of each prompt."""

    batch: int
    length: int

    @property
    def cells(self) -> int:
        return self.batch * self.length


@dataclass(frozen=True)
class Buckets:
    """Sizes in rising order. `new_tokens` is the most that any call may generate."""

    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    new_tokens: int

    @property
    def cache_tokens(self) -> int:
        """Positions of one KV cache that serves every bucket: a cache of another length is another shape."""
        return self.lengths[-1] + self.new_tokens

    def shapes(self) -> list[Shape]:
        """All of them, the largest first, so that memory once reserved serves the others."""
        return [Shape(*pair) for pair in itertools.product(self.batch_sizes[::-1], self.lengths[::-1])]

    def fit(self, rows: int, length: int, new_tokens: int) -> Shape:
        """The smallest shape that holds `rows` prompts of at most `length` tokens. Raises NoBucket."""
        if new_tokens > self.new_tokens:
            raise NoBucket(f"{new_tokens} new tokens, and the buckets were made for {self.new_tokens}")
        return Shape(_least("batch size", self.batch_sizes, rows), _least("length", self.lengths, length))


def choose(config: BackendConfig, limit: int) -> Buckets:
    """Those that can occur with the largest batch and the longest prompt that `limit` tokens
    leave room for, as given or powers of two. Raises NoBucket for a batch size that none holds."""
    room = limit - config.max_new_tokens
    if room < 1:
        raise NoBucket(f"{config.max_new_tokens} new tokens leave no room for a prompt in {limit}")
    batches = batch_sizes(config)
    lengths = sorted(set(config.bucket_lengths or doubled(LEAST_LENGTH, room)))
    _least("batch size", batches, config.batch_size)
    return Buckets(_up_to(batches, config.batch_size), _up_to(lengths, room), config.max_new_tokens)


def batch_sizes(config: BackendConfig) -> list[int]:
    """As given, or powers of two up to the largest batch; in rising order."""
    return sorted(set(config.bucket_batch_sizes or doubled(1, config.batch_size)))


def overflows(config: BackendConfig) -> bool:
    """Whether a batch can be larger than every bucket that is given."""
    sizes = config.bucket_batch_sizes
    return config.method.rocket_bucket and sizes is not None and config.batch_size > max(sizes, default=0)


def doubled(first: int, most: int) -> tuple[int, ...]:
    """`first`, twice that and so on below `most`, then `most` itself."""
    powers = itertools.takewhile(lambda size: size < most, (first << n for n in itertools.count()))
    return (*powers, most)


def _up_to(sizes: Sequence[int], need: int) -> tuple[int, ...]:
    """What lies beyond the first size that holds all is never used."""
    return tuple(size for at, size in enumerate(sizes) if at == 0 or sizes[at - 1] < need)


def _least(name: str, sizes: Sequence[int], need: int) -> int:
    for size in sizes:
        if size >= need:
            return size
    raise NoBucket(f"no bucket holds a {name} of {need}: the largest is {sizes[-1]}")
