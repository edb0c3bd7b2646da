"""Sweeps of 100,000 points: work grows with points and batches and not with their square, memory with points alone.

Work is counted in calls, in steps of the interpreter or in comparisons, never in seconds: four times as much may cost
four times as many, and what is paid once.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.config import parse
from orchestrator.console import Console
from orchestrator.definition import grid
from orchestrator.definition.grid import MAX_POINTS
from orchestrator.definition.sweepfile import MAX_NODES
from orchestrator.errors import InputError
from orchestrator.events import BatchCommitted, Event, PointEnded, PointStarted
from orchestrator.judge.reference import bases
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, build
from orchestrator.record.planfile import lines
from orchestrator.record.replay import Replay, replay
from orchestrator.run.agenda import Agenda
from orchestrator.run.ledger import Ledger
from orchestrator.view.planned import render
from tests.unit.plans import MODEL
from tests.unit.rundirs import HF, a_plan, commit, ended, new_run, started, stats
from tests.unit.test_plan import prompt_set

TraceFunction = Callable[[FrameType, str, Any], Any]
BASE = "name: a\nmodel: demo\nprompts: p.jsonl\n"
PROMPTS = prompt_set(10, 20, 30)
CAUSE = Cause(cls="hang", message="m")


def calls(work: Callable[[], object]) -> int:
    """How many are made."""
    count = 0

    def note(_frame: object, what: str, _arg: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    work()  # what is imported or cached at first is paid once
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def steps(work: Callable[[], object]) -> int:
    """How many Python's interpreter takes: turns of a loop that calls nothing are among them."""
    count = 0

    def note(frame: FrameType, what: str, _arg: object) -> TraceFunction:
        nonlocal count
        frame.f_trace_opcodes = True
        count += what == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def up_to(n: int) -> list[int]:
    return list(range(1, n + 1))


AXES: dict[str, Callable[[int], str]] = {
    "calls": lambda n: f"matrix: {{temperature: [0.5, 1], top_p: [0.5, 1], seed: {up_to(n)}}}\n",
    "calls that some do not hear": lambda n: f"matrix: {{max_new_tokens: {up_to(n)}, batch_size: [1, 2]}}\n",
    "loads": lambda n: f"matrix: {{max_model_len: {[100 + k for k in up_to(n)]}, dtype: [float32, bfloat16]}}\n",
    "rows": lambda n: f"zip: {{temperature: {[k / 1000 for k in up_to(n)]}, seed: {up_to(n)}}}\n",
    "repeats": lambda n: f"matrix: {{batch_size: [1, 2]}}\nrepeats: {n}\n",
    "rounds": lambda n: (
        f"matrix: {{batch_size: {up_to(n)}}}\nrepeats: 2\nmeasurement: {{order: random, drift: true}}\n"
    ),
}


def swept(extra: str, methods: str = "hf_sdpa, vllm_eager") -> Plan:
    config = parse(f"{BASE}methods: [{methods}]\n{extra}", "s.yaml")
    return build(config, MODEL, PROMPTS, "cpu")


@pytest.mark.parametrize("axes", AXES)
def test_a_plan_costs_as_much_as_it_has_points(axes: str) -> None:
    def work(n: int) -> Callable[[], object]:
        return lambda: [*render(swept(AXES[axes](n)))]

    assert calls(work(400)) < 4.4 * calls(work(100))


def test_so_does_writing_it_down() -> None:
    small, large = swept(AXES["calls"](50)), swept(AXES["calls"](200))
    assert calls(lambda: list(lines(large))) < 4.2 * calls(lambda: list(lines(small)))


def test_so_does_finding_what_each_point_is_held_against() -> None:
    small, large = a_plan(sizes=up_to(50)), a_plan(sizes=up_to(200))
    assert calls(lambda: bases(large.points, large)) < 4.2 * calls(lambda: bases(small.points, small))


