"""Which repeats a run leaves out: told once, the same in every life, and never counted as failed or missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.config import Measurement
from orchestrator.console import Console
from orchestrator.events import Event, PointEnded, PointSkipped, PointStarted
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import Plan, SweepPoint
from orchestrator.progress import Progress
from orchestrator.record.generations import read_records
from orchestrator.record.replay import replay
from orchestrator.report import RunView, markdown, rows, status, status_lines
from orchestrator.run.ledger import Ledger
from orchestrator.terminal.layout import progress_text
from orchestrator.terminal.narrator import Narrator
from orchestrator.view.summary import labels
from protocol.records import BatchStats
from tests.unit.rundirs import HF, a_plan, begin, end, ended, launch, new_run, record, release

RULE = Measurement(stop_early=0.1, least_repeats=3)
REPEATS = 6


def a_rule(rule: Measurement = RULE, repeats: int = REPEATS) -> Plan:
    """Two cells, "hf_sdpa/1/…" and "hf_sdpa/2/…"."""
    return replace(a_plan([HF], [1, 2], repeats=repeats), measurement=rule)


class Run:
    """Lives of one run, as far as its journal goes."""

    def __init__(self, run_dir: Path, plan: Plan) -> None:
        self.run_dir, self.plan = run_dir, plan
        self.journal = new_run(run_dir)
        self.ledger = Ledger(self.journal, Console(mode="quiet"), None, plan)

    def resume(self, *, retry_failed: bool = False) -> None:
        self.journal.close()
        self.journal, earlier = Journal.resume(self.run_dir)
        if retry_failed:
            earlier.forgive(read_records(self.run_dir, earlier.ranges))
        self.ledger = Ledger(self.journal, Console(mode="quiet"), earlier, self.plan)
        self.ledger.skip_unneeded()

    def measure(self, point: str, wall_s: float = 1.0, outcome: OutcomeKind = "ok", *, tokens: int = 10) -> None:
        self.begin(point)
        self.commit(point, wall_s, tokens=tokens)
        self.ledger.emit(PointEnded(at=2.0, point=point, outcome=outcome))

    def begin(self, point: str) -> None:
        self.ledger.emit(PointStarted(at=1.0, point=point, incarnation="w1", prompts=3))

    def commit(self, point: str, wall_s: float = 1.0, *, tokens: int = 10, batch: str = "b1") -> None:
        stats = BatchStats(wall_s=wall_s, generated_tokens=tokens)
        records = [record(name, point=point, batch=batch) for name in self.plan.prompt_ids]
        self.ledger.commit(point=point, batch=batch, incarnation="w1", records=records, stats=stats, flags=[])

    @property
    def skips(self) -> list[PointSkipped]:
        return [event for event in self.events() if isinstance(event, PointSkipped)]

    def events(self) -> list[Event]:
        return list(replay(self.run_dir).events())

    def skipped(self) -> list[str]:
        return [skip.point for skip in self.skips]


def cell(size: int, *repeats: int) -> list[str]:
    return [f"hf_sdpa/{size}/{repeat}" for repeat in repeats]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", a_rule())


def test_the_rest_of_a_cell_is_skipped_once_its_repeats_agree(run: Run) -> None:
    for point in cell(1, 0, 1):
        run.measure(point)
    assert run.skipped() == []
    run.measure("hf_sdpa/1/2", 1.01)
    assert run.skipped() == cell(1, 3, 4, 5), "and the other cell goes on"
    assert "3 repeats gave 9.97 ± 0.14 tokens" in run.skips[0].reason
    assert list(run.ledger.skipped) == run.skipped()
    assert (run.ledger.points_left, run.ledger.points_ended, run.ledger.points_failed) == (6, 3, 0)


def test_repeats_that_differ_go_on(run: Run) -> None:
    for repeat, wall_s in enumerate((1.0, 2.0, 3.0, 1.0, 2.0)):
        run.measure(f"hf_sdpa/1/{repeat}", wall_s)
    assert run.skipped() == []


def test_any_order_of_repeats_will_do(run: Run) -> None:
    for point in cell(1, 5, 0, 3):
        run.measure(point)
    assert run.skipped() == cell(1, 1, 2, 4)


def test_only_repeats_that_ended_well_count(run: Run) -> None:
    run.measure("hf_sdpa/1/0", outcome="partial")
    run.measure("hf_sdpa/1/1", outcome="failed")
    for point in cell(1, 2, 3):
        run.measure(point)
    assert run.skipped() == []
    run.measure("hf_sdpa/1/4")
    assert run.skipped() == cell(1, 5)
    assert run.ledger.points_failed == 2


def test_what_makes_no_tokens_has_no_speed_to_agree_on(run: Run) -> None:
    for point in cell(1, 0, 1, 2, 3):
        run.measure(point, tokens=0)
    assert run.skipped() == []


def test_without_the_rule_every_repeat_is_measured(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", a_rule(Measurement()))
    for point in cell(1, 0, 1, 2, 3):
        run.measure(point)
    assert run.skipped() == []


def test_a_drift_point_is_no_repeat_of_its_cell(tmp_path: Path) -> None:
    plan = a_rule(repeats=4)
    (start,) = plan.starts
    again = SweepPoint("again", HF.name, start.points[0].config, 0, "drift")
    run = Run(tmp_path / "run", replace(plan, starts=(start, replace(start, key="d", points=(again,)))))
    run.measure("again")
    for point in cell(1, 0, 1):
        run.measure(point)
    assert run.skipped() == []
    run.measure("hf_sdpa/1/2")
    assert run.skipped() == cell(1, 3)


# --- later lives --------------------------------------------------------------


def test_a_later_life_finds_what_was_decided(run: Run) -> None:
    for point in cell(1, 0, 1, 2):
        run.measure(point)
    before = run.skips
    run.resume()
    assert run.skips == before, "and writes nothing twice"
    assert list(run.ledger.skipped) == cell(1, 3, 4, 5)
    assert run.ledger.points_left == 6


@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_a_killed_life_did_not_come_to_write_down_is_decided_the_same(run: Run, written: int) -> None:
    for point in cell(1, 0, 1, 2):
        run.measure(point)
    whole = run.skips
    cut(run, written)
    run.resume()
    assert [(s.point, s.reason) for s in run.skips] == [(s.point, s.reason) for s in whole]


def cut(run: Run, skips: int) -> None:
    """As if the coordinator had been killed after so many of them."""
    path = run.run_dir / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"point_skipped"' in line)
    run.journal.close()
    path.write_bytes(b"".join(lines[: first + skips]))


def test_a_point_that_was_begun_is_measured_to_its_end(run: Run) -> None:
    """Killed in repeat 0, and yet the others come first: nothing that is half there is called not needed."""
    run.begin("hf_sdpa/1/0")
    run.resume()
    for point in cell(1, 1, 2, 3):
        run.measure(point)
    assert run.skipped() == cell(1, 4, 5)
    run.resume()
    assert run.skipped() == cell(1, 4, 5)


def test_a_failed_repeat_that_is_tried_again_is_no_longer_skipped(run: Run) -> None:
    run.measure("hf_sdpa/1/0", outcome="failed")
    for point in cell(1, 1, 2, 3):
        run.measure(point)
    run.resume(retry_failed=True)
    assert run.skipped() == cell(1, 4, 5)
    assert "hf_sdpa/1/0" not in {*run.ledger.ended, *run.ledger.skipped}


def test_what_was_measured_before_a_retry_counts_once(run: Run) -> None:
    """A batch with an error record is run again: its first time is not of the point's speed any more."""
    run.begin("hf_sdpa/1/0")
    bad = Cause(cls="bad_prompt", message="no")
    records = [record(name, point="hf_sdpa/1/0", error=bad) for name in run.plan.prompt_ids]
    slow = BatchStats(wall_s=50.0, generated_tokens=10)
    run.ledger.commit(point="hf_sdpa/1/0", batch="b1", incarnation="w1", records=records, stats=slow, flags=[])
    run.ledger.emit(PointEnded(at=2.0, point="hf_sdpa/1/0", outcome="failed"))
    run.resume(retry_failed=True)
    for point in cell(1, 0, 1, 2):
        run.measure(point)
    assert run.skipped() == cell(1, 3, 4, 5)
    whole = run.skips
    cut(run, 0)
    run.resume()
    assert [(s.point, s.reason) for s in run.skips] == [(s.point, s.reason) for s in whole]


