"""Parquet is read back by pyarrow, pandas and polars, and holds what the JSON lines hold."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError, JournalError
from orchestrator.exports import command, extras, frames, parquet
from orchestrator.exports.columns import Line
from orchestrator.exports.source import Source
from orchestrator.exports.tables import TABLES, lines_of
from tests.unit.rundirs import finished_run
from tests.unit.test_export import json_rows, nasty_run

pa = pytest.importorskip("pyarrow", reason="the extra data is not installed")
pq = pytest.importorskip("pyarrow.parquet")

TYPES = {
    "text": "string",
    "word": "dictionary<values=string, indices=int32, ordered=0>",
    "integer": "int64",
    "number": "double",
    "flag": "bool",
    "time": "timestamp[us, tz=UTC]",
    "json": "string",
    "words": "list<element: string>",
    "integers": "list<element: int64>",
    "numbers": "list<element: double>",
    "lists of integers": "list<element: list<element: int64>>",
    "lists of numbers": "list<element: list<element: double>>",
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def written(run_dir: Path, what: str = "records") -> io.BytesIO:
    table, sources, out = TABLES[what], [Source.of(run_dir)], io.BytesIO()
    parquet.write(table, lines_of(table, sources, Counter()), parquet.schema(table, command.about(sources)), out)
    return io.BytesIO(out.getvalue())


def plain(kind: str, value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return json.loads(value) if kind == "json" and value is not None else value


@pytest.mark.parametrize("what", TABLES)
def test_it_holds_what_the_json_lines_hold(run_dir: Path, what: str) -> None:
    nasty_run(run_dir)
    kinds = {column.name: column.kind for column in TABLES[what].columns}
    found = pq.read_table(written(run_dir, what)).to_pylist()
    assert [{name: plain(kinds[name], value) for name, value in row.items()} for row in found] == json_rows(
        run_dir, what
    )


@pytest.mark.parametrize("what", TABLES)
def test_types_are_the_schemas_whatever_the_values(tmp_path: Path, what: str) -> None:
    finished_run(tmp_path / "a")
    nasty_run(tmp_path / "b")
    first, second = (pq.read_schema(written(tmp_path / name, what)) for name in ("a", "b"))
    assert first.equals(second)
    assert {field.name: str(field.type) for field in first} == {
        column.name: TYPES[column.kind] for column in TABLES[what].columns
    }


def test_the_file_says_what_it_is_and_where_it_comes_from(run_dir: Path) -> None:
    finished_run(run_dir)
    schema = pq.read_schema(written(run_dir))
    told = {name.decode(): value.decode() for name, value in schema.metadata.items()}
    (origin,) = json.loads(told["airlock.runs"])
    assert (told["airlock.table"], told["airlock.schema_version"]) == ("records", "1")
    assert (origin["run"], origin["state"], origin["plan"]) == ("run", "finished", "plan-digest")
    assert origin["run_id"] == json_rows(run_dir)[0]["run_id"]
    assert schema.field("ttft_s").metadata[b"meaning"].startswith(b"seconds from hand-over")


def test_row_groups_end_by_lines_and_sooner_where_lines_are_long(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(run_dir)
    monkeypatch.setattr(parquet, "GROUP_LINES", 10)
    by_lines = pq.ParquetFile(written(run_dir)).metadata
    assert [by_lines.row_group(n).num_rows for n in range(by_lines.num_row_groups)] == [10, 10, 4]
    monkeypatch.setattr(parquet, "GROUP_ITEMS", 1)
    by_size = pq.ParquetFile(written(run_dir)).metadata
    assert by_size.num_row_groups == 24
    found = pq.read_table(written(run_dir)).to_pylist()
    assert [(row["method"], row["setting_batch_size"], row["run"]) for row in found] == [
        (row["method"], row["setting_batch_size"], row["run"]) for row in json_rows(run_dir)
    ]


def test_no_more_than_a_group_is_in_memory(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(run_dir)
    monkeypatch.setattr(parquet, "GROUP_LINES", 4)
    table, taken = TABLES["records"], 0

    def told() -> Iterator[Line]:
        nonlocal taken
        for line in lines_of(table, [Source.of(run_dir)], Counter()):
            taken += 1
            yield line

    for number, group in enumerate(parquet.groups(table, told(), parquet.schema(table, {})), 1):
        assert (group.num_rows, taken) == (4, 4 * number)


def test_half_of_it_is_no_whole_file(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(run_dir)
    monkeypatch.setattr(parquet, "GROUP_LINES", 4)
    table, out = TABLES["records"], io.BytesIO()

    def breaks_off() -> Iterator[Line]:
        yield from islice(lines_of(table, [Source.of(run_dir)], Counter()), 10)
        raise JournalError("damaged")

    with pytest.raises(JournalError):
        parquet.write(table, breaks_off(), parquet.schema(table, {}), out)
    assert out.getvalue().startswith(b"PAR1")
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(io.BytesIO(out.getvalue()))


def test_a_run_without_records_is_a_table_without_lines(run_dir: Path) -> None:
    finished_run(run_dir)
    (run_dir / "generations.jsonl").write_bytes(b"")
    lines = (run_dir / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "journal.jsonl").write_bytes(lines[0])
    assert pq.read_table(written(run_dir)).num_rows == 0
    assert len(frames.records(run_dir)) == 0


# --- as frames ---------------------------------------------------------------------


def test_pandas_has_the_same_columns_with_types_that_keep_nulls(run_dir: Path) -> None:
    pandas = pytest.importorskip("pandas")
    nasty_run(run_dir)
    found = frames.records(run_dir)
    assert list(found.columns) == [column.name for column in TABLES["records"].columns]
    types = {name: str(found[name].dtype) for name in ("prompt_tokens", "batch_measured", "ttft_s", "method", "text")}
    assert types == {"prompt_tokens": "Int64", "batch_measured": "boolean", "ttft_s": "float64"} | {
        "method": "category",
        "text": "string",
    }
    assert str(found.committed_at.dtype) == "datetime64[us, UTC]"
    assert pandas.isna(found.setting_max_model_len).all()
    assert str(found.setting_max_model_len.dtype) == "Int64"
    assert [list(ids) for ids in found.token_ids] == [[5, 6, 7], [], [5, 6, 7]]
    assert list(found.text) == [row["text"] for row in json_rows(run_dir)]


def test_polars_has_the_same_columns_with_the_same_types(run_dir: Path) -> None:
    polars = pytest.importorskip("polars")
    nasty_run(run_dir)
    found, names = frames.records(run_dir, engine="polars"), [column.name for column in TABLES["records"].columns]
    assert found.columns == names
    assert found.schema["token_ids"] == polars.List(polars.Int64)
    assert found.schema["committed_at"] == polars.Datetime("us", "UTC")
    assert found.schema["method"] == polars.Categorical
    assert found["ttft_s"].to_list() == [row["ttft_s"] for row in json_rows(run_dir)]
    assert found["text"].to_list() == [row["text"] for row in json_rows(run_dir)]


@pytest.mark.parametrize("engine", ["pandas", "polars"])
def test_several_runs_are_one_frame(tmp_path: Path, engine: frames.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(engine)
    monkeypatch.setattr(parquet, "GROUP_LINES", 5)
    for name in ("one", "two"):
        finished_run(tmp_path / name)
    found = frames.records([tmp_path / "one", str(tmp_path / "two")], engine=engine)
    assert Counter(found["run"]) == {"one": 24, "two": 24}
    rows = frames.rows([tmp_path / "one", tmp_path / "two"], engine=engine)
    assert sorted(rows["output_tokens_per_s"]) == [8.0] * 4 + [12.0] * 4
    assert len(frames.batches(tmp_path / "one", engine=engine)) == 20
    assert {"run_started", "batch_committed"} <= set(frames.events(tmp_path / "one", engine=engine)["type"])


def test_what_is_missing_is_said_with_what_to_install(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'dask' is none \(one of pandas, polars\)"):
        frames.records(run_dir, engine="dask")  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"Parquet needs pyarrow.*pip install 'engine-airlock\[data\]'"):
        parquet.arrow()
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(InputError, match=r"pip install polars"):
        extras.needed("polars", "the frame", of="polars")
