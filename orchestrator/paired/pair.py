"""Two runs side by side: everything that differs between them, and what changed in the cells that both have.

A cell is a method at its settings. `changes` are of figures, `turns` of how cells ended and of what their outputs are
worth; `review` says what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import json

from orchestrator.definition.inputs import scheme_of
from orchestrator.judge.agreement import Agreement
from orchestrator.paired.changes import METRICS, USUAL, Both, Change, change, of_method, workers_of
from orchestrator.paired.gate import Word
from orchestrator.paired.sameness import Outputs, Sameness, accuracy, outputs, sameness
from orchestrator.paired.unpaired import Difference, same_place, settings, unlike
from orchestrator.view import losses
from orchestrator.view.answerkey import AnswerKey, key_of
from orchestrator.view.origins import differences
from orchestrator.view.results import label
from orchestrator.view.rows import rows
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.summary import Row
from orchestrator.view.wording import counted

SIDES: Final = ("A", "B")
#: From best to worst. What is unfinished is neither.
_OUTCOMES: Final[tuple[PointState, ...]] = ("ok", "partial", "incomplete", "skipped", "failed")
_NO_SPEED: Final = ("failed", "incomplete", "unfinished", "skipped")
#: Of a provenance, what makes another machine of it.
_MACHINE: Final = ("cpu", "cpus", "numa_nodes", "memory_bytes", "governors", "devices", "driver", "container")


@dataclass(frozen=True)
class Turn:
    """Something of a cell that has no ratio: its outcome, or what its outputs are worth beside the reference's."""

    what: str
    subject: str
    before: str
    after: str
    word: Word
    why: str = ""


@dataclass(frozen=True)
class Pair:
    """A cell of both runs. `speed`: the change of its tokens/s."""

    before: Row
    after: Row
    speed: Change
    outputs: Sameness

    @property
    def label(self) -> str:
        return label(self.before)


@dataclass(frozen=True)
class Side:
    """One of the runs. `began_at`: seconds since 1970."""

    name: str
    path: str
    began_at: float | None


@dataclass(frozen=True)
class Comparison:
    """`changes`: of the figures that were asked for. `apart`: cells of both that are not compared, with what differs in
    them. `only`: cells that one of the runs lacks, with the side that has them."""

    sides: tuple[Side, Side]
    differences: list[Difference]
    pairs: list[Pair]
    changes: list[Change]
    turns: list[Turn]
    apart: list[tuple[str, list[Difference]]]
    only: list[tuple[str, Side]]

    @property
    def missing(self) -> list[str]:
        """Cells of the first run that the second one lacks."""
        return [name for name, side in self.only if side is self.sides[0]]

    @property
    def vanished(self) -> list[str]:
        """These, and what the second one has as something else."""
        return self.missing + [name for name, _ in self.apart]

    @property
    def machine(self) -> list[str]:
        """What of the machine differs."""
        names = dict.fromkeys(what.partition("[")[0].partition(".")[0] for what, _, _ in self.differences)
        return [name for name in names if name in _MACHINE]

    @property
    def models(self) -> tuple[str, str] | None:
        """What they are called, where they are known to be two."""
        found = {what: both for what, *both in self.differences if what.startswith("model.")}
        digests = found.get("model.digest")
        if digests is None or len(set(map(scheme_of, digests))) > 1:
            return None
        first, second = found.get("model.name", digests)
        return first, second


class _Run:
    """A run with its cells. Raises JournalError if it is none, or damaged."""

    def __init__(self, run_dir: Path) -> None:
        self.view = RunView.load(run_dir)
        self.cells = {_key(self.view, row): row for row in rows(self.view)}

    def side(self, name: str) -> Side:
        return Side(name, str(self.view.run_dir), self.view.starts[0].at if self.view.starts else None)

    @cached_property
    def key(self) -> AnswerKey | None:
        return key_of(self.view)

    @cached_property
    def agreements(self) -> dict[str, Agreement]:
        """By the first point of each row."""
        return {one.points[0]: one for one in self.view.agreements.rows}

    def agreement(self, row: Row) -> Agreement | None:
        return self.agreements.get(row.points[0])


def compare(before: Path, after: Path, metrics: Sequence[str] = USUAL) -> Comparison:
    """`metrics`: names of METRICS. Raises JournalError if one of the runs is none, or damaged."""
    return compare_all(before, [after], metrics)[0]


def compare_all(base: Path, others: Sequence[Path], metrics: Sequence[str] = USUAL) -> list[Comparison]:
    """Each of the others with the first. Raises JournalError."""
    first = _Run(base)
    return [_compare((first, _Run(other)), metrics) for other in others]


def _key(view: RunView, row: Row) -> tuple[str, bytes]:
    """By the method's name and all call-time and load-time settings; what its method means may have changed, which
    then stands among the differences."""
    return row.method, json.encode(settings(view, row), order="sorted")


_Runs = tuple[_Run, _Run]


