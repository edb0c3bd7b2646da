"""When each token of a padded batch was there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class StepClock:
    """A streamer: `generate` hands it the prompt once, then each step's tokens, already on the host.

    Rows of a batch advance together, so one count of tokens serves all of them.
    """

    def __init__(self, tick: Callable[[], object] = lambda: None) -> None:
        self._tick = tick
        self._ends: list[float] = []  # by number of tokens - 1: seconds at which a row had that many
        self._prompt_seen = False
        self.steps = 0
        self._start = time.perf_counter()

    def put(self, tokens: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        # One token for each row, or with speculation several for the only row.
        count = int(tokens.shape[1]) if tokens.ndim == 2 else 1
        self._ends += [self.elapsed_s()] * count
        self.steps += 1
        self._tick()

    def end(self) -> None: ...

    @property
    def tokens(self) -> int:
        """Of the longest row."""
        return len(self._ends)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start

    def times_s(self, count: int) -> list[float]:
        """Seconds until a row had its first, second … `count`-th token."""
        return self._ends[:count]
