"""What the dashboard says of runs, in its API and to Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.events import BatchLost, PointEnded, SlotQuarantined
from orchestrator.outcomes import Cause
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.serve import metrics, told
from orchestrator.serve.errands import Errands
from orchestrator.serve.figures import figures
from orchestrator.serve.lane import Lane
from orchestrator.serve.watched import Lanes, Watched
from orchestrator.view.runview import RunView
from orchestrator.view.summary import labels
from tests.unit.rundirs import HF, a_plan, begin, end, ended, finished_run, launch, run_point

HOSTILE = '</script><img src=x onerror=alert(1)>\n"\\\u202eevil'
CAUSE = Cause(cls="engine_crash", message=HOSTILE, incarnation="w0-x")
LANES = Lanes(Lane("quick"), Lane("slow"), Lane("drawing"), Errands())


def live_of(run_dir: Path, progress: Progress | None = None) -> dict[str, Any]:
    view = RunView.load(run_dir)
    return told.live(view, progress or Progress(), labels(view.plan))


def test_a_finished_run(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    found = told.brief(RunView.load(tmp_path / "run"))
    assert found["state"] == "finished"
    assert found["points"] == {"total": 8, "done": 8, "failed": 0, "partial": 0, "skipped": 0, "left": 0}
    assert (found["started_at"], found["last_event_at"], found["generated_tokens"]) == (1000.0, 1020.0, 72)
    assert found["best"]["label"].endswith("batch_size=2")


def test_a_run_of_which_nothing_is_measured_has_no_fastest(tmp_path: Path) -> None:
    end(begin(tmp_path / "run", a_plan()), 3, "no room\x1b[2J\u202e")
    found = told.brief(RunView.load(tmp_path / "run"))
    assert (found["state"], found["best"], found["reason"]) == ("stopped", None, r"no room\x1b[2J\u202e")


def failing(run_dir: Path) -> None:
    """One point well, one failed, one that lost a batch and lacks a prompt; a slot out of use."""
    plan = a_plan([HF])
    journal = begin(run_dir, plan)
    one, two, three, *_ = plan.starts[0].points
    launch(journal, plan.starts[0], "w0-x")
    run_point(journal, one, "w0-x")
    journal.emit(ended(point=one.id))
    journal.emit(PointEnded(at=1011.0, point=two.id, outcome="failed", cause=CAUSE))
    journal.emit(BatchLost(at=1012.0, point=three.id, batch="b", incarnation="w0-x", prompts=["a"], cause=CAUSE))
    journal.emit(PointEnded(at=1013.0, point=three.id, outcome="partial"))
    journal.emit(SlotQuarantined(at=1014.0, slot="slot0", incarnation="", reason="somebody\x1b[31m has it"))
    end(journal, 3)


def test_what_went_wrong_newest_first_and_safe_to_show(tmp_path: Path) -> None:
    failing(tmp_path / "run")
    found = live_of(tmp_path / "run")
    assert [one["at"] for one in found["troubles"]] == [1014.0, 1013.0, 1012.0, 1011.0]
    assert found["troubles"][0]["text"] == r"slot0 is out of use: somebody\x1b[31m has it"
    assert all("\n" not in one["text"] and "\u202e" not in one["text"] for one in found["troubles"])
    assert found["failures_by_class"] == {"engine_crash": 2}
    assert found["troubles_not_listed"] == 0


def test_of_very_much_that_went_wrong_the_newest(tmp_path: Path) -> None:
    plan = a_plan([HF], sizes=range(1, 40))
    journal = begin(tmp_path / "run", plan)
    for at, point in enumerate(plan.points):
        journal.emit(PointEnded(at=1000.0 + at, point=point.id, outcome="failed", cause=CAUSE))
    end(journal)
    found = live_of(tmp_path / "run")
    assert [one["at"] for one in found["troubles"]] == [1077.0 - n for n in range(told.LISTED)]
    assert found["troubles_not_listed"] == 78 - told.LISTED


def test_what_workers_do_is_told_as_the_terminal_tells_it(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    worker = WorkerProgress(
        slot="slot1", method="hf_sdpa", state="busy", point="hf_sdpa/2/0", settings={"batch_size": 2}
    )
    (slot,) = live_of(tmp_path / "run", Progress(workers=[worker], eta_s=9.0))["slots"]
    assert slot["settings"] == "batch_size=2"
    assert slot["point"] == "hf_sdpa batch_size=2 (repeat 1 of 2)"
    assert slot["tokens_per_s"] is None


# --- the table and the plots --------------------------------------------------------


def test_figures_are_the_terminals_table_and_the_plots(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    found = figures(RunView.load(tmp_path / "run"))
    names = [one["name"] for one in found["table"]["columns"]]
    assert names[:3] == ["method", "batch_size", "tokens/s"]
    assert {len(one["cells"]) for one in found["table"]["columns"]} == {4}
    assert found["plots"]
    assert all(plot["alt"] and plot["title"] and plot["spec"]["data"] for plot in found["plots"])
    assert "var(--" in json.dumps(found["plots"])
    assert found["summary"]


def test_a_run_without_figures_says_why_there_are_no_plots(tmp_path: Path) -> None:
    end(begin(tmp_path / "run", a_plan()), 3)
    found = figures(RunView.load(tmp_path / "run"))
    assert any("Nothing to plot" in why for why in found["absent"])


def test_of_a_long_table_the_first_rows_and_what_the_others_came_to(tmp_path: Path) -> None:
    plan = a_plan([HF], sizes=range(1, 601), repeats=1)
    end(begin(tmp_path / "run", plan))
    found = figures(RunView.load(tmp_path / "run"))
    assert {len(one["cells"]) for one in found["table"]["columns"]} == {500}
    assert "500 of 600" in found["table"]["left_out"][0]
    assert len(msgspec.json.encode(found)) < 2_000_000


# --- a run as it is kept ------------------------------------------------------------


def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    failing(tmp_path / "run")
    watched = Watched("k", tmp_path / "run", LANES)
    for make in (watched._brief, watched._figures, watched._live):
        first = make(None)
        assert make(first) is first
        assert first.values["key"] == "k"
        assert msgspec.json.decode(first.sheet.body) == msgspec.json.decode(msgspec.json.encode(first.values))


def test_a_folder_that_is_no_run_any_more_is_told_with_its_reason(tmp_path: Path) -> None:
    failing(tmp_path / "run")
    watched = Watched("k", tmp_path / "run", LANES)
    before = watched._live(None)
    (tmp_path / "run" / "journal.jsonl").write_bytes(b"\0" * 100 + b"\n{}\n")
    (tmp_path / "run" / "plan.json").write_bytes(b"\xff")
    for make in (watched._brief, watched._figures, watched._live):
        found = make(None if make != watched._live else before)
        assert found.values["state"] == "broken"
        assert "plan.json" in found.values["reason"]
        assert found.values["name"] == "run"
        assert make(found) is not found


# --- to Prometheus ------------------------------------------------------------------


def a_run(name: str, state: str = "running", **changes: Any) -> dict[str, Any]:
    slot = {"slot": "slot0", "method": "hf", "state": "busy", "tokens_per_s": 12.5, "memory_bytes": None}
    return {
        "key": f"key of {name}",
        "name": name,
        "state": state,
        "points": {"total": 9, "done": 3, "failed": 1, "partial": 0, "skipped": 0, "left": 5},
        "failures_by_class": {"oom": 1},
        "slots": [slot],
        "eta_s": None,
        "records": 30,
        "records_planned": 90,
        "starts": 1,
        "started_at": 1.0,
        "last_event_at": 2.0,
        "generated_tokens": 1000,
        "measured_s": 60.0,
        **changes,
    }


def exposed(runs: list[dict[str, Any]]) -> dict[str, Metric]:
    body, kind = metrics.exposition(runs, "text/plain")
    assert kind.startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def samples(family: Metric) -> Iterable[tuple[dict[str, str], float]]:
    return [(one.labels, one.value) for one in family.samples]


def test_metrics_of_a_running_run() -> None:
    found = exposed([a_run("mine")])
    assert ({"run": "mine", "state": "left"}, 5.0) in samples(found["airlock_run_points"])
    assert ({"run": "mine", "state": "running"}, 1.0) in samples(found["airlock_run_state"])
    assert samples(found["airlock_run_failed_points"]) == [({"run": "mine", "class": "oom"}, 1.0)]
    assert samples(found["airlock_run_generated_tokens"]) == [({"run": "mine"}, 1000.0)]
    assert samples(found["airlock_slot_tokens_per_second"]) == [
        ({"run": "mine", "slot": "slot0", "method": "hf"}, 12.5)
    ]
    assert samples(found["airlock_slot_phase"]) == [({"run": "mine", "slot": "slot0", "phase": "busy"}, 1.0)]


def test_what_is_not_known_has_no_sample() -> None:
    found = exposed([a_run("mine")])
    assert not found["airlock_run_eta_seconds"].samples
    assert not found["airlock_slot_memory_bytes"].samples


def test_names_follow_the_rules() -> None:
    for name, family in exposed([a_run("mine")]).items():
        assert name.startswith("airlock_")
        assert family.documentation
        assert all(one.name.endswith("_total") == (family.type == "counter") for one in family.samples)


@pytest.mark.parametrize("name", [HOSTILE, 'a"b\\', "a\nb", "{}", "…", ""])
def test_hostile_names_stay_labels(name: str) -> None:
    found = exposed([a_run(name, failures_by_class={name: 1})])
    assert samples(found["airlock_run_records"]) == [({"run": name}, 30.0)]
    assert samples(found["airlock_run_failed_points"]) == [({"run": name, "class": name}, 1.0)]


def test_runs_that_look_alike_stay_apart() -> None:
    found = exposed([a_run("same", key="1"), a_run("same", key="2")])
    assert [labels["run"] for labels, _ in samples(found["airlock_run_records"])] == ["same 1", "same 2"]


def test_finished_and_unreadable_runs_are_only_counted() -> None:
    runs = [a_run("old", "finished"), {"key": "b", "name": "b", "state": "broken"}, {"name": "u", "state": "unread"}]
    found = exposed(runs)
    assert not found["airlock_run_records"].samples
    counts = {labels["state"]: value for labels, value in samples(found["airlock_runs"])}
    assert (counts["finished"], counts["broken"], counts["unread"], counts["running"]) == (1, 1, 1, 0)


def test_however_many_runs_there_are_the_series_are_bounded() -> None:
    found = exposed([a_run(f"run {n}", "crashed", last_event_at=float(n)) for n in range(metrics.MOST_RUNS + 7)])
    shown = [labels["run"] for labels, _ in samples(found["airlock_run_records"])]
    assert len(shown) == metrics.MOST_RUNS
    assert shown[0] == "run 56"
    assert samples(found["airlock_runs_without_series"]) == [({}, 7.0)]