def _compare(runs: _Runs, metrics: Sequence[str]) -> Comparison:
    views, cells = (runs[0].view, runs[1].view), (runs[0].cells, runs[1].cells)
    lacking = [{k: r for k, r in own.items() if k not in other} for own, other in (cells, reversed(cells))]
    apart = same_place(views, lacking)
    sides = runs[0].side(SIDES[0]), runs[1].side(SIDES[1])
    both = [(cells[0][key], cells[1][key]) for key in cells[0] if key in cells[1]]
    read = [_read(runs, one, "accuracy" in metrics) for one in both]
    return Comparison(
        sides=sides,
        differences=_differences(views),
        pairs=[one for one, _ in read],
        changes=[*_changes(runs, both, metrics), *(right for _, right in read if right)],
        turns=[turn for one in both for turn in (*_outcome(one), *_answers(runs, one))],
        apart=[(label(one[0]), unlike(views, one)) for one in apart],
        only=[
            (label(row), side)
            for number, (side, own) in enumerate(zip(sides, lacking, strict=True))
            for row in own.values()
            if all(row is not one[number] for one in apart)
        ],
    )


def _differences(views: tuple[RunView, RunView]) -> list[Difference]:
    first, second = ((view.origins[0] if view.origins else None) for view in views)
    return differences((views[0].plan, views[1].plan), (first, second))


def _read(runs: _Runs, both: Both, judged: bool) -> tuple[Pair, Change | None]:
    """The pair, and if asked for how many more answers are right: by the later run's judge, if it has one."""
    key = (runs[1].key or runs[0].key) if judged else None
    said: tuple[Outputs, ...] = tuple(outputs(run.view, row.points, key) for run, row in zip(runs, both, strict=True))
    pair = Pair(*both, _change("tokens_per_s", runs, both), sameness(both, said[0], said[1]))
    return pair, accuracy(both, said[0], said[1], _others(runs)) if judged else None


def _others(runs: _Runs) -> str:
    """Why figures of two runs are of different things; "" if they are not."""
    same = runs[0].view.plan.prompts_digest == runs[1].view.plan.prompts_digest
    return "" if same else "the prompts differ"


def _changes(runs: _Runs, every: Sequence[Both], metrics: Sequence[str]) -> Iterator[Change]:
    """What is of workers is said once of all cells that these served: it is one test, not many."""
    for name in (name for name in metrics if name != "accuracy"):
        served: dict[object, list[Both]] = {}
        for number, both in enumerate(every):
            served.setdefault(workers_of(METRICS[name], both) or number, []).append(both)
        for cells in served.values():
            sound = next((both for both in cells if not _doubt(runs, both)), cells[0])
            yield of_method(_change(name, runs, sound), sound[0], len(cells))


def _change(name: str, runs: _Runs, both: Both) -> Change:
    return change(METRICS[name], both, alike=not _others(runs), doubt=_doubt(runs, both))


def _doubt(runs: _Runs, both: Both) -> str:
    """Why nothing follows from figures of a cell. What marks it in both runs alike is the same deviation in both."""
    if others := _others(runs):
        return others
    if any(row.split for row in both):
        return "one ran in smaller batches than asked"
    ended = [f"{row.outcome} in {side}" for side, row in zip(SIDES, both, strict=True) if row.outcome in _NO_SPEED]
    if ended:
        return ", ".join(ended)
    wrong = [one for run, row in zip(runs, both, strict=True) if (one := run.agreement(row)) and one.bad]
    if wrong or both[0].marks != both[1].marks:
        return "it may not be compared as it is"
    return losses.doubt(*both)


def _outcome(both: Both) -> Iterator[Turn]:
    before, after = both
    if "unfinished" in (before.outcome, after.outcome):
        yield Turn("outcome", label(before), before.outcome, after.outcome, "can't tell", "not finished")
        return
    ranks = [(_OUTCOMES.index(row.outcome), _lost_share(row)) for row in both]
    if ranks[0] != ranks[1]:
        word: Word = "regressed" if ranks[1] > ranks[0] else "improved"
        yield Turn("outcome", label(before), _ended(before), _ended(after), word, after.cause or before.cause)


def _lost_share(row: Row) -> float:
    """Of what was asked for: one of the runs may have more repeats, or more prompts."""
    lost = row.outputs_failed + row.outputs_missing
    return lost / (row.outputs_ok + lost) if lost else 0.0


def _ended(row: Row) -> str:
    lost = row.outputs_failed + row.outputs_missing
    return f"{row.outcome}, {counted(lost, 'output')} failed or missing" if lost else row.outcome


def _answers(runs: _Runs, both: Both) -> Iterator[Turn]:
    before, after = (run.agreement(row) for run, row in zip(runs, both, strict=True))
    if before and after and before.bad != after.bad and "unknown" not in (before.verdict, after.verdict):
        word: Word = "regressed" if after.bad else "improved"
        why = after.why if after.bad else before.why
        yield Turn("outputs", label(both[0]), before.verdict, after.verdict, word, why)
