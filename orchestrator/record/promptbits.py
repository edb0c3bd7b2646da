"""Which prompts of a point have a record, a bit each: a run may have many points, and as many prompts in each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Numbers:
    """The prompt ids of a run, numbered as they come; and the bits that whole sets of them have in common."""

    ids: list[str] = field(default_factory=list)
    of: dict[str, int] = field(default_factory=dict)
    shared: dict[bytes, bytes] = field(default_factory=dict)

    def number(self, prompt: str) -> int:
        found = self.of.get(prompt)
        if found is None:
            found = self.of[prompt] = len(self.ids)
            self.ids.append(prompt)
        return found


class PromptBits(MutableSet[str]):
    """A set of prompt ids. One that is closed can still be changed; it only takes less memory until then."""

    __slots__ = ("_bits", "_numbers")

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._bits: bytes | bytearray = b""

    def mark(self, prompts: Iterable[str]) -> list[str]:
        """Adds them. Those that were there before."""
        bits, number_of, before = self._open(), self._numbers.number, []
        for prompt in prompts:
            number = number_of(prompt)
            at, bit = number >> 3, 1 << (number & 7)
            if at >= len(bits):
                bits.extend(bytes(at + 1 - len(bits)))
            if bits[at] & bit:
                before.append(prompt)
            bits[at] |= bit
        return before

    def add(self, prompt: str) -> None:
        self.mark([prompt])

    def discard(self, prompt: str) -> None:
        if prompt in self:
            number = self._numbers.of[prompt]
            self._open()[number >> 3] &= ~(1 << (number & 7))

    def close(self) -> None:
        """All points with the same prompts have one set of bits then."""
        bits = bytes(self._bits)
        self._bits = self._numbers.shared.setdefault(bits, bits)

    def _open(self) -> bytearray:
        if not isinstance(self._bits, bytearray):
            self._bits = bytearray(self._bits)
        return self._bits

    def __contains__(self, prompt: object) -> bool:
        number = self._numbers.of.get(prompt) if isinstance(prompt, str) else None
        if number is None or number >> 3 >= len(self._bits):
            return False
        return bool(self._bits[number >> 3] >> (number & 7) & 1)

    def __iter__(self) -> Iterator[str]:
        return (prompt for prompt in self._numbers.ids if prompt in self)

    def __len__(self) -> int:
        return int.from_bytes(self._bits).bit_count()

    @classmethod
    def _from_iterable(cls, prompts: Iterable[T]) -> set[T]:
        """What the operators of sets give."""
        return set(prompts)

    def __repr__(self) -> str:
        return repr(set(self))
