"""Exports are read back with other readers and compared with what was written."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.definition.judging import Answers
from orchestrator.definition.variables import HIDDEN
from orchestrator.errors import JournalError
from orchestrator.exports.columns import RECORDS, Column, Line, Table, kind_of
from orchestrator.exports.source import Source
from orchestrator.exports.tables import TABLES, lines_of
from orchestrator.exports.textual import FORMULA, Csv, jsonl
from orchestrator.exports.values import fitted
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause
from orchestrator.record.output import RecordLogprobs
from orchestrator.view.figures import row_figures
from orchestrator.view.rows import rows as rows_of
from orchestrator.view.runview import RunView
from tests.unit.rundirs import (
    HF,
    PROMPTS,
    VLLM,
    a_plan,
    begin,
    end,
    ended,
    finished_run,
    launch,
    new_run,
    prompt_lines,
    record,
    run_point,
    started,
    stats,
)

NASTY = 'say "hi",\r\nnew\rline;\ttab\u2028sep \x00 ß☃ =1+1'
COLUMNS = [column.name for column in TABLES["records"].columns]
TOLD = RecordLogprobs(chosen=[-0.5, None, -1.5], top_ids=[[1, 2]] * 3, top=[[-0.5, -2.0], [None, None], [-1.0, -1.5]])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def exported(run_dir: Path, format: str, what: str = "records") -> str:
    table = TABLES[what]
    lines = lines_of(table, [Source.of(run_dir)], Counter())
    return b"".join(jsonl(table, lines) if format == "jsonl" else Csv().lines(table, lines)).decode()


def json_rows(run_dir: Path, what: str = "records") -> list[dict[str, Any]]:
    return [json.loads(line) for line in exported(run_dir, "jsonl", what).split("\n")[:-1]]


def csv_rows(run_dir: Path, what: str = "records") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported(run_dir, "csv", what), newline="")))


def one_point(run_dir: Path) -> tuple[Journal, str]:
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    return journal, plan.points[0].id


def nasty_run(run_dir: Path) -> None:
    journal, point = one_point(run_dir)
    error = Cause(cls="bad_prompt", message="too\nlong", phase="busy")
    records = [
        record("a", point=point, text=NASTY, flags=["x", "y"], incarnation="w0", itl_s=[0.125, None], logprobs=TOLD),
        record("b", point=point, text="", token_ids=[], ttft_s=None, latency_s=None, error=error, incarnation="w0"),
        record("zz", point=point, text="bare\rreturn", incarnation="unknown"),
    ]
    journal.commit(point=point, batch="b1", incarnation="w0", records=records, stats=stats())
    end(journal)


# --- what is in it ----------------------------------------------------------------


def test_each_record_is_joined_with_prompt_settings_and_engine(run_dir: Path) -> None:
    finished_run(run_dir)
    found = json_rows(run_dir)
    assert len(found) == 24
    assert all(list(row) == COLUMNS for row in found)
    row = next(r for r in found if (r["point"], r["prompt_id"]) == ("vllm_fa/2/1", "b"))
    joined = {
        **{"run": "run", "method": "vllm_fa", "engine": "vllm", "role": "measure", "repeat": 1},
        **{"prompt_token_ids": [1, 2], "prompt_source": {"text": 'say "b",\nplease'}, "token_ids": [5, 6, 7]},
        **{"engine_version": "9.9", "torch_version": "2.13.0", "fingerprint": "f1", "env": "vllm-cpu"},
        **{"setting_batch_size": 2, "method_engine_args": {"x": [1, 2]}},
    }
    assert {name: row[name] for name in joined} == joined


def test_no_value_of_a_secret_is_exported(run_dir: Path) -> None:
    plan = a_plan((replace(HF, env_vars={"X_API_KEYS": "hunter2", "OMP_NUM_THREADS": "2"}),), (3,), 1)
    journal = begin(run_dir, plan)
    run_point(journal, plan.points[0], "w0")
    end(journal)
    for what in ("records", "rows", "batches"):
        (row, *_) = json_rows(run_dir, what)
        assert row["method_env_vars"] == {"X_API_KEYS": HIDDEN, "OMP_NUM_THREADS": "2"}


def test_every_field_of_a_method_and_every_setting_is_a_column() -> None:
    names = set(COLUMNS)
    assert {"method_eager", "method_rocket_bucket", "method_ngram", "setting_dtype", "setting_seed"} <= names
    assert names.isdisjoint({"method_name", "method_summary", "setting_method"})
    assert all(len({column.name for column in table.columns}) == len(table.columns) for table in TABLES.values())


def test_names_need_no_quotes_in_any_language() -> None:
    assert all(re.fullmatch("[a-z][a-z0-9_]*", column.name) for table in TABLES.values() for column in table.columns)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        *((str | None, "word"), (tuple[int, ...] | None, "integers"), (dict[str, Any], "json"), (bool, "flag")),
        *((list[list[int]], "json"), (float, "number"), (list[str], "words")),
    ],
)
def test_a_new_field_has_a_type_by_itself(hint: Any, kind: str) -> None:
    assert kind_of(hint) == kind


def test_speed_can_be_worked_out_again_from_batches(run_dir: Path) -> None:
    finished_run(run_dir)
    found = [row for row in json_rows(run_dir) if row["point"] == "vllm_fa/2/1"]
    walls = {row["batch"]: row["batch_wall_s"] for row in found if row["batch_measured"]}
    assert sum(row["generated_tokens"] for row in found) / sum(walls.values()) == 9 / 0.5
    batches = [row for row in json_rows(run_dir, "batches") if row["point"] == "vllm_fa/2/1"]
    assert {row["batch"]: row["wall_s"] for row in batches if row["measured"]} == walls
    assert sum(row["generated_tokens"] for row in batches) == 9


def test_rows_are_those_of_the_report(run_dir: Path) -> None:
    finished_run(run_dir)
    found, told = json_rows(run_dir, "rows"), [row_figures(row) for row in rows_of(RunView.load(run_dir))]
    assert [(row["method"], row["settings"]["batch_size"]) for row in found] == [
        (name, size) for name in (HF.name, VLLM.name) for size in (1, 2)
    ]
    for row, figures in zip(found, told, strict=True):
        outputs, units, accuracy = figures.pop("outputs"), figures.pop("units"), figures.pop("accuracy")
        assert {name: row[name] for name in figures} == json.loads(json.dumps(figures))
        assert (accuracy, row["accuracy_value"]) == (None, None)
        assert (row["outputs_ok"], row["units"], row["unit"]) == (outputs["ok"], units["count"], units["of"])


def test_the_journal_is_a_table_too(run_dir: Path) -> None:
    finished_run(run_dir)
    found = json_rows(run_dir, "events")
    assert [row["number"] for row in found] == list(range(len(found)))
    assert (found[0]["type"], found[0]["at"], found[0]["event"]["life"]) == ("run_started", "1970-01-01T00:16:40Z", 1)
    assert {row["point"] for row in found if row["type"] == "point_ended"} == {
        f"{name}/{size}/{repeat}" for name in (HF.name, VLLM.name) for size in (1, 2) for repeat in (0, 1)
    }


def test_failed_prompts_and_unknown_origins_have_all_columns(run_dir: Path) -> None:
    nasty_run(run_dir)
    _, failed, stranger = json_rows(run_dir)
    assert (failed["error_class"], failed["error"]) == ("bad_prompt", "bad_prompt: too (while busy)")
    assert stranger["prompt_token_ids"] is None
    assert stranger["engine_version"] is None
    assert stranger["setting_batch_size"] == 1


def test_replaced_records_are_left_out(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    for batch, text in (("b1", "old"), ("b2", "new")):
        one = record(PROMPTS[0], point=point.id, batch=batch, text=text)
        journal.commit(point=point.id, batch=batch, incarnation="w0", records=[one], stats=None)
    end(journal)
    assert [row["text"] for row in json_rows(run_dir)] == ["new"]
    assert [(row["batch"], row["measured"], row["wall_s"]) for row in json_rows(run_dir, "batches")] == [
        ("b1", False, None),
        ("b2", False, None),
    ]


def judged_run(run_dir: Path, **answers: Any) -> None:
    """Of `a` the output is right, of `b` wrong, `c` expects nothing."""
    plan = replace(a_plan([HF], [3], repeats=1), answers=Answers(**answers))
    expected: dict[str, dict[str, Any]] = {"a": {"expected": "four"}, "b": {"expected": ["five", 5]}, "c": {}}
    lines = [{**line, "source": {"prompt": "x", **expected[line["id"]]}} for line in prompt_lines()]
    journal = new_run(run_dir, plan_json=msgspec.json.encode(plan), prompts=lines)
    journal.emit(started(points=1))
    launch(journal, plan.starts[0], "w0")
    point = plan.points[0].id
    records = [record(name, point=point, incarnation="w0", text="Four.") for name in "abc"]
    journal.commit(point=point, batch="b1", incarnation="w0", records=records, stats=stats())
    journal.emit(ended(point=point))
    end(journal)


def test_outputs_are_judged_by_what_their_prompts_expect(run_dir: Path) -> None:
    judged_run(run_dir, judge=("exact", "contains"))
    told = [(row["expected"], row["correct"], row["score"], row["answer"]) for row in json_rows(run_dir)]
    assert told == [("four", True, 1.0, "Four."), (["five", 5], False, 0.0, "Four."), (None, None, None, None)]
    (row,) = json_rows(run_dir, "rows")
    assert (row["accuracy_judge"], row["accuracy_value"], row["accuracy_judged"]) == ("exact", 0.5, 2)
    assert [one["judge"] for one in row["other_judges"]] == ["contains"]
    (figures,) = [row_figures(one)["accuracy"] for one in rows_of(RunView.load(run_dir))]
    assert {f"accuracy_{name}" for name in figures} <= set(row), "every part has a column"


def test_a_score_without_a_threshold_is_neither_right_nor_wrong(run_dir: Path) -> None:
    pytest.importorskip("rouge_score", reason="the extra answers is not installed")
    judged_run(run_dir, judge=("rouge_l",))
    assert [(row["correct"], row["score"]) for row in json_rows(run_dir)] == [(None, 1.0), (None, 0.0), (None, None)]


def test_several_runs_are_told_apart_and_a_copy_is_not(tmp_path: Path) -> None:
    for name in ("one", "two"):
        finished_run(tmp_path / name)
    (tmp_path / "two").rename(tmp_path / "three")
    sources = [Source.of(tmp_path / name) for name in ("one", "three")]
    lines = list(jsonl(TABLES["records"], lines_of(TABLES["records"], sources, Counter())))
    assert Counter(json.loads(line)["run"] for line in lines) == {"one": 24, "three": 24}


@pytest.mark.parametrize("damage", [b'{"id": "a", "token_', b'{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n'])
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


# --- as text ----------------------------------------------------------------------


def test_both_formats_say_the_same(run_dir: Path) -> None:
    nasty_run(run_dir)
    for what in TABLES:
        kinds = {column.name: column.kind for column in TABLES[what].columns}
        for from_json, from_csv in zip(json_rows(run_dir, what), csv_rows(run_dir, what), strict=True):
            assert list(from_csv) == list(from_json) == list(kinds)
            for column, value in from_json.items():
                assert from_csv[column] == as_csv(value), column


def as_csv(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_text_survives_quoting_in_both(run_dir: Path) -> None:
    nasty_run(run_dir)
    assert json_rows(run_dir)[0]["text"] == csv_rows(run_dir)[0]["text"] == NASTY
    assert csv_rows(run_dir)[2]["text"] == "bare\rreturn"
    assert json.loads(csv_rows(run_dir)[0]["flags"]) == ["x", "y"]
    assert json_rows(run_dir)[0]["top_logprobs"] == [[-0.5, -2.0], [None, None], [-1.0, -1.5]]
    assert json_rows(run_dir)[0]["itl_s"] == [0.125, None]


ONE = Table("one", "", (Column("text", "text", ""), Column("n", "integer", ""), Column("json", "json", "")), (), iter)


def line(*values: Any) -> Line:
    return Line(fitted(ONE.own, Counter())(values))


def cells(*values: Any, guarded: bool = False) -> bytes:
    _, found = Csv(guarded).lines(ONE, [line(*values)])
    return found


def test_an_empty_text_is_no_null_in_csv() -> None:
    assert cells(None, None, None) == b",,\r\n"
    assert cells("", 0, []) == b'"",0,"[]"\r\n'


TEXTS = st.text(st.characters(codec="utf-8"))
ANY = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(TEXTS, st.integers(-(2**63), 2**63 - 1), ANY)
def test_whatever_there_is_comes_back_from_both(text: str, number: int, value: Any) -> None:
    (found,) = csv.reader(io.StringIO(cells(text, number, value).decode(), newline=""))
    assert [found[0], found[1]] == [text, str(number)]
    assert found[2] == "" if value is None else json.loads(found[2]) == value
    (whole,) = jsonl(ONE, [line(text, number, value)])
    assert json.loads(whole) == {"text": text, "n": number, "json": value}
    assert whole.count(b"\n") == 1


@pytest.mark.parametrize("first", FORMULA)
def test_a_spreadsheet_gets_no_formula(first: str) -> None:
    text = f"{first}cmd|' /C calc'!A0"
    writer = Csv(guarded=True)
    head, row = writer.lines(ONE, [line(text, -1, {"=": 1})])
    assert head.startswith(b'\xef\xbb\xbf"text"')
    assert next(csv.reader(io.StringIO(row.decode(), newline=""))) == [f"'{text}", "-1", '{"=":1}']
    plain = Csv()
    list(plain.lines(ONE, [line(text, 1, 1), line("harmless - it is", 1, 1)]))
    assert (writer.formulas, plain.formulas) == (1, 1)


HOSTILE: list[tuple[str, Any, Any, bool]] = [
    ("text", "a\ud800b", "a\ufffdb", True),
    ("word", "gr\u00fc\u00df", "gr\u00fc\u00df", False),
    ("integer", 2**63, None, True),
    ("integer", -(2**63), -(2**63), False),
    ("number", float("nan"), None, True),
    ("number", float("-inf"), None, True),
    ("number", 10**400, None, True),
    ("number", 3, 3.0, False),
    ("time", float("inf"), None, True),
    ("time", 1e30, None, True),
    ("words", ["a", "\udcff"], ["a", "\ufffd"], True),
    ("integers", [1, 2**64], [1, None], True),
    ("numbers", [0.5, None, float("nan")], [0.5, None, None], True),
    ("lists of integers", [[1], [2**70]], [[1], [None]], True),
    ("lists of numbers", [[None, 0.5], [float("inf")]], [[None, 0.5], [None]], True),
    ("json", {"\ud800": [float("nan"), 2**70, "\udcff"]}, {"\ufffd": [None, 2**70, "\ufffd"]}, False),
]


@pytest.mark.parametrize(("kind", "value", "expected", "counted"), HOSTILE, ids=lambda value: repr(value)[:20])
def test_what_no_format_holds_is_null_and_counted(kind: Any, value: Any, expected: Any, counted: bool) -> None:
    lost = Counter[str]()
    (found,) = fitted([Column("x", kind, "")], lost)([value])
    assert (json.loads(bytes(found)) if kind == "json" else found) == expected
    assert lost == ({"x": 1} if counted else {})


def test_every_column_of_a_record_has_a_meaning() -> None:
    named = {"method", "engine"}
    assert [column.name for column in RECORDS if not column.meaning and column.name not in named] == []
