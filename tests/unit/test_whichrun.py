"""What was meant by the name of a run that is none, and by a word that is no command."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import run
from orchestrator.exits import EXIT_INPUT, EXIT_OK
from tests.unit.rundirs import finished_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("place")
    finished_run(found / "runs" / "mine")
    return found


@pytest.mark.parametrize("verb", [["status"], ["watch", "--once"], ["report"], ["agree"], ["export"]])
@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("runs/mien", "there is no such run directory (did you mean runs/mine?)"),
        ("mine", "there is no such run directory (did you mean runs/mine?)"),
        ("zzz", "there is no such run directory (runs: runs/mine)"),
        ("runs", "is a folder of runs, not a run (name one: runs/mine)"),
    ],
)
def test_a_run_that_is_none(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: list[str],
    named: str,
    said: str,
) -> None:
    monkeypatch.chdir(place)
    assert run([*verb, named]) == EXIT_INPUT
    assert f"{named}: {said}" in capsys.readouterr().err


def test_all_runs_that_are_none_are_told_at_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", str(place / "no"), str(place / "neither")]) == EXIT_INPUT
    assert "2 problems in the input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reprot", "x"], "did you mean report?"),
        (["env", "lst"], "did you mean list?"),
        (["compare", "--fail-on-regression", "runs/a", "runs/b"], "the threshold comes right behind the option"),
        (["methods", "tiny"], "methods of your own stand in the sweep file"),
    ],
)
def test_a_word_that_means_nothing(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(words) == EXIT_INPUT
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--output", "records.xlsx"], "no format is called xlsx"),
        (["--output", "a.parquet", "--format", "csv"], "would hold csv, by --format"),
    ],
)
def test_an_export_is_what_its_name_says(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(place)
    assert run(["export", "runs/mine", *options]) == EXIT_INPUT
    assert said in capsys.readouterr().err
    assert [one.name for one in place.iterdir()] == ["runs"]
    assert run(["export", "runs/mine", "--output", "runs/records.txt", "--format", "jsonl"]) == EXIT_OK