# --- how it is told -------------------------------------------------------------


def told(tmp_path: Path) -> RunView:
    plan = a_rule(repeats=4)
    journal = begin(tmp_path / "run", plan)
    launch(journal, plan.starts[0], "w0")
    for point in plan.points:
        if point.repeat == 3 and point.config.batch_size == 1:
            journal.emit(PointSkipped(at=3.0, point=point.id, reason="3 repeats gave the same"))
            continue
        journal.emit(PointStarted(at=1.0, point=point.id, incarnation="w0", prompts=3))
        records = [record(name, point=point.id) for name in plan.prompt_ids]
        stats = BatchStats(wall_s=1.0, generated_tokens=9)
        journal.commit(point=point.id, batch="b1", incarnation="w0", records=records, stats=stats)
        journal.emit(ended("ok", point=point.id))
    release(journal, "w0")
    end(journal)
    return RunView.load(tmp_path / "run")


def test_a_skipped_point_is_neither_failed_nor_missing(tmp_path: Path) -> None:
    view = told(tmp_path)
    assert view.state_of("hf_sdpa/1/3") == "skipped"
    assert (view.missing, view.complete, view.exit_code) == ({}, True, 0)
    found = status(view)
    assert found["points"] == {"total": 8, "done": 7, "failed": 0, "partial": 0, "skipped": 1, "left": 0}
    assert (found["records"], found["records_planned"]) == (21, 21)
    assert (found["complete"], found["failures"]) == (True, [])
    assert "points: 7 done, 0 failed, 1 not needed, 0 left of 8" in list(status_lines(found))


