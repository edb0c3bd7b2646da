"""The records of each commit, as the journal places them in generations.jsonl."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.events import BatchCommitted
from orchestrator.record.cutoff import commits
from orchestrator.record.output import FLAG_SUSPENDED
from protocol.records import BatchStats

TICK_S = 1e-9


@dataclass
class Range:
    """The records of one commit. `overtaken` prompts were committed again later and no longer count."""

    commit: BatchCommitted
    overtaken: set[str] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.commit.offset + self.commit.length

    @property
    def measured(self) -> bool:
        """Whether the figures of a run are made of it: a batch with a time, of which no prompt ran again later."""
        return is_timed(self.commit.stats, self.commit.flags) and not self.overtaken


def is_timed(stats: BatchStats | None, flags: Collection[str] = ()) -> bool:
    """A batch that took less than the tick of any clock was not timed, nor one that may have been stopped meanwhile."""
    return stats is not None and stats.wall_s >= TICK_S and FLAG_SUSPENDED not in flags


@dataclass
class Ranges(Collection[Range]):
    """The commits of a run that count, in file order. All together may not fit into memory: each walk over them reads
    the journal again.

    until    where the journal ended, in bytes
    dropped  see `cut_off`
    again    of each point, where in the journal prompts of it were committed once more, and which
    """

    run_dir: Path
    dropped: Mapping[int, int] = field(default_factory=dict)
    until: int = 0
    count: int = 0
    again: dict[str, list[tuple[int, frozenset[str]]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Range]:
        for begin, commit in commits(self.run_dir, self.until) if self.count else ():
            if begin not in self.dropped:
                yield Range(commit, self._overtaken(begin, commit))

    def __len__(self) -> int:
        return self.count

    def __contains__(self, one: object) -> bool:
        return any(one == part for part in self)

    def _overtaken(self, begin: int, commit: BatchCommitted) -> set[str]:
        later = [prompts for at, prompts in self.again.get(commit.point, ()) if at > begin]
        return {prompt for prompt in commit.prompts if any(prompt in prompts for prompts in later)}
