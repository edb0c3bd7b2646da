"""How many of a row's answers are right, beside the reference's: its records judged one after another as they are read.

A prompt that failed has answered wrong, and is counted apart. Of what has no record nothing is known, so it is not
judged. An output that was cut at max_new_tokens is judged like any other, and counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.definition.judging import GRADED, JudgeName
from orchestrator.judge.answeroverlap import bleu_of
from orchestrator.judge.answers import Verdict
from orchestrator.record.output import Record
from orchestrator.view import shares
from orchestrator.view.answerkey import AnswerKey
from orchestrator.view.compare import IS_REFERENCE
from orchestrator.view.scores import Kind
from orchestrator.view.stats import LEAST_UNITS, Interval

#: Wrong answers that are shown of a row, and what is kept of a text.
EXAMPLES: Final = 3
SHOWN_CHARACTERS: Final = 160


@dataclass(frozen=True)
class Wrong:
    """An answer that is not right, or has one of the lowest scores. Texts are cut; `cut`: the output was."""

    prompt_id: str
    repeat: int
    score: float
    expected: str
    answer: str | None
    why: str
    output: str
    cut: bool


@dataclass(frozen=True)
class Difference:
    """To the reference, at the prompts that both have an answer to: more is better. None and `reason` where there is
    none. `better`, `worse`: at how many of them; `p` by the exact test, of shares."""

    reference: str
    value: float | None = None
    interval: Interval | None = None
    prompts: int = 0
    better: int = 0
    worse: int = 0
    p: float | None = None
    distinguishable: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class Accuracy:
    """Of one row by one judge, from 0 to 1.

    judged     outputs; those of prompts that failed are among them, wrong
    prompts    how many different ones these are of
    correct    outputs that are right; None where they have scores
    cut        outputs judged that ended at max_new_tokens
    missing    outputs of prompts with an expected answer that are not there
    unjudged   outputs of prompts of which nothing is expected, or not to be judged so
    reason     why there is no value, or no interval
    """

    judge: JudgeName
    kind: Kind
    value: float | None = None
    interval: Interval | None = None
    judged: int = 0
    prompts: int = 0
    correct: int | None = None
    failed: int = 0
    cut: int = 0
    missing: int = 0
    unjudged: int = 0
    versus: Difference | None = None
    wrong: tuple[Wrong, ...] = ()
    reason: str = ""


@dataclass
class Marks:
    """What one judge says of a row, by the number of the prompt: the sum of its scores and how many they are."""

    size: int
    sums: array[float] = field(init=False)
    counts: array[int] = field(init=False)
    parts: dict[int, list[int]] = field(default_factory=dict)
    correct: int = 0
    failed: int = 0
    cut: int = 0
    wrong: list[Wrong] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums, self.counts = array("d", bytes(8 * self.size)), array("L", bytes(array("L").itemsize * self.size))

    def add(self, number: int, verdict: Verdict, failed: bool, cut: bool) -> None:
        self.sums[number] += verdict.score
        self.counts[number] += 1
        self.correct += verdict.score == 1
        self.failed += failed
        self.cut += cut
        if verdict.parts:
            before = self.parts.get(number)
            self.parts[number] = [*map(sum, zip(before, verdict.parts, strict=True))] if before else [*verdict.parts]

    @property
    def judged(self) -> list[int]:
        """The numbers of the prompts."""
        return [number for number, count in enumerate(self.counts) if count]

    def values(self, numbers: Sequence[int]) -> list[float]:
        return [self.sums[number] / self.counts[number] for number in numbers]

    def rows(self, numbers: Sequence[int]) -> list[list[int]]:
        return [self.parts[number] for number in numbers]


class Grading:
    """Of one row. `add` takes its records, in any order."""

    def __init__(self, key: AnswerKey) -> None:
        self._key = key
        self.marks = [Marks(len(key.numbers)) for _ in key.answers.judge]
        self._unjudged = [0] * len(self.marks)
        self._expecting = 0

    def add(self, record: Record) -> None:
        verdicts = self._key.verdicts(record)
        if verdicts is None:
            self._unjudged = [count + 1 for count in self._unjudged]
            return
        self._expecting += 1
        number, failed = self._key.numbers[record.prompt_id], record.error is not None
        cut = record.finish_reason == "length"
        for place, (marks, verdict) in enumerate(zip(self.marks, verdicts, strict=True)):
            if verdict is None:
                self._unjudged[place] += 1
                continue
            marks.add(number, verdict, failed, cut)
            if verdict.score < 1 and not failed:
                self._keep(marks.wrong, record, verdict, cut)

    def _keep(self, wrong: list[Wrong], record: Record, verdict: Verdict, cut: bool) -> None:
        """The lowest scores, of equal ones the first; of each prompt one."""
        if len(wrong) == EXAMPLES and verdict.score >= wrong[-1].score:
            return
        if any(one.prompt_id == record.prompt_id for one in wrong):
            return
        expected = " | ".join(self._key.expected[record.prompt_id])
        answer = None if verdict.answer is None else short(verdict.answer)
        head = (record.prompt_id, record.repeat, verdict.score, short(expected), answer, verdict.why)
        wrong.append(Wrong(*head, short(record.text), cut))
        wrong.sort(key=lambda one: one.score)
        del wrong[EXAMPLES:]

    def result(self, confidence: float, repeats: int, reference: str, theirs: Grading | None) -> tuple[Accuracy, ...]:
        """By each judge. `repeats`: how many the row should have; `reference`: the method that it is set against;
        `theirs`: of its row, None where there is none, and itself for the reference's own."""
        of_judge = enumerate(self._key.answers.judge)
        missing = len(self._key.numbers) * repeats - self._expecting
        return tuple(
            replace(self._of(place, name, confidence, reference, theirs), missing=missing) for place, name in of_judge
        )

    def _of(self, place: int, name: JudgeName, confidence: float, reference: str, theirs: Grading | None) -> Accuracy:
        marks, kind = self.marks[place], _kind(name, self._key.answers.threshold)
        numbers, outputs, unjudged = marks.judged, sum(marks.counts), self._unjudged[place]
        lacking = self._key.lacking.get(name, "")
        value, interval, reason = (None, None, lacking) if lacking else _figure(kind, marks, numbers, confidence)
        return Accuracy(
            judge=name,
            kind=kind,
            value=value,
            interval=interval,
            judged=outputs,
            prompts=len(numbers),
            correct=marks.correct if kind == "share" else None,
            failed=marks.failed,
            cut=marks.cut,
            unjudged=unjudged,
            versus=_versus(kind, marks, None if theirs is None else theirs.marks[place], reference, confidence),
            wrong=tuple(marks.wrong),
            reason=reason,
        )


