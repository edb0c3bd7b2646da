"""What the sentences about a run are made of, gathered in one walk over its rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.judge.reference import work_of
from orchestrator.view.leading import comparable, place_of
from orchestrator.view.pareto import Candidate
from orchestrator.view.scores import Kind
from orchestrator.view.summary import Row
from orchestrator.view.wording import count_text, joined

#: Settings that are named one by one.
_NAMED: Final = 3
_BAD: Final = ("failed", "partial", "incomplete")


@dataclass(frozen=True)
class Right:
    """How right a row's answers are by its first judge, of so many different prompts; `reference`: that it was held
    against, "" if against none; `gap`: to its answers, where the two can be told apart."""

    label: str
    judge: str
    reference: str
    value: float
    gap: float | None
    prompts: int
    kind: Kind = "share"


@dataclass
class Facts:
    """Names and settings as text.

    places     settings → which rows are there and may be compared; `everywhere`: all settings of the run
    settled    settings → how many of the methods there are through, of how many
    others     settings → of those rows, which part of the CPU time others used
    rates      tokens/s of those rows, and their settings
    candidates  speed and TTFT of those that have both; `untimed`: how many have no TTFT
    works      different kinds of work that were asked for
    failed     method, outcome, cause → settings
    marked     why rows may not be compared, all reasons of each → which
    warned     rows whose measurement was disturbed, and how at first
    answers    how many answers are right, of rows of which some were judged
    scoring    rows that generate nothing; `skipped`: that were not measured
    speedless  rows that ended and have no speed; `wide`: rows that have one without an interval
    """

    count: int = 0
    confidence: float = 0.95
    methods: dict[str, None] = field(default_factory=dict)
    everywhere: dict[str, None] = field(default_factory=dict)
    places: dict[str, list[int]] = field(default_factory=dict)
    settled: dict[str, tuple[int, int]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)
    rates: list[tuple[float, str]] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    untimed: int = 0
    works: set[tuple[Any, ...]] = field(default_factory=set)
    failed: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    marked: dict[str, list[str]] = field(default_factory=dict)
    warned: list[tuple[str, str]] = field(default_factory=list)
    answers: list[Right] = field(default_factory=list)
    scoring: int = 0
    skipped: int = 0
    speedless: int = 0
    wide: int = 0

    @property
    def speed(self) -> str:
        """Of the figure by which methods are compared."""
        return "total tokens/s" if self.scoring == self.count else "tokens/s"

    def pending(self, places: Iterable[str]) -> bool:
        """Some method is not through there."""
        return any(through < planned for through, planned in map(self.settled.__getitem__, places))

    def where(self, places: Sequence[str], *, begin: bool = True) -> str:
        """ "At batch_size=1 and batch_size=4", "at all 12 settings", "at 7 of 12 settings" """
        at, total = "At" if begin else "at", len(self.everywhere)
        if len(places) <= _NAMED and all(places):
            return f"{at} {joined(list(places))}"
        whole = count_text(total)
        which = f"all {whole}" if len(places) == total else f"{count_text(len(places))} of {whole}"
        return f"{at} {which} settings"


def gather(rows: Iterable[Row]) -> Facts:
    found = Facts()
    for number, row in enumerate(rows):
        _note(found, row, place_of(row))
        if comparable(row):
            _note_speed(found, row, number)
    return found


def _note(found: Facts, row: Row, place: str) -> None:
    found.count, found.confidence = found.count + 1, row.confidence
    found.methods[row.method] = found.everywhere[place] = None
    through, planned = found.settled.get(place, (0, 0))
    found.settled[place] = through + (row.outcome != "unfinished"), planned + 1
    found.works.add(work_of(row.config))
    found.scoring += row.scores
    if row.marks:
        found.marked.setdefault("; ".join(row.marks), []).append(_label(row))
    if row.warnings:
        found.warned.append((_label(row), row.warnings[0]))
    if row.outcome in _BAD:
        found.failed.setdefault((row.method, row.outcome, row.cause), []).append(place)
    found.answers += _right(row)
    found.skipped += row.outcome == "skipped"
    found.speedless += row.outcome == "ok" and row.rate is None


def _note_speed(found: Facts, row: Row, number: int) -> None:
    assert row.rate is not None
    found.places.setdefault(place_of(row), []).append(number)
    found.rates.append((row.rate.value, place_of(row)))
    if row.host.host_others_share is not None:
        found.others.setdefault(place_of(row), []).append(row.host.host_others_share)
    found.wide += row.rate.interval(row.confidence) is None
    if row.ttft.median is None:
        found.untimed += 1
    else:
        found.candidates.append(Candidate(_label(row), row.rate.value, row.ttft.median.value))


def _right(row: Row) -> list[Right]:
    found = row.accuracy
    if found is None or found.value is None:
        return []
    beside = found.versus
    gap = beside.value if beside and beside.distinguishable else None
    reference = beside.reference if beside and beside.value is not None else ""
    return [Right(_label(row), found.judge, reference, found.value, gap, found.prompts, found.kind)]


def _label(row: Row) -> str:
    return f"{row.method} {place_of(row)}".rstrip()
