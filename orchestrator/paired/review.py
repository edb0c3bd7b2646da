"""What follows from a comparison of runs: each change and turn with its verdict, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.definition.spelling import nearest, shown
from orchestrator.errors import InputError, Problem
from orchestrator.exits import EXIT_OK, EXIT_PARTIAL
from orchestrator.paired.changes import METRICS, USUAL, Change
from orchestrator.paired.gate import THRESHOLD, Verdict, Word, judge
from orchestrator.paired.pair import Comparison, Turn
from orchestrator.paired.unpaired import unlike_text

ALL = "all"


@dataclass(frozen=True)
class Judged:
    change: Change
    verdict: Verdict


@dataclass(frozen=True)
class Review:
    """One run beside the base. `family`: how many tests were looked at together, over all runs. `passed`: by a gate
    that is not strict, though something is unsettled."""

    found: Comparison
    judged: list[Judged]
    threshold: float
    family: int
    passed: bool = False

    def changes(self, word: Word) -> list[Judged]:
        return [one for one in self.judged if one.verdict.word == word]

    def turns(self, word: Word) -> list[Turn]:
        return [one for one in self.found.turns if one.word == word]

    def count(self, word: Word) -> int:
        return len(self.changes(word)) + len(self.turns(word))

    @property
    def unsettled(self) -> bool:
        """Something can't be told, or is missing."""
        return bool(self.count("can't tell") or self.found.vanished)


def review(found: Sequence[Comparison], threshold: float) -> list[Review]:
    """All changes of all runs are one family of tests."""
    verdicts = judge([change for one in found for change in one.changes], threshold)
    family, told = sum(one.p_value is not None for one in verdicts), iter(verdicts)
    return [Review(one, [Judged(change, next(told)) for change in one.changes], threshold, family) for one in found]


def strangers(found: Iterable[Comparison]) -> list[Problem]:
    """Runs of which nothing at all can be compared: a gate that lets them pass would let all pass."""
    return [_stranger(one) for one in found if not one.pairs]


def _stranger(found: Comparison) -> Problem:
    """With what differs in the first cell at the same place of both."""
    base, path = (side.path for side in found.sides)
    for name, why in found.apart:
        message = f"its cells (a method at its settings) are none of {base}'s: what stands at the same place differs"
        return Problem(path, "", message, f"{name}: {unlike_text(why)}")
    return Problem(path, "", f"it has no cell (a method at its settings) in common with {base}")


def exit_code(found: Iterable[Review], *, fail: bool, strict: bool) -> int:
    """1 where a run regressed; with `strict` also where something can't be told or is missing. `fail`: asked for."""
    bad = any(one.count("regressed") or (strict and one.unsettled) for one in found)
    return EXIT_PARTIAL if fail and bad else EXIT_OK


@dataclass(frozen=True)
class Asked:
    """`fail`: to give exit code 1 to a regression, with `strict` also to what can't be told. `every`: figures that
    neither run tells are left out; one that was asked for by its name is not."""

    metrics: tuple[str, ...]
    every: bool
    threshold: float
    fail: bool
    strict: bool


def asked(names: Sequence[str], least: str | None, strict: bool) -> Asked:
    """Of the options of the command line. `least`: of --fail-on-regression. Raises InputError."""
    threshold = THRESHOLD if least is None else _share(least)
    problems = [
        *_strange(names),
        *([threshold] if isinstance(threshold, Problem) else []),
        *([Problem("", "--strict", "means something only with --fail-on-regression")] if strict and not least else []),
    ]
    if problems or isinstance(threshold, Problem):
        raise InputError(problems)
    chosen = tuple(name for name in METRICS if name in names or ALL in names)
    return Asked(chosen or USUAL, ALL in names, threshold, least is not None, strict)


def _share(text: str) -> float | Problem:
    """ "5%", "5 %" or "0.05" """
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if 0 <= value < 1 and not rest:
        return value
    return Problem("", "--fail-on-regression", f"{shown(text)} is no share from 0 to 1", "5% or 0.05, for example")


def _strange(names: Sequence[str]) -> list[Problem]:
    known = (*METRICS, ALL)
    return [
        Problem("", "--metric", f"no figure is called {shown(name)}", nearest(name, known))
        for name in names
        if name not in known
    ]


def _told(found: Comparison) -> Comparison:
    return replace(found, changes=[one for one in found.changes if (one.before, one.after) != (None, None)])


def reviewed(found: Sequence[Comparison], asked: Asked) -> tuple[list[Review], int]:
    """And the exit code. Raises InputError where a gate has nothing to look at."""
    if asked.fail and (problems := strangers(found)):
        raise InputError(problems)
    judged = review([_told(one) for one in found] if asked.every else found, asked.threshold)
    code = exit_code(judged, fail=asked.fail, strict=asked.strict)
    lenient = asked.fail and not asked.strict and code == EXIT_OK
    return [replace(one, passed=lenient and one.unsettled) for one in judged], code
