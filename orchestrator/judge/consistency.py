"""Each method against itself: whether greedy outputs depend on the day or on the size of the batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.judge.reference import cell_of, work_of
from orchestrator.judge.told import Told
from orchestrator.plan import SweepPoint

Over = Literal["repeats", "batch sizes"]


@dataclass(frozen=True)
class Consistency:
    """Of `outputs` greedy outputs of one method, at the same work and dtype, `same` came out alike over all repeats of
    a cell, or over all batch sizes of a repeat. A prompt has an output for each of these cells or repeats."""

    method: str
    dtype: str
    over: Over
    outputs: int
    prompts: int
    same: int


@dataclass
class _Group:
    """Points whose outputs should be the same. `steps`: what tells its points apart."""

    outputs: dict[str, set[bytes]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)


class Selves:
    """Keeps a fingerprint of each different output."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Over, str, str, tuple[Any, ...]], _Group] = {}

    def add(self, point: SweepPoint, said: Told) -> None:
        config = point.config
        if said.failed or said.scored or config.temperature > 0:
            return
        self._note("repeats", point, cell_of(config), point.id, said)
        self._note("batch sizes", point, (*work_of(config), point.repeat), str(config.batch_size), said)

    def _note(self, over: Over, point: SweepPoint, alike: tuple[Any, ...], step: str, said: Told) -> None:
        group = self._groups.setdefault((over, point.method, point.config.dtype, alike), _Group())
        group.outputs.setdefault(said.prompt_id, set()).add(said.fingerprint)
        group.steps.add(step)

    def lines(self) -> Iterator[Consistency]:
        """One for each method, dtype and kind of step of which there is more than one."""
        counts: dict[tuple[str, str, Over], tuple[list[bool], set[str]]] = {}
        for (over, method, dtype, _), group in self._groups.items():
            if len(group.steps) > 1:
                alike, prompts = counts.setdefault((method, dtype, over), ([], set()))
                alike += (len(seen) == 1 for seen in group.outputs.values())
                prompts.update(group.outputs)
        for (method, dtype, over), (alike, prompts) in counts.items():
            yield Consistency(method, dtype, over, len(alike), len(prompts), sum(alike))
