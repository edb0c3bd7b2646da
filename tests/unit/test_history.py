"""What earlier runs beside a new one tell of times; whatever is damaged there only tells nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.events import BatchCommitted, RunStarted
from orchestrator.run import history
from orchestrator.run.forecast import Forecast, cells_of
from orchestrator.run.history import Past, past
from tests.unit.rundirs import a_plan, begin, end, finished_run, run_start

MODEL, HOST = "m-digest", "lab"


def told(runs: Path, *, model: str = MODEL, host: str = HOST) -> list[Past]:
    return list(past(runs / "new", model, host))


def batches(one: Past) -> int:
    return sum(isinstance(event, BatchCommitted) for event in one.events)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_a_finished_run_tells_its_points_and_its_batches(tmp_path: Path) -> None:
    plan = finished_run(tmp_path / "old")
    (one,) = told(tmp_path)
    assert one.cells.keys() == cells_of(plan).keys()
    assert [cell._replace(load=b"") for cell in cells_of(plan).values()] == list(one.cells.values())
    assert batches(one) == 20
    forecast = Forecast(cells_of(plan))
    forecast.recall(one.cells, one.events)
    assert forecast.eta_s([], 1) is not None


def test_only_runs_of_the_model_on_this_host_and_not_the_run_itself(tmp_path: Path) -> None:
    finished_run(tmp_path / "new")
    assert told(tmp_path) == []
    finished_run(tmp_path / "old")
    assert len(told(tmp_path)) == 1
    assert told(tmp_path, model="another") == []
    assert told(tmp_path, host="elsewhere") == []
    assert list(past(tmp_path / "none" / "new", MODEL, HOST)) == []


def test_the_newest_few_runs_the_newest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_RUNS", 2)
    for age, repeats in ((300, 1), (200, 2), (100, 3)):
        journal = begin(tmp_path / f"run{repeats}", plan := a_plan(repeats=repeats))
        run_start(journal, plan.starts[0], "w1")
        end(journal)
        os.utime(tmp_path / f"run{repeats}" / "journal.jsonl", (10**9 - age, 10**9 - age))
    assert [len(one.cells) for one in told(tmp_path)] == [8, 12]


def test_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(tmp_path / "old")
    sizes = {name: (tmp_path / "old" / name).stat().st_size for name in ("plan.json", "journal.jsonl")}
    monkeypatch.setattr(history, "MOST_BYTES", sizes["plan.json"] + sizes["journal.jsonl"] // 2)
    (half,) = told(tmp_path)
    assert 0 < batches(half) < 20
    monkeypatch.setattr(history, "MOST_BYTES", sizes["plan.json"] - 1)
    assert told(tmp_path) == []


def test_a_plan_of_another_version_still_tells(tmp_path: Path) -> None:
    finished_run(tmp_path / "old")
    file = tmp_path / "old" / "plan.json"
    file.write_text(file.read_text().replace('"name":"demo"', '"name":"demo","unheard_of":{"x":1}', 1))
    assert [batches(one) for one in told(tmp_path)] == [20]


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "plan.json").write_text("{"),
        lambda run: (run / "plan.json").write_text('{"x":' + "[" * 100_000),
        lambda run: (run / "plan.json").write_bytes(b"\xff\xfe"),
        lambda run: (run / "plan.json").unlink(),
        lambda run: (run / "journal.jsonl").unlink(),
        lambda run: (run / "journal.jsonl").write_text("no event\n"),
        lambda run: (run / "journal.jsonl").write_text(""),
        lambda run: pipe(run / "plan.json"),
        lambda run: pipe(run / "journal.jsonl"),
        lambda run: ((run / "journal.jsonl").unlink(), (run / "journal.jsonl").mkdir()),
    ],
)
def test_what_can_t_be_read_is_passed_over(tmp_path: Path, damage: object) -> None:
    finished_run(tmp_path / "good")
    finished_run(tmp_path / "bad")
    assert callable(damage)
    damage(tmp_path / "bad")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").write_text("x")
    assert [batches(one) for one in told(tmp_path)] == [20]


def test_what_stands_before_the_damage_is_good(tmp_path: Path) -> None:
    finished_run(tmp_path / "old")
    file = tmp_path / "old" / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:-3], b"broken\n", *lines[-2:]]))
    (one,) = told(tmp_path)
    assert 0 < batches(one) <= 20
    assert len(one.events) == len(lines) - 3


def test_a_run_that_went_on_on_another_host_is_taken_up_to_there(tmp_path: Path) -> None:
    journal = begin(tmp_path / "old", plan := a_plan())
    run_start(journal, plan.starts[0], "w1")
    journal.emit(RunStarted(at=1.0, life=2, pid=1, airlock="0", host="elsewhere", plan_digest="d", points=1))
    run_start(journal, plan.starts[1], "w2")
    end(journal)
    (one,) = told(tmp_path)
    assert batches(one) == 10


def test_scoring_has_no_tokens(tmp_path: Path) -> None:
    plan = a_plan()
    point = plan.starts[0].points[0]
    scoring = replace(point, config=replace(point.config, task="score"))
    journal = begin(tmp_path / "old", replace(plan, starts=(replace(plan.starts[0], points=(scoring,)),)))
    end(journal)
    (one,) = told(tmp_path)
    assert [(cell.kind.task, cell.kind.tokens) for cell in one.cells.values()] == [("score", 1)]