def short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _kind(name: JudgeName, threshold: float | None) -> Kind:
    if name not in GRADED or threshold is not None:
        return "share"
    return "corpus" if name == "bleu" else "mean"


_TOO_FEW: Final = f"fewer than {LEAST_UNITS} prompts"
_ALIKE: Final = "all prompts have the same score"
_NO_GAP: Final = "no prompt has another score than with the reference"


Figure = tuple[float | None, Interval | None, str]


def _figure(kind: Kind, marks: Marks, numbers: Sequence[int], level: float) -> Figure:
    """With the reason why there is no value, or no interval."""
    if not numbers:
        return None, None, "no output was judged"
    values = marks.values(numbers)
    if kind == "share":
        return shares.mean(values), shares.share_interval(values, sum(marks.counts), level), ""
    few = _TOO_FEW if len(numbers) < LEAST_UNITS else _ALIKE if len(set(values)) == 1 else ""
    if kind == "mean":
        return shares.mean(values), None if few else shares.mean_interval(values, level), few
    rows = marks.rows(numbers)
    return _bleu(rows), None if few else shares.percentiles(_resampled(rows), level), few


def _bleu(rows: Sequence[Sequence[int]]) -> float:
    return bleu_of([*map(sum, zip(*rows, strict=True))])


def _resampled(rows: Sequence[Sequence[int]]) -> list[float]:
    """BLEU of each resample of the prompts."""
    from orchestrator.view import resample

    return [bleu_of(one) for one in resample.sums(rows)]


def _versus(kind: Kind, ours: Marks, theirs: Marks | None, reference: str, level: float) -> Difference:
    if theirs is None:
        return Difference(reference, reason=f"{reference} has no answers at these settings")
    if theirs is ours:
        return Difference(reference, reason=IS_REFERENCE)
    both = [number for number, counts in enumerate(zip(ours.counts, theirs.counts, strict=True)) if all(counts)]
    if not both:
        return Difference(reference, reason="there is no prompt that both have an answer to")
    gaps = [one - other for one, other in zip(ours.values(both), theirs.values(both), strict=True)]
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    found = Difference(reference, shares.mean(gaps), prompts=len(both), better=better, worse=worse)
    if kind == "share":
        interval, p = shares.difference_interval(gaps, level), shares.sign_test(better, worse)
        return replace(found, interval=interval, p=p, distinguishable=p < 1 - level and not interval.holds(0.0))
    if kind == "corpus":
        found = replace(found, value=_bleu_gap(ours, theirs, both))
    if not better and not worse:
        return replace(found, distinguishable=False, reason=_NO_GAP)
    if len(both) < LEAST_UNITS or len(set(gaps)) == 1:
        return replace(found, reason=_TOO_FEW if len(both) < LEAST_UNITS else _ALIKE)
    interval = _bleu_gaps(ours, theirs, both, level) if kind == "corpus" else shares.mean_interval(gaps, level, -1.0)
    return replace(found, interval=interval, distinguishable=not interval.holds(0.0))


def _bleu_gap(ours: Marks, theirs: Marks, numbers: Sequence[int]) -> float:
    return _bleu(ours.rows(numbers)) - _bleu(theirs.rows(numbers))


def _bleu_gaps(ours: Marks, theirs: Marks, numbers: Sequence[int], level: float) -> Interval:
    """The same prompts are drawn for both (Koehn, 2004)."""
    mine, other = (_resampled(marks.rows(numbers)) for marks in (ours, theirs))
    return shares.percentiles([one - two for one, two in zip(mine, other, strict=True)], level)
