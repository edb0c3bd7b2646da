"""Values that wait on the disk, not in memory, for whoever reads them: as many as a run has rows, or differences."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeVar, overload
from weakref import finalize

T = TypeVar("T")
#: Less stays in memory after all.
SMALL_BYTES: Final = 8 << 20


class Spool:
    """A file without a name, gone with the last reader of its values. What is read back is what it was given."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(SMALL_BYTES)  # noqa: SIM115
        finalize(self, self._file.close)

    def keep(self, values: Iterable[T]) -> Kept[T]:
        """In this order. Estimates lose how they are worked out, not their error."""
        places = array("Q")
        self._file.seek(0, 2)
        for value in values:
            places.append(self._file.tell())
            pickle.dump(value, self._file, pickle.HIGHEST_PROTOCOL)
        return Kept(self, places)

    def read(self, place: int) -> Any:
        self._file.seek(place)
        return pickle.load(self._file)


class Kept(Sequence[T]):
    """Reads each value anew whenever it is asked for."""

    def __init__(self, spool: Spool, places: Iterable[int]) -> None:
        self._spool = spool
        self.places = array("Q", places)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._spool.read(place) for place in self.places[at]]
        value: T = self._spool.read(self.places[at])
        return value

    def __iter__(self) -> Iterator[T]:
        return (self._spool.read(place) for place in self.places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Kept({list(self)!r})"
