"""prompts.jsonl of a run: what it lost, and what the sweep file says otherwise by now."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

COUNT = 8
GIVEN = [{"id": f"q{n}", "prompt": f"say {n}", "expected": "x" if n % 2 else ["y", 1.0]} for n in range(COUNT)]


def write(bench: Bench, given: list[dict[str, Any]] = GIVEN) -> None:
    bench.write(prompts=given, answers={"judge": "contains"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("whole") / "b")
    write(bench)
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    return bench


@pytest.fixture
def copy(whole: Bench, tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "b")
    shutil.copytree(whole.run_dir, bench.run_dir)
    write(bench)
    return bench


def lines_of(bench: Bench) -> list[bytes]:
    return (bench.run_dir / "prompts.jsonl").read_bytes().splitlines(keepends=True)


Damage = Callable[[list[bytes]], list[bytes]]
LOST: dict[str, tuple[Damage, str]] = {
    "the end": (lambda lines: lines[:5], "lacks 3 of the 8 prompts of the plan, first q5"),
    "one": (lambda lines: [*lines[:3], *lines[4:]], "lacks 1 of the 8 prompts of the plan, first q3"),
    "all": (lambda _lines: [], "lacks 8 of the 8 prompts of the plan, first q0"),
    "those of another run": (
        lambda lines: [line.replace(b'"id":"q', b'"id":"z') for line in lines],
        "lacks 8 of the 8 prompts of the plan, first q0",
    ),
}
VERBS = {
    "report": ("report", "RUN"),
    "page": ("report", "RUN", "--html"),
    "export": ("export", "RUN", "--format", "jsonl"),
    "compare": ("compare", "RUN", "RUN"),
    "answers by other rules": ("report", "RUN", "--answers", "sweep.yaml"),
}


def ask(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", *(str(bench.run_dir) if one == "RUN" else one for one in args)]
    return subprocess.run(
        command, env=bench.env, cwd=bench.folder, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("verb", VERBS)
def test_figures_over_a_part_of_the_prompts_are_refused(copy: Bench, verb: str) -> None:
    damage, told = LOST["the end"]
    (copy.run_dir / "prompts.jsonl").write_bytes(b"".join(damage(lines_of(copy))))
    done = ask(copy, *VERBS[verb])
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{copy.run_dir}/prompts.jsonl: {told}: put it back from a copy, or let sweep --resume" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", LOST)
def test_a_resume_writes_lost_prompts_again(copy: Bench, what: str) -> None:
    damage, told = LOST[what]
    before = lines_of(copy)
    (copy.run_dir / "prompts.jsonl").write_bytes(b"".join(damage(before)))
    again = copy.run("--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{told}: written again, with `expected` as the sweep file has it now\n" in again.stdout
    assert lines_of(copy) == before
    assert ask(copy, "report", "RUN").returncode == 0


def test_a_missing_and_a_damaged_file_are_written_again_too(copy: Bench) -> None:
    before = lines_of(copy)
    (copy.run_dir / "prompts.jsonl").unlink()
    assert copy.run("--resume").returncode == 0
    assert lines_of(copy) == before
    (copy.run_dir / "prompts.jsonl").write_bytes(b"".join(before)[:-40])
    assert "lacks 1 of the 8 prompts of the plan, first q7" in copy.run("--resume").stdout
    assert lines_of(copy) == before


def with_expected(value: Any, *which: int) -> list[dict[str, Any]]:
    return [{**one, "expected": value} if n in which else one for n, one in enumerate(GIVEN)]


@pytest.mark.parametrize(("which", "told"), [((3,), "1 prompt (first q3)"), (range(1, COUNT), "7 prompts (first q1)")])
@pytest.mark.parametrize("value", ["q", None, ["x", "q"]])
def test_expected_answers_that_changed_are_told_and_not_taken_up(
    copy: Bench, which: tuple[int, ...], told: str, value: Any
) -> None:
    before, accuracy = lines_of(copy), ask(copy, "report", "RUN", "--json").stdout
    write(copy, with_expected(value, *which))
    again = copy.run("--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert (
        f"`expected` of {told} is not what this run began with, but its results are read with what prompts.jsonl says\n"
        in again.stdout
    )
    assert lines_of(copy) == before
    rows = [json.loads(one)["rows"] for one in (accuracy, ask(copy, "report", "RUN", "--json").stdout)]
    assert rows[0] == rows[1]


def test_where_nothing_changed_nothing_is_said(copy: Bench) -> None:
    again = copy.run("--resume")
    assert again.returncode == 0
    assert "expected" not in again.stdout
    assert "prompts.jsonl" not in again.stdout


def test_lost_prompts_are_not_written_again_with_other_answers(copy: Bench) -> None:
    (copy.run_dir / "prompts.jsonl").write_bytes(b"".join(lines_of(copy)[:5]))
    left = lines_of(copy)
    write(copy, with_expected("q", 2, 6))
    again = copy.run("--resume")
    assert again.returncode == 2, again.stdout + again.stderr
    assert "lacks 3 of the 8 prompts of the plan, first q5, and `expected` of 1 prompt (first q2)" in again.stderr
    assert "can't be written again: put it back from a copy" in again.stderr
    assert lines_of(copy) == left
