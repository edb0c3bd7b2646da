"""How many prompts were read, left out and taken, in words: nothing is dropped in silence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from orchestrator.definition.promptuse import Sample


class Tally(Struct, frozen=True):
    """read       records
    left       how many were left out, by reason ("have fewer than 4 tokens")
    remarks    how many have something left out or not heeded, by what that is
    told       sentences of its own
    sample     how many were drawn, and by which seed
    of         out of how many
    looked_at  how many of these were tokenised until there were enough; None for all
    """

    read: int = 0
    left: Mapping[str, int] = {}
    remarks: Mapping[str, int] = {}
    told: tuple[str, ...] = ()
    sample: Sample | None = None
    of: int = 0
    looked_at: int | None = None

    def notes(self) -> tuple[str, ...]:
        """Sentences; none for prompts that were all taken as they stand."""
        counts = [self._counts()] if self.left or self.sample else []
        remarks = [f"prompts: {what} ({count} of {self.read})" for what, count in self.remarks.items()]
        return (*self.told, *counts, *remarks)

    def _counts(self) -> str:
        return "prompts: " + "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield f"{self.read} read"
        if self.left:
            yield f"left out: {reasons(self.left)}"
        if self.sample is None:
            return
        drawn = f"{self.sample.count} of {self.of} drawn with seed {self.sample.seed}"
        looked = "" if self.looked_at is None else f", of which {self.looked_at} had to be tokenised for that"
        yield drawn + looked


def reasons(left: Mapping[str, int]) -> str:
    """ "3 that have more than 1024 tokens, 1 that can't be a prompt" """
    return ", ".join(f"{count} that {why}" for why, count in left.items())