def test_the_table_says_after_how_many_repeats_it_stopped(tmp_path: Path) -> None:
    view = told(tmp_path)
    assert [row.outcome_text for row in rows(view)] == [
        "ok (stopped after 3 of 4 repeats, batches of 3)",
        "ok (batches of 3)",
    ]
    assert [row.outputs_missing for row in rows(view)] == [0, 0]
    text = markdown(view)
    assert "INCOMPLETE" not in text
    assert "stopped after 3 of 4 repeats" in text
    assert "7 ok, 1 skipped" in text


def test_whoever_watches_is_told_of_it() -> None:
    narrator = Narrator()
    narrator.know(lambda: labels(a_rule()))
    line = narrator.line(PointSkipped(at=1.0, point="hf_sdpa/2/3", reason="3 repeats gave the same"))
    assert line is not None
    assert not line.bad
    assert line.text == "hf_sdpa batch_size=2 (repeat 4 of 6): not needed, 3 repeats gave the same"
    assert progress_text(Progress(points_done=3, points_skipped=2, points_total=5)).endswith("3/5 done, 2 not needed")


def test_a_drift_point_is_of_the_run_and_of_no_row(tmp_path: Path) -> None:
    plan = a_plan([HF], [1], repeats=2)
    (start,) = plan.starts
    again = SweepPoint("again", HF.name, start.points[0].config, 0, "drift")
    plan = replace(plan, starts=(start, replace(start, key="d", points=(again,))))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    journal = begin(tmp_path / "run", plan)
    journal.close()
    view = RunView.load(tmp_path / "run")
    (row,) = rows(view)
    assert row.points == ("hf_sdpa/1/0", "hf_sdpa/1/1")
    assert status(view)["points"]["left"] == 3