class Counted:
    """Equal to those of its number."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, Counted) and self.number == other.number


@pytest.mark.parametrize("section", ["matrix", "zip"])
def test_a_value_is_compared_with_few_others(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter(map(Counted, range(10**6)))
    monkeypatch.setattr(grid, "convert", lambda *_: next(values))
    before = Counted.compared
    parse(f"{BASE}methods: [hf_sdpa]\n{section}: {{seed: {up_to(1000)}}}\n", "s.yaml")
    assert Counted.compared - before < 2 * 1000


def test_values_and_rows_that_repeat_are_found_wherever_they_stand() -> None:
    for section, told in (("matrix", "repeats 1"), ("zip", "its row 5 repeats row 2")):
        with pytest.raises(InputError) as caught:
            parse(f"{BASE}methods: [hf_sdpa]\n{section}: {{seed: [0, 1, 2, 3, 1]}}\n", "s.yaml")
        assert [told in str(problem) for problem in caught.value.problems] == [True]


def test_as_many_points_as_a_sweep_may_have_fit_into_a_file() -> None:
    """As a list of rows with some settings each; what is more is refused, and said to be."""
    assert 4 * MAX_POINTS < MAX_NODES
    with pytest.raises(InputError, match=f"makes {MAX_POINTS + 2} points, more than {MAX_POINTS}"):
        swept(f"matrix: {{max_new_tokens: {up_to(MAX_POINTS // 2 + 1)}}}\n")


# --- a run ------------------------------------------------------------------------


def journalled(run_dir: Path, points: int, batches: int, *, retried: bool = False) -> Path:
    """Every point with so many batches of three prompts."""
    journal = new_run(run_dir)
    journal.emit(started(points=points))
    for point in [f"p{n}" for n in range(points)] * (1 + retried):
        journal.emit(PointStarted(at=1.0, point=point, incarnation="w1", prompts=3 * batches))
        for n in range(batches):
            commit(journal, [f"{n}-{k}" for k in range(3)], batch=f"b{n}", point=point)
        journal.emit(ended(point=point))
    journal.close()
    return run_dir


@pytest.mark.parametrize("retried", [False, True])
def test_reading_a_journal_costs_as_much_as_it_has_lines(tmp_path: Path, retried: bool) -> None:
    small = journalled(tmp_path / "small", 5, 10, retried=retried)
    large = journalled(tmp_path / "large", 20, 10, retried=retried)
    assert calls(lambda: list(replay(large).ranges)) < 4.4 * calls(lambda: list(replay(small).ranges))


def kept_bytes(run_dir: Path) -> int:
    """Of what a resumed run holds."""
    found: list[Replay] = []
    replay(run_dir)  # what is imported or cached at first
    tracemalloc.start()
    try:
        found.append(replay(run_dir, check=True))
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_points_and_not_with_batches(tmp_path: Path) -> None:
    few, many = (kept_bytes(journalled(tmp_path / str(n), 20, n)) for n in (10, 40))
    names = 30 * 3 * 300  # those of the prompts, which all points share
    assert many - few < names, "bytes"
    more = kept_bytes(journalled(tmp_path / "points", 80, 10))
    assert (more - few) / 60 < 1000, "bytes for a point"


def test_a_batch_costs_the_same_however_many_there_were(tmp_path: Path) -> None:
    journal = new_run(tmp_path / "run")
    commits = iter(range(10**6))

    def work() -> None:
        commit(journal, ["a", "b"], batch=f"b{next(commits):06}")

    work()  # what is imported or cached at first
    first = steps(work)
    for _ in range(200):
        work()
    assert steps(work) == first
    journal.close()


class Pages:
    """A book that nobody reads."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def commit(self, **_more: Any) -> None: ...


def agenda(points: int, skipped: Iterable[str] = ()) -> Agenda:
    (start,) = a_plan([HF], up_to(points), 1).starts
    return Agenda(start.points, {}, Pages(), lambda: 1.0, {}, set(skipped))


def walked(one: Agenda) -> None:
    while one.unfinished:
        one.finish(one.open("w1"))
        assert one.batches_total == 0


def test_the_next_point_costs_the_same_however_many_wait() -> None:
    def work(n: int, skip: bool) -> Callable[[], object]:
        skipped = [f"hf_sdpa/{k}/0" for k in up_to(n) if k % 2] if skip else []
        return lambda: walked(agenda(n, skipped))

    for skip in (False, True):
        assert steps(work(200, skip)) < 4.4 * steps(work(50, skip))
    assert steps(lambda: agenda(200).give_up(CAUSE)) < 4.4 * steps(lambda: agenda(50).give_up(CAUSE))


def test_the_end_of_a_point_costs_the_same_however_many_ended(tmp_path: Path) -> None:
    plan = a_plan([HF], up_to(300), 1)
    ledger = Ledger(new_run(tmp_path / "run"), Console(mode="quiet"), None, plan)
    left = iter(plan.points)

    def work() -> None:
        ledger.emit(PointEnded(at=1.0, point=next(left).id, outcome="failed", cause=CAUSE))
        assert ledger.points_left + ledger.points_failed == len(plan.points)

    work()  # what is imported or cached at first
    first = steps(work)
    for _ in range(200):
        work()
    assert steps(work) < 1.1 * first


def test_what_a_failed_worker_left_to_read_is_not_kept_in_memory(tmp_path: Path) -> None:
    plan = a_plan([HF], up_to(3), 1)
    ledger = Ledger(new_run(tmp_path / "run"), Console(mode="quiet"), None, plan)
    cause = Cause(cls="hang", message="m", phase="busy", log_tail="x" * 9000, first_traceback="t" * 9000, stacks="s")
    end = PointEnded(at=1.0, point=plan.points[0].id, outcome="failed", cause=cause)
    ledger.emit(end)
    shortened = replace(end, cause=replace(cause, log_tail="", first_traceback="", stacks=""))
    assert ledger.ended == {end.point: shortened} == replay(tmp_path / "run").outcomes
    assert list(replay(tmp_path / "run").events()) == [end], "the journal has all of it"


def test_commits_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    found = replay(journalled(tmp_path / "run", 2, 3))
    assert len(found.ranges) == len(list(found.ranges)) == len(list(found.ranges)) == 6
    first = next(iter(found.ranges))
    assert (first in found.ranges, isinstance(first.commit, BatchCommitted), first.measured) == (True, True, True)
    assert replace(first.commit, crc=1) not in [part.commit for part in found.ranges]
    assert stats() == first.commit.stats
