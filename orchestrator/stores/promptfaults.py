"""What is wrong with the records of a file, of which there may be a million."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from orchestrator.definition.sweepfile import by_line
from orchestrator.errors import Problem

#: Problems of one kind that are told each by itself.
ALIKE = 10
#: Kinds that are told apart; a file whose records have nothing in common has as many as records.
KINDS = 20
_OTHERS = "", ""
_PARTICULAR = re.compile(r"\d+|'[^']*'")


class _Kind(Struct):
    told: list[Problem]
    more: int = 0
    last: Problem | None = None

    def add(self, problem: Problem) -> None:
        if len(self.told) < ALIKE:
            self.told.append(problem)
        else:
            self.more, self.last = self.more + 1, problem

    def problems(self) -> Iterator[Problem]:
        yield from self.told
        if (last := self.last) is not None:
            more = f"; the last of {self.more} more like it" if self.more > 1 else ""
            yield Problem(last.where, last.key, last.message + more, last.suggestion)


class Faults:
    """A mistake that most lines of a large file have is kept of a few of them, and counted."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def add(self, problem: Problem) -> None:
        kind = _PARTICULAR.sub("", f"{problem.key} {problem.message}"), problem.suggestion
        if kind not in self._kinds and len(self._kinds) >= KINDS:
            kind = _OTHERS
        self._kinds.setdefault(kind, _Kind([])).add(problem)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def problems(self) -> list[Problem]:
        """In the order of the lines."""
        return by_line(problem for kind in self._kinds.values() for problem in kind.problems())
