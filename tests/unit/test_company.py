"""Rows that were measured while other slots were at work say so, and a comparison of such with others is warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.events import RunEnded, Waited, Waiting, WorkerLaunched
from orchestrator.judge.company import lint
from orchestrator.report import RunView, markdown, results, rows, status, status_lines
from orchestrator.view import markdown as report_markdown
from orchestrator.view.marks import COMPANY
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, record, release, run_start, started, stats

BESIDE = "slot1: vllm_fa"


def a_run(run_dir: Path, beside: dict[str, list[str]]) -> RunView:
    """`beside`: point → what ran on other slots during its only batch."""
    plan = a_plan((HF, VLLM), (1,), 1)
    journal = begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        launch(journal, start, f"w{number}")
        for point in start.points:
            journal.commit(
                point=point.id,
                batch="b0",
                incarnation=f"w{number}",
                records=[record("a", point=point.id, batch="b0")],
                stats=stats(),
                neighbours=beside.get(point.id, []),
            )
            journal.emit(ended(point=point.id))
        release(journal, f"w{number}")
    end(journal)
    return RunView.load(run_dir)


def test_company_is_signed_explained_and_noted(tmp_path: Path) -> None:
    both = {"hf_sdpa/1/0": [BESIDE], "vllm_fa/1/0": ["slot0: hf_sdpa"]}
    view = a_run(tmp_path / "run", both)
    assert [row.shown_method for row in rows(view)] == [f"hf_sdpa {COMPANY}", f"vllm_fa {COMPANY}"]
    text = markdown(view)
    assert text.count("measured while other slots were at work") == 1
    assert f"measured while other slots were at work: {BESIDE}, slot0: hf_sdpa" in text
    assert f"other slots were at work during 1 of 1 measured batches: {BESIDE} during 1" in text
    assert [row["neighbours"] for row in results(view)["rows"]] == [
        [{"who": BESIDE, "batches": 1}],
        [{"who": "slot0: hf_sdpa", "batches": 1}],
    ]
    assert not any(row.marks for row in rows(view)), "all had company"


def test_company_of_some_methods_alone_marks_their_rows(tmp_path: Path) -> None:
    view = a_run(tmp_path / "run", {"vllm_fa/1/0": ["slot0: x"]})
    first, second = rows(view)
    assert (first.marks, second.marks) == ((), ("company: hf_sdpa alone; vllm_fa beside work on other slots",))
    assert any(one["what"] == "company" for one in results(view)["fairness"]["after"])


@pytest.mark.parametrize(
    ("crowded", "points"),
    [
        ({"a": {"1": False}, "b": {"2": False}}, None),
        ({"a": {"1": True}, "b": {"2": True}}, None),
        ({"a": {"1": True}, "b": {"2": True, "3": False}}, None),
        ({"a": {"1": False}, "b": {"2": True, "3": False}}, ("2",)),
        ({"a": {"1": True}, "b": {}}, None),
    ],
)
def test_only_all_alone_beside_some_company_is_unfair(
    crowded: dict[str, dict[str, bool]], points: tuple[str, ...] | None
) -> None:
    found = lint(crowded, on_gpus=False)
    assert [one.points for one in found] == ([] if points is None else [points])
    assert [one.level for one in lint(crowded, on_gpus=True)] == ["note" for _ in found]


def launched(incarnation: str, slot: str, **changes: str) -> WorkerLaunched:
    fixed = {"method": "hf_sdpa", "engine": "hf", "env": "e", "fingerprint": "f", "log": "l"}
    return WorkerLaunched(at=1.0, incarnation=incarnation, slot=slot, pid=1, **fixed, **changes)  # type: ignore[arg-type]


def test_measured_time_is_told_against_the_time_of_all_slots(tmp_path: Path) -> None:
    plan = a_plan()
    journal = begin(tmp_path / "run", plan)
    journal.emit(launched("w1", "slot0"))
    journal.emit(launched("w2", "slot1"))
    journal.emit(launched("w3", "slot1", early="standby", cpus="0-3"))
    journal.emit(RunEnded(at=9.0, exit_code=0, wall_s=10.0, measured_s=16.0))
    journal.close()
    view = RunView.load(tmp_path / "run")
    assert view.most_slots == results(view)["slots"] == 2
    text = markdown(view)
    assert "- measurement: 16 s of 10 s wall time on 2 slots at once, 80%\n" in text
    assert "- hf_sdpa: held to CPUs 0-3" in text
    assert "while the one before it was at work" in text


def test_workers_of_a_life_that_was_killed_hold_no_slot_in_the_next(tmp_path: Path) -> None:
    journal = begin(tmp_path / "run", a_plan())
    journal.emit(launched("w1", "slot0"))
    journal.emit(started(life=2))
    journal.emit(launched("w2", "slot1"))
    view = RunView.load(tmp_path / "run")
    journal.close()
    assert view.most_slots == 1
    assert [worker.launched.incarnation for worker in view.current] == ["w2"]


def test_all_that_are_at_work_and_all_that_is_waited_for_are_told(tmp_path: Path) -> None:
    journal = begin(tmp_path / "run", a_plan())
    for n in (0, 1):
        journal.emit(launched(f"w{n}", f"slot{n}"))
    for n in (2, 3):
        journal.emit(Waiting(at=1.0, what="slot", reason=f"held {n}", most_s=5, slot=f"slot{n}"))
    journal.emit(Waited(at=2.0, what="slot", reason="held 2", wait_s=1.0, slot="slot2"))
    found = status(RunView.load(tmp_path / "run"))
    journal.close()
    assert [one["incarnation"] for one in found["workers"]] == ["w0", "w1"]
    assert [one["reason"] for one in found["waits"]] == ["held 3"]
    assert sum(line.startswith("worker: ") for line in status_lines(found)) == 2


def test_a_report_that_does_not_show_all_rows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = a_plan(sizes=(1, 2, 3), repeats=1)
    journal = begin(tmp_path / "run", plan)
    run_start(journal, plan.starts[0], "w0")
    end(journal)
    view = RunView.load(tmp_path / "run")
    whole = markdown(view)
    assert "are shown" not in whole
    monkeypatch.setattr(report_markdown, "SHOWN", 2)
    short = markdown(view)
    told = "the first 2 of 6 rows are shown, `report --json` has all; those that are not: 1 ok, 3 unfinished"
    assert told.replace("`", "\\`") in short
    assert "in these: 9 outputs missing" in short
    results_of = [text.partition("## Latency")[0] for text in (whole, short)]
    assert [text.count("\n| hf_sdpa ") for text in results_of] == [3, 2]
    assert len(results(view)["rows"]) == 6


def test_the_next_worker_that_stood_by_is_noted_and_no_company(tmp_path: Path) -> None:
    view = a_run(tmp_path / "run", {"hf_sdpa/1/0": ["standby: vllm_fa"]})
    first, second = rows(view)
    assert (first.shown_method, first.marks, second.marks) == ("hf_sdpa", (), ())
    assert [one["who"] for one in results(view)["rows"][0]["neighbours"]] == ["standby: vllm_fa"]
    text = markdown(view)
    assert "the next worker imported its engine or waited, standby: vllm_fa, during 1 of 1 measured batches" in text
    assert "other slots were at work" not in text
