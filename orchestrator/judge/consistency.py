"""Each method against itself: whether greedy outputs depend on the day or on the size of the batch. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
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
    """Points whose outputs should be the same. `left`: those that are not through; `steps`: what tells points apart."""

    key: tuple[str, str, Over]
    left: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    first: array[int] = field(default_factory=lambda: array("Q"))
    place: int | None = None
    apart: set[int] = field(default_factory=set)

    def note(self, prompt: int, fingerprint: int) -> None:
        """Of an output: 0 stands for none."""
        if prompt >= len(self.first):
            self.first.extend([0] * (prompt + 1 - len(self.first)))
        if self.first[prompt] not in (0, fingerprint):
            self.apart.add(prompt)
        else:
            self.first[prompt] = fingerprint


@dataclass
class _Count:
    """Of all groups of one method, dtype and kind of step. `place`: where the first output of the first stands."""

    place: int
    outputs: int = 0
    same: int = 0
    prompts: set[int] = field(default_factory=set)


class Selves:
    """Keeps a fingerprint of the first output of each prompt, for each group of points whose outputs should be the
    same, until all of these are through."""

    def __init__(self, points: Iterable[SweepPoint]) -> None:
        self._groups: dict[str, list[tuple[str, _Group]]] = {}
        self._counts: dict[tuple[str, str, Over], _Count] = {}
        self._prompts: dict[str, int] = {}
        alike: dict[tuple[Any, ...], _Group] = {}
        planned: dict[int, set[str]] = {}
        for point in points:
            for over, same, step in _grouped(point) if point.config.temperature <= 0 else ():
                key = (point.method, point.config.dtype, over)
                group = alike.setdefault((key, same), _Group(key))
                group.left.add(point.id)
                planned.setdefault(id(group), set()).add(step)
                self._groups.setdefault(point.id, []).append((step, group))
        for point_id, groups in self._groups.items():  # with itself nothing is compared
            self._groups[point_id] = [(step, group) for step, group in groups if len(planned[id(group)]) > 1]

    def add(self, point: SweepPoint, said: Told, place: int) -> None:
        """`place`: of the output, in the order of the file."""
        groups = self._groups.get(point.id)
        if not groups or said.failed or said.scored:
            return
        prompt = self._prompts.setdefault(said.prompt_id, len(self._prompts))
        fingerprint = said.fingerprint
        for step, group in groups:
            group.note(prompt, fingerprint)
            group.steps.add(step)
            group.place = place if group.place is None else min(place, group.place)

    def close(self, points: Iterable[str]) -> None:
        """No more outputs of these come."""
        for point in points:
            for _, group in self._groups.pop(point, ()):
                group.left.discard(point)
                if not group.left:
                    self._count(group)

    def _count(self, group: _Group) -> None:
        if len(group.steps) > 1 and group.place is not None:
            count = self._counts.setdefault(group.key, _Count(group.place))
            prompts = [prompt for prompt, one in enumerate(group.first) if one]
            count.place = min(count.place, group.place)
            count.outputs += len(prompts)
            count.same += len(prompts) - len(group.apart)
            count.prompts.update(prompts)
        group.first, group.apart = array("Q"), set()

    def lines(self) -> Iterator[Consistency]:
        """One for each method, dtype and kind of step of which there is more than one, in the order of the file."""
        ordered = sorted(self._counts.items(), key=lambda one: (one[1].place, one[0][2] != "repeats"))
        for (method, dtype, over), count in ordered:
            yield Consistency(method, dtype, over, count.outputs, len(count.prompts), count.same)


def _grouped(point: SweepPoint) -> Iterator[tuple[Over, tuple[Any, ...], str]]:
    """What its outputs are compared over, what it shares with the others of its group, what tells it from them."""
    config = point.config
    yield "repeats", cell_of(config), point.id
    yield "batch sizes", (*work_of(config), point.repeat), str(config.batch_size)
