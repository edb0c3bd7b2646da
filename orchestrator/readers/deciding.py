"""Which format a file of prompts is in: the one that is said, else the one that all its records are in. Pure.

A record that is in another format too, or in another one alone, leaves open what it means: a chat that ends in an
answer may be one to be continued, or a question with its expected answer. So nothing of such a file is read until the
format is said, wherever in it the record stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.definition.promptuse import Reading
from orchestrator.readers.mapping import says_prompt
from orchestrator.readers.shapes import OWN, fitting


class Undecided(Exception):
    """What a record could be, and what to write."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.suggestion = f"say which it is: {' or '.join(f'format: {name}' for name in names)}"


class Decider:
    """Asked of every record, in their order. `told`: what is to be said of a format that was found."""

    def __init__(self, reading: Reading) -> None:
        own = reading.container == OWN or says_prompt(reading)
        self._said = reading.shape or (OWN if own else None)
        self._found: str | None = None

    def __call__(self, record: Any) -> str:
        """Raises Undecided."""
        if self._said is not None:
            return self._said
        names = fitting(record)
        if len(names) > 1:
            raise Undecided(f"can be read as {' and as '.join(names)}", names)
        # What is in no format is refused for itself, in words of the format that the others are in.
        self._found = self._found or (names or [OWN])[0]
        if names and names[0] != self._found:
            other = names[0]
            raise Undecided(
                f"is as {other} has it, and what is before it is read as {self._found}", [self._found, other]
            )
        return self._found

    @property
    def told(self) -> str | None:
        if self._found in (None, OWN):
            return None
        return f"prompts: read as {self._found}, by the fields of the first record"
