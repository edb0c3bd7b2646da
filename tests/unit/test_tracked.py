"""What a tracker is told of a run: the names and the keys that make two exports one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.definition.variables import HIDDEN
from orchestrator.exports import tracked
from orchestrator.exports.rows import ROWS
from orchestrator.exports.source import Source
from orchestrator.exports.tracking import _Silence
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, finished_run, run_start


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def told(run_dir: Path) -> list[dict[str, Any]]:
    """As it arrives."""
    items = tracked.items(Source.of(run_dir), {"report.md": "/there"})
    return [json.loads(msgspec.json.encode(item)) for item in items]


def test_the_sweep_comes_first_and_each_row_has_its_settings_and_figures(run_dir: Path) -> None:
    finished_run(run_dir)
    sweep, *rows = told(run_dir)
    assert (sweep["sweep"], sweep["state"], sweep["files"]) == (True, "finished", {"report.md": "/there"})
    assert (sweep["begin"], sweep["end"], sweep["metrics"]["records"]) == (1000.0, 1020.0, 24)
    assert [row["name"] for row in rows] == [f"{m.name} batch_size={n}" for m in (HF, VLLM) for n in (1, 2)]
    row = rows[3]
    assert (row["params"]["method"], row["params"]["setting_batch_size"]) == ("vllm_fa", 2)
    assert (row["metrics"]["output_tokens_per_s"], row["tags"]["outcome"]) == (12.0, "ok")
    assert row["tags"]["fingerprint"] == "f1"
    assert all(isinstance(value, str) and value for value in row["tags"].values())
    assert all(type(value) in (int, float) for value in row["metrics"].values()), "what is null is left out"


def test_every_figure_of_a_row_is_a_metric_or_a_tag(run_dir: Path) -> None:
    finished_run(run_dir)
    row = told(run_dir)[1]
    known = {column.name for column in ROWS} - {"run", "run_id", "method", "engine", "settings", "points", "reasons"}
    assert set(row["metrics"]) <= known
    assert set(row["metrics"]).isdisjoint(row["tags"])


def test_keys_stay_while_the_run_goes_on(tmp_path: Path) -> None:
    plan = a_plan()
    journal = begin(tmp_path / "run", plan)
    run_start(journal, plan.starts[0], "w0")
    before = told(tmp_path / "run")
    assert [item["state"] for item in before] == ["running", "finished", "finished", "running", "running"]
    run_start(journal, plan.starts[1], "w1")
    end(journal)
    after = told(tmp_path / "run")
    assert [item["key"] for item in after] == [item["key"] for item in before]
    assert len({item["key"] for item in after}) == 5
    assert {item["state"] for item in after} == {"finished"}


def test_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    plan = a_plan()
    journal = begin(tmp_path / "run", plan)
    run_start(journal, plan.starts[0], "w0")
    end(journal, exit_code=130)
    assert [item["state"] for item in told(tmp_path / "run")] == ["killed", "finished", "finished", "killed", "killed"]


def test_no_value_of_a_secret_is_told(run_dir: Path) -> None:
    plan = a_plan((replace(HF, env_vars={"X_API_KEYS": "hunter2"}),))
    journal = begin(run_dir, plan)
    run_start(journal, plan.starts[0], "w0")
    end(journal)
    items = told(run_dir)
    assert items[1]["params"]["method_env_vars"] == {"X_API_KEYS": HIDDEN}
    assert "hunter2" not in json.dumps(items)


def test_a_tracker_is_silent_only_while_it_says_nothing(tmp_path: Path) -> None:
    now, answers = [0.0], tmp_path / "answers"
    silent = _Silence(answers, 10.0, lambda: now[0])
    heard = []
    for at, said in ((0, ""), (9, ""), (9, "x"), (18, ""), (19, ""), (20, "y"), (30, "")):
        now[0] = at
        if said:
            answers.write_text(f"{answers.read_text() if answers.exists() else ''}{said}")
        heard.append(silent())
    assert heard == [False, False, False, False, True, False, True]
