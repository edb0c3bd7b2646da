"""Prompts in Parquet files and in folders that `datasets` saved, and sweeps whose prompts are chosen or made."""

from __future__ import annotations

import datetime
import decimal
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from orchestrator.errors import InputError
from orchestrator.stores.prompts import Gathered, read
from tests.process.sweeping import PATIENCE_S, Bench
from tests.unit.pictures import RED
from tests.unit.promptfiles import source_of

pytestmark = pytest.mark.usefixtures("nothing_leaked", "own_home")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path / "home"))


def found(folder: Path, name: str, **options: Any) -> Gathered:
    return read(source_of(file=name, **options), folder)


def refused(folder: Path, name: str, **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        found(folder, name, **options)
    return [str(one).replace(f"{folder}/", "") for one in caught.value.problems]


TABLE = pa.table(
    {
        "question": ["Why?", "How?", "Who?"],
        "answer": ["#### 1", "#### 2", "#### 3"],
        "meta": [{"id": "a", "tags": ["x", "y"]}, {"id": "b", "tags": []}, {"id": "c", "tags": None}],
        "day": [datetime.date(2024, 1, 2)] * 3,
        "price": [decimal.Decimal("1.50")] * 3,
    }
)


def test_a_parquet_file_is_read_row_by_row(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "t.parquet", row_group_size=2)
    got = found(tmp_path, "t.parquet", columns={"prompt": "question", "id": "meta.id", "expected": "meta.tags"})
    assert [(one.id, one.text, one.where) for one in got.prompts] == [
        ("a", "Why?", "t.parquet row 1"),
        ("b", "How?", "t.parquet row 2"),
        ("c", "Who?", "t.parquet row 3"),
    ]
    meta = {"id": "a", "tags": ["x", "y"]}
    fields = {"answer": "#### 1", "meta": meta, "day": "2024-01-02", "price": "1.50", "expected": ["x", "y"]}
    assert got.prompts[0].fields == fields
    assert got.tally.notes() == ("prompts: columns.expected finds nothing (2 of 3)",)
    assert found(tmp_path, "t.parquet", format="gsm8k").prompts[2].fields["expected"] == 3


def test_what_is_wrong_with_a_row_has_its_number(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"prompt": ["a", None, "", "d"], "n": [1.0, 2.0, 3.0, float("nan")]}), tmp_path / "t.parquet"
    )
    assert refused(tmp_path, "t.parquet") == [
        "t.parquet row 2: prompt: is null, not text",
        "t.parquet row 3: prompt: is empty",
        "t.parquet row 4: is not valid JSON: NaN is not a JSON value",
    ]
    assert [one.id for one in found(tmp_path, "t.parquet", unusable="leave_out").prompts] == ["0"]


def test_images_in_a_table_are_those_of_its_prompts(tmp_path: Path) -> None:
    image = [{"bytes": RED, "path": "red.png"}]
    parquet.write_table(pa.table({"prompt": ["what?"], "image": image}), tmp_path / "t.parquet")
    (one,) = found(tmp_path, "t.parquet", columns={"images": "image"}).prompts
    assert one.images == (RED,)
    parquet.write_table(pa.table({"prompt": ["what?"], "images": [[RED, RED]]}), tmp_path / "u.parquet")
    assert found(tmp_path, "u.parquet").prompts[0].images == (RED, RED)


def test_texts_that_their_writer_called_bytes_are_texts_and_other_bytes_no_prompt(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"prompt": [b"a", "h\u00e9".encode(), b"\xff\xd8", b"\0"]}), tmp_path / "t.parquet")
    assert refused(tmp_path, "t.parquet") == [
        "t.parquet row 3: prompt: is binary data, not text",
        "t.parquet row 4: prompt: is binary data, not text",
    ]
    assert [one.text for one in found(tmp_path, "t.parquet", unusable="leave_out").prompts] == ["a", "h\u00e9"]


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    parquet.write_table(table, tmp_path / "t.parquet")
    (line,) = refused(tmp_path, "t.parquet")
    assert "it has several columns of the name 'prompt'" in line


