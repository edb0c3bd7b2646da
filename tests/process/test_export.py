"""The command `export`: where it writes, what it leaves alone, and that no half file stands under its name."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.disks import KIB, small
from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

EXIT_INPUT, EXIT_OUTPUT = 2, 74
PROMPTS = [f"prompt {i}" for i in range(12)]
FORMATS = ("jsonl", "csv", "parquet")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("run"))
    made.write(prompts=PROMPTS)
    assert made.run().returncode == 0
    return made


def export(run_dir: Path, *args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "orchestrator", "export", str(run_dir), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, timeout=PATIENCE_S, check=False)


def needs_parquet(format: str) -> None:
    """Without importing it here: its threads stay."""
    if format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("the extra data is not installed")


def lines_in(path: Path) -> int:
    if path.suffix == ".parquet":
        program = "import sys, pyarrow.parquet as pq; print(pq.ParquetFile(sys.argv[1]).metadata.num_rows)"
        return int(subprocess.check_output([sys.executable, "-c", program, str(path)]))
    text = path.read_bytes().decode()
    return len(list(csv.DictReader(io.StringIO(text, newline="")))) if path.suffix == ".csv" else text.count("\n")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_is_what_a_pipe_gets_and_replaces_an_earlier_export(bench: Bench, tmp_path: Path, format: str) -> None:
    needs_parquet(format)
    path, after = tmp_path / f"out.{format}", tmp_path / "piped"
    for what in ("rows", "records"):
        done = export(bench.run_dir, "--what", what, "--output", path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert lines_in(path) == 2 * len(PROMPTS)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    piped = export(bench.run_dir, "--format", format)
    after.write_bytes(piped.stdout)
    assert (piped.returncode, after.read_bytes() == path.read_bytes()) == (0, True)


def umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_breaks_off_leaves_what_was_there(bench: Bench, tmp_path: Path, format: str) -> None:
    needs_parquet(format)
    copy, path = tmp_path / "run", tmp_path / f"out.{format}"
    assert export(bench.run_dir, "--output", path).returncode == 0
    before = path.read_bytes()
    shutil.copytree(bench.run_dir, copy)
    lines = (copy / "prompts.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "prompts.jsonl").write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"token_ids":[', b'"token_ids":"')]))
    done = export(copy, "--output", path)
    assert (done.returncode, b"prompts.jsonl: the line at byte" in done.stderr) == (EXIT_INPUT, True)
    assert (path.read_bytes() == before, sorted(os.listdir(tmp_path))) == (True, [path.name, "run"])
    if format == "parquet":
        piped = export(copy, "--format", format)
        assert (piped.returncode, piped.stdout) == (EXIT_INPUT, b"PAR1"), "its beginning alone"


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_one_error_and_no_file(bench: Bench, tmp_path: Path, format: str) -> None:
    needs_parquet(format)
    with small(tmp_path / "disk", 8 * KIB) as disk:
        done = export(bench.run_dir, "--output", disk / f"out.{format}")
        assert (done.returncode, list(disk.iterdir())) == (EXIT_OUTPUT, [])
    (told,) = done.stderr.decode().splitlines()
    assert told.startswith(f"airlock: {disk}/out.{format}: No space left on device; its file system has ")
    assert told.endswith(": the disk is full")


@pytest.mark.parametrize("text", ["chapter,words\n", '{"run":"mine","loss":0.1}\n', '"run","loss"\r\n'])
def test_what_is_no_export_is_left_alone_unless_forced(bench: Bench, tmp_path: Path, text: str) -> None:
    thesis = tmp_path / "thesis.csv"
    thesis.write_bytes(text.encode())
    done = export(bench.run_dir, "--output", thesis)
    assert (done.returncode, thesis.read_bytes()) == (EXIT_INPUT, text.encode())
    assert b"thesis.csv: is there, and was not made by `export` (choose another name, or --force)" in done.stderr
    assert export(bench.run_dir, "--output", thesis, "--force").returncode == 0
    assert lines_in(thesis) == 2 * len(PROMPTS)


@pytest.mark.parametrize("name", ["generations.jsonl", "journal.jsonl", "plan.json", "prompts.jsonl"])
def test_a_part_of_a_run_is_never_replaced(bench: Bench, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(bench.run_dir, copy)
    (tmp_path / "link.jsonl").symlink_to(copy / name)
    for path in (copy / name, tmp_path / "link.jsonl"):
        done = export(copy, "--output", path, "--force")
        assert (done.returncode, b"is part of a run" in done.stderr) == (EXIT_INPUT, True)
    assert (copy / name).read_bytes() == (bench.run_dir / name).read_bytes()


def test_an_empty_file_is_nothing_to_lose(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "out.csv").touch()
    assert export(bench.run_dir, "--output", tmp_path / "out.csv").returncode == 0


def test_everything_wrong_with_the_request_is_said_at_once(bench: Bench, tmp_path: Path) -> None:
    done = export(
        bench.run_dir, "--output", tmp_path / "no" / "x.jsonl", "--spreadsheet", "--project", "p", "--offline"
    )
    told = done.stderr.decode()
    assert (done.returncode, done.stdout) == (EXIT_INPUT, b"")
    for sentence in (
        "4 problems in the input",
        f"there is no folder {tmp_path / 'no'} (make it first)",
        "--spreadsheet: means something only with --format csv",
        "--project: means something only with --to",
        "--offline: means something only with --to",
    ):
        assert sentence in told


def test_a_device_or_folder_is_no_place(bench: Bench, tmp_path: Path) -> None:
    for path in (Path("/dev/null"), tmp_path):
        done = export(bench.run_dir, "--output", path, "--force")
        assert (done.returncode, b"is there, and is no regular file" in done.stderr) == (EXIT_INPUT, True)


def test_parquet_is_nothing_for_a_terminal(bench: Bench) -> None:
    needs_parquet("parquet")
    master, terminal = os.openpty()
    command = [sys.executable, "-m", "orchestrator", "export", str(bench.run_dir), "--format", "parquet"]
    done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    os.close(master)
    os.close(terminal)
    assert (done.returncode, b"is nothing for a terminal (--output FILE, or a pipe)" in done.stderr) == (
        EXIT_INPUT,
        True,
    )


def test_several_runs_are_one_table(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(bench.run_dir, tmp_path / "later")
    done = export(bench.run_dir, tmp_path / "later", "--what", "rows")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["run"] for row in found] == ["run", "run", "later", "later"]
    assert len({row["run_id"] for row in found}) == 1, "a copy is the same run"


def test_outputs_are_judged_by_another_section(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    prompts = [{"prompt": "a", "expected": "no such answer"}, {"prompt": "b"}]
    bench.write(prompts=prompts, matrix={"batch_size": [2]})
    assert bench.run().returncode == 0
    (tmp_path / "answers.yaml").write_text("answers: {judge: exact}\n")
    plain, judged = (export(bench.run_dir, *args) for args in ((), ("--answers", tmp_path / "answers.yaml")))
    told = [[json.loads(line)["correct"] for line in done.stdout.splitlines()] for done in (plain, judged)]
    assert told == [[None, None], [False, None]], judged.stderr


def test_formulas_are_counted_and_guarded_on_demand(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(prompts=[{"id": "=1+1", "prompt": "a"}, {"id": "b", "prompt": "b"}], matrix={"batch_size": [2]})
    assert bench.run().returncode == 0
    plain, guarded = export(bench.run_dir, "--format", "csv"), export(bench.run_dir, "--format", "csv", "--spreadsheet")
    assert plain.stderr.decode() == "note: 1 text of it would be a formula to a spreadsheet: --spreadsheet for those\n"
    rows = [list(csv.DictReader(io.StringIO(done.stdout.decode("utf-8-sig")))) for done in (plain, guarded)]
    assert [[row["prompt_id"] for row in one] for one in rows] == [["=1+1", "b"], ["'=1+1", "b"]]
    assert guarded.stderr == b""
