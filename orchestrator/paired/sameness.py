"""The outputs of a cell in two runs: how many came out the same, token id by token id, and how many more are right or
wrong. Reads the records of both again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.judge.told import Told, told
from orchestrator.paired.changes import METRICS, Both, Change, Gap
from orchestrator.record.output import Record
from orchestrator.view import shares
from orchestrator.view.answerkey import AnswerKey
from orchestrator.view.results import label
from orchestrator.view.runview import RunView

_SCORES: Final = "the task is to score: nothing is generated"


@dataclass(frozen=True)
class Sameness:
    """Of prompts of the same number of repeat that both runs have an output of.

    other    prompts that were other token ids, which are not among `compared`
    reason   why none could be compared
    """

    compared: int = 0
    same: int = 0
    other: int = 0
    reason: str = ""

    @property
    def share(self) -> float | None:
        return self.same / self.compared if self.compared else None


@dataclass
class Outputs:
    """One run's of one cell: a number for each output, and the scores of each prompt."""

    said: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)

    def add(self, record: Record, key: AnswerKey | None) -> None:
        found: Told = told(record)
        if not found.failed:
            self.said[record.repeat, record.prompt_id] = found.digest, found.fingerprint
        if key and (verdict := key.verdict(record)):
            self.scores.setdefault(record.prompt_id, []).append(verdict.score)


def outputs(view: RunView, points: tuple[str, ...], key: AnswerKey | None) -> Outputs:
    """`key`: by which answers are judged, if they are. Raises JournalError on damage."""
    found = Outputs()
    for record in view.records_of(points):
        found.add(record, key)
    return found


def sameness(both: Both, before: Outputs, after: Outputs) -> Sameness:
    if both[0].scores:
        return Sameness(reason=_SCORES)
    shared = before.said.keys() & after.said.keys()
    alike = [key for key in shared if before.said[key][0] == after.said[key][0]]
    same = sum(before.said[key] == after.said[key] for key in alike)
    reason = "" if alike else "other prompts" if shared else "no prompt has an output in both"
    return Sameness(len(alike), same, len(shared) - len(alike), reason)


def accuracy(both: Both, before: Outputs, after: Outputs, doubt: str) -> Change:
    """Over the prompts that both runs have an answer to, each with the mean score of its repeats. Told apart by the
    exact test of McNemar, which is the sign test of the prompts that one run does better at."""
    old, new = (_means(one.scores) for one in (before, after))
    shared = sorted(old.keys() & new.keys())
    head = (METRICS["accuracy"], label(both[0]))
    if not shared or any(row.accuracy is not None and row.accuracy.kind == "corpus" for row in both):
        why = "it is a score of all outputs together" if shared else "no answers are judged in both"
        return _change(head, (None, None), None, both, doubt or why, 0)
    values = shares.mean([old[name] for name in shared]), shares.mean([new[name] for name in shared])
    gap = _gap([new[name] - old[name] for name in shared], both[0].confidence)
    return _change(head, values, gap, both, doubt, len(shared))


def _means(scores: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: shares.mean(values) for name, values in scores.items()}


def _gap(gaps: list[float], confidence: float) -> Gap:
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    value = shares.mean(gaps)
    against = (better - worse) * value <= 0  # more prompts one way, and more of the score the other
    p_value = 1.0 if against else shares.sign_test(better, worse)
    return Gap(value, shares.difference_interval(gaps, confidence), p_value)


def _change(
    head: tuple[Any, str],
    values: tuple[float | None, float | None],
    gap: Gap | None,
    both: Both,
    doubt: str,
    prompts: int,
) -> Change:
    return Change(*head, *values, None, "prompts", (prompts, prompts), both[0].confidence, doubt, gap)