def saved(folder: Path, table: pa.Table, files: int = 1, packed: bool = False) -> None:
    """As `save_to_disk` writes a dataset: streams of Arrow and what they are called."""
    folder.mkdir(parents=True)
    rows = -(-table.num_rows // files)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    for n, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file:
            part = table.slice(n * rows, rows)
            with (pa.ipc.new_file if packed else pa.ipc.new_stream)(file, part.schema) as writer:
                writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


@pytest.mark.parametrize("packed", [False, True])
def test_a_saved_dataset_is_read_in_the_order_of_its_files(tmp_path: Path, packed: bool) -> None:
    saved(tmp_path / "ds", TABLE, files=2, packed=packed)
    got = found(tmp_path, "ds", format="gsm8k")
    assert [(one.text, one.where) for one in got.prompts] == [
        ("Why?", "ds row 1"),
        ("How?", "ds row 2"),
        ("Who?", "ds row 3"),
    ]
    one = found(tmp_path, "ds/data-00001-of-00002.arrow", columns={"prompt": "question"})
    assert [one.text for one in one.prompts] == ["Who?"]


def test_of_several_splits_one_is_named(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        saved(tmp_path / "ds" / split, TABLE.slice(0, count))
    (tmp_path / "ds" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    asked = {"columns": {"prompt": "question"}}
    assert len(found(tmp_path, "ds", split="test", **asked).prompts) == 1
    told = "s.yaml:4: prompts.split: the dataset has the splits train, test:"
    assert refused(tmp_path, "ds", **asked) == [f"{told} which of them? (write split: train)"]
    assert refused(tmp_path, "ds", split="tets", **asked) == [f"{told} there is no tets (did you mean test?)"]
    (tmp_path / "ds" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert len(found(tmp_path, "ds", **asked).prompts) == 1
    assert refused(tmp_path, "ds/train", split="test") == [
        "s.yaml:4: prompts.split: is test, and the dataset has no splits"
    ]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "it is a folder without state.json, and no dataset that save_to_disk wrote"),
        ("{", "state.json is not valid JSON"),
        ("[]", "state.json has no list _data_files"),
        ('{"_data_files": [{"filename": "../secret.arrow"}]}', "state.json names files that are not in its folder"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "gone.arrow is a part of it: No such file or directory"),
        ('{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}', "its rows are chosen by indices"),
    ],
)
def test_folders_that_are_no_dataset(tmp_path: Path, state: str | None, says: str) -> None:
    (tmp_path / "ds").mkdir()
    if state is not None:
        (tmp_path / "ds" / "state.json").write_text(state)
    (line,) = refused(tmp_path, "ds")
    assert line.startswith("s.yaml:4: prompts.file: ds, that is ds, can't be read: ")
    assert says in line
    assert "name a file in it" not in line


def test_a_folder_of_files_says_which_to_name(tmp_path: Path) -> None:
    (tmp_path / "hub" / "main").mkdir(parents=True)
    parquet.write_table(TABLE, tmp_path / "hub" / "main" / "test-0.parquet")
    (line,) = refused(tmp_path, "hub")
    assert line.endswith("(name a file in it: main/test-0.parquet)")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1", b"ARROW1" + b"\0" * 50, b"text\n"])
def test_tables_that_are_damaged_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(data)
    (line,) = refused(tmp_path, "t.parquet")
    assert line.startswith("s.yaml:4: prompts.file: t.parquet, that is t.parquet, can't be read: ")


def test_without_pyarrow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(TABLE, tmp_path / "t.parquet")
    (tmp_path / "hides" / "pyarrow").mkdir(parents=True)
    (tmp_path / "hides" / "pyarrow" / "__init__.py").write_text("raise ImportError('No module named pyarrow')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "hides"))
    (line,) = refused(tmp_path, "t.parquet")
    assert "pip install 'engine-airlock[data]'" in line


def test_the_coordinator_never_imports_pyarrow(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"prompt": ["a"]}), tmp_path / "t.parquet")
    script = (
        "import sys, pathlib; from orchestrator.stores.prompts import read; "
        "from orchestrator.definition.promptuse import PromptSource; "
        f"print(len(read(PromptSource('t.parquet', None), pathlib.Path({str(tmp_path)!r})).prompts), "
        "'pyarrow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == "1 False\n"


# --- whole sweeps -------------------------------------------------------------------


def test_a_sweep_says_which_prompts_it_took(bench: Bench) -> None:
    lines = [json.dumps({"question": f"What is {n}?", "answer": f"#### {n}"}) + "\n" for n in range(20)]
    (bench.folder / "test.jsonl").write_text("".join(lines))
    options = {"file": "test.jsonl", "filter": {"max_prompt_tokens": 12}, "sample": {"count": 4, "seed": 3}}
    bench.write(prompts=options)
    done = bench.run()
    assert done.returncode == 0, done.stderr
    plan = json.loads((bench.run_dir / "plan.json").read_text())
    assert "prompts: read as gsm8k, by the fields of the first record" in plan["notes"]
    assert any(note.startswith("prompts: 20 read; ") and "drawn with seed 3" in note for note in plan["notes"])
    assert len(plan["prompt_ids"]) == 4
    # The same prompts, asked for in another way, are the same run.
    bench.write(prompts={**options, "filter": {"max_chars": 12}, "format": "gsm8k"})
    again = bench.run("--resume")
    assert again.returncode == 0, again.stderr
    bench.write(prompts={**options, "sample": {"count": 4, "seed": 4}})
    other = bench.run("--resume")
    assert other.returncode == 2
    assert "prompts changed since this run began" in other.stderr


def test_random_prompts_reach_the_engine_as_they_were_drawn(bench: Bench) -> None:
    bench.write(prompts={"random": {"count": 5, "input_tokens": {"uniform": [3, 30]}, "seed": 1}})
    done = bench.run()
    assert done.returncode == 0, done.stderr
    plan = json.loads((bench.run_dir / "plan.json").read_text())
    assert plan["notes"][0].startswith("prompts: 5 random ones, seed 1, of ")
    prompts = [json.loads(line) for line in (bench.run_dir / "prompts.jsonl").read_text().splitlines()]
    assert [len(one["token_ids"]) for one in prompts] == [one["source"]["random_tokens"] for one in prompts]
    records = [json.loads(line) for line in (bench.run_dir / "generations.jsonl").read_text().splitlines()]
    sent = {record["prompt_id"]: record["prompt_tokens"] for record in records}
    assert sent == {one["id"]: len(one["token_ids"]) for one in prompts}
