"""What batches and worker starts took, found again under what they were measured of and under ever less of that. Pure.

What was not measured itself is taken from what is nearest to it: the same method with batches of the same size, then
of other sizes, then its engine, then any method, always with the same model on the same kind of machine. Times grow
with the tokens of a prompt and with the square root of the batch's size, half way between an engine that has room in
its batch and one that has none.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol

#: Of one kind so many of the latest count: paces drift, as caches fill and heat comes.
LATEST: Final = 7
#: A first warm-up compiles and fills caches.
Phase = Literal["first", "warm", "measured"]
Key = tuple[object, ...]


class Kind(NamedTuple):
    """What seconds per batch depend on, its size apart. `model`: with the kind of device; `prompts`: digest of all."""

    model: str
    task: str
    method: str
    engine: str
    prompts: str
    tokens: int


class Cell(NamedTuple):
    """What a point's batches are like. `load`: how its worker is loaded, empty where not known."""

    kind: Kind
    size: int
    load: bytes = b""


class Batch(NamedTuple):
    kind: Kind
    size: int
    phase: Phase = "measured"


class MethodLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> str: ...


class ConfigLike(Protocol):
    """As `BackendConfig`."""

    @property
    def method(self) -> MethodLike: ...
    @property
    def device(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def max_new_tokens(self) -> int: ...


class Inputs(NamedTuple):
    """The digest of a run's model, that of its prompts, and how many these are."""

    model: str
    prompts: str
    prompt_count: int

    def cell(self, config: ConfigLike, load: bytes = b"") -> Cell:
        tokens = config.max_new_tokens if config.task == "generate" else 1
        model = f"{self.model} {config.device}"
        kind = Kind(model, config.task, config.method.name, config.method.engine, self.prompts, tokens)
        return Cell(kind, min(config.batch_size, self.prompt_count), load)


class Time(NamedTuple):
    """What it is likely to take; whether that was measured of the same method."""

    seconds: float
    same_method: bool


@dataclass
class Paces:
    """What was measured; of each thing the latest."""

    _times: dict[Key, deque[float]] = field(default_factory=lambda: defaultdict(_latest))

    def took(self, batch: Batch, seconds: float) -> None:
        self._note(batch.phase, _batch_ladder(batch), seconds / _weight(batch))

    def came_up(self, cell: Cell, seconds: float) -> None:
        self._note("up", _load_ladder(cell), seconds)

    def went_down(self, cell: Cell, seconds: float) -> None:
        self._note("down", _load_ladder(cell), seconds)

    def middle(self, what: str, key: Key) -> float | None:
        found = self._times.get((what, *key))
        return median(found) if found else None

    def _note(self, what: str, ladder: Ladder, seconds: float) -> None:
        for key in (*ladder.of_method, *ladder.beyond):
            self._times[(what, *key)].append(seconds)


def batch_time(sources: Sequence[Paces], batch: Batch) -> Time | None:
    """Of the nearest that was measured; of two that are as near that of the first source."""
    ladder = _batch_ladder(batch)
    own = Ladder(ladder.of_method, ())
    tries = {
        "first": ((("first",), own), (("warm", "measured"), ladder), (("first",), ladder)),
        "warm": ((("warm", "measured"), ladder), (("first",), ladder)),
        "measured": ((("measured", "warm"), ladder), (("first",), ladder)),
    }
    found = (_climb(sources, phases, rungs) for phases, rungs in tries[batch.phase])
    time = next((one for one in found if one is not None), None)
    return None if time is None else Time(time.seconds * _weight(batch), time.same_method)


def load_time(sources: Sequence[Paces], what: Literal["up", "down"], cell: Cell) -> Time | None:
    """Until a worker has loaded, or is gone again."""
    return _climb(sources, (what,), _load_ladder(cell))


class Ladder(NamedTuple):
    """Under what a time is kept, from the thing itself to all of its model."""

    of_method: tuple[Key, ...]
    beyond: tuple[Key, ...]


def _climb(sources: Sequence[Paces], whats: Sequence[str], ladder: Ladder) -> Time | None:
    for key in (*ladder.of_method, *ladder.beyond):
        for source in sources:
            for what in whats:
                if (found := source.middle(what, key)) is not None:
                    return Time(found, key in ladder.of_method)
    return None


def _batch_ladder(batch: Batch) -> Ladder:
    kind = batch.kind
    task = (kind.model, kind.task)
    method = (*task, "method", kind.method)
    return Ladder(((kind, batch.size), (*method, batch.size), method), ((*task, "engine", kind.engine), task))


def _load_ladder(cell: Cell) -> Ladder:
    kind = cell.kind
    method = (kind.model, "method", kind.method)
    return Ladder(((*method, cell.load), method), ((kind.model, "engine", kind.engine), (kind.model,)))


def _weight(batch: Batch) -> float:
    return max(1, batch.kind.tokens) * sqrt(max(1, batch.size))


def _latest() -> deque[float]:
    return deque(maxlen=LATEST)
