"""Which point of a run the others' outputs are held against. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import fields

from orchestrator.plan import Plan, SweepPoint
from protocol.specs import BackendConfig

#: What decides which tokens a greedy engine gives; all else may move them by rounding only.
WORK: Final = ("task", "max_new_tokens", "temperature", "top_p", "seed", "ignore_eos", "stop_token_ids")
_CELL: Final = tuple(f.name for f in fields(BackendConfig) if f.name != "method")


def reference_method(plan: Plan) -> str | None:
    """The one that the sweep file names; else the first of Transformers, else the first. None without points."""
    engines = {point.method: point.config.method.engine for point in plan.listed}
    if plan.measurement.reference is not None:
        return plan.measurement.reference
    return next((name for name, engine in engines.items() if engine == "hf"), next(iter(engines), None))


def bases(
    points: Iterable[SweepPoint], reference: Plan, outputs: Mapping[str, int] | None = None
) -> dict[str, SweepPoint]:
    """Point → the point of the reference's method in `reference` that does the same work. Those without one are
    left out. `outputs`: point of `reference` → of how many prompts it has an output; None: not known."""
    name = reference_method(reference)
    candidates = [point for point in reference.listed if point.method == name and point.role == "measure"]
    choice = _Choice(candidates, reference, outputs)
    of_cell: dict[tuple[Any, ...], SweepPoint | None] = {}  # it depends on nothing else of a point
    found: dict[str, SweepPoint] = {}
    for point in points:
        cell = cell_of(point.config)
        if cell not in of_cell:
            of_cell[cell] = choice.base(point, cell)
        if base := of_cell[cell]:
            found[point.id] = base
    return found


def cell_of(config: BackendConfig) -> tuple[Any, ...]:
    """All but the method: what points of different methods must share to be compared."""
    return tuple(getattr(config, name) for name in _CELL)


def work_of(config: BackendConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in WORK)


def is_float32(config: BackendConfig, checkpoint: str | None) -> bool:
    return (checkpoint if config.dtype == "auto" else config.dtype) == "float32"


class _Choice:
    """For a point one that does the same work and has outputs; in float32 if there is one, then with log-probabilities,
    then with the most settings in common, then in the smallest batch. Of its repeats, which say the same, the first of
    those with the most outputs. Where one has all settings in common no others are looked through."""

    def __init__(self, candidates: Sequence[SweepPoint], plan: Plan, outputs: Mapping[str, int] | None) -> None:
        self._plan, self._outputs = plan, outputs
        self._of_work: dict[tuple[Any, ...], list[SweepPoint]] = {}
        self._of_cell: dict[tuple[Any, ...], list[SweepPoint]] = {}
        for one in candidates:
            self._of_work.setdefault(work_of(one.config), []).append(one)
        for work, same in self._of_work.items():
            best = min(map(self._worth, same))
            self._of_work[work] = [one for one in same if self._worth(one) == best]
            for one in self._of_work[work]:
                self._of_cell.setdefault(cell_of(one.config), []).append(one)

    def base(self, point: SweepPoint, cell: tuple[Any, ...]) -> SweepPoint | None:
        same = self._of_cell.get(cell) or self._of_work.get(work_of(point.config)) or []
        return min(same, key=lambda one: self._rank(one, cell), default=None)

    def _worth(self, one: SweepPoint) -> tuple[bool, bool, int]:
        return self._count(one) == 0, not is_float32(one.config, self._plan.model.dtype), -one.config.logprobs

    def _rank(self, one: SweepPoint, cell: tuple[Any, ...]) -> tuple[int, int, int, int]:
        other = sum(a != b for a, b in zip(cell_of(one.config), cell, strict=True))
        return other, one.config.batch_size, -self._count(one), one.repeat

    def _count(self, one: SweepPoint) -> int:
        return len(self._plan.prompt_ids) if self._outputs is None else self._outputs.get(one.id, 0)
