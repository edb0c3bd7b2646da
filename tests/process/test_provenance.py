"""Where a run's figures come from is in its journal, by real git and a real environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.definition.variables import HIDDEN
from orchestrator.launcher import Launcher
from orchestrator.provenance import CodeState, Provenance
from orchestrator.run.provenance import own_code
from orchestrator.stores.checkout import state_of
from tests.process.sweeping import Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def git(folder: Path, *command: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    argv = ["git", "-C", str(folder), *identity, *command]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=environ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "deep").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("1")
    git(folder, "add", "file")
    return folder


def test_a_folder_under_git_has_a_commit(checkout: Path) -> None:
    found, why_not = state_of(checkout, Launcher())
    assert (found, why_not) == (None, "there is no commit yet")
    git(checkout, "commit", "-m", "one")
    commit = git(checkout, "rev-parse", "HEAD")
    assert state_of(checkout / "deep", Launcher()) == (CodeState(commit=commit, changed=False), "")
    (checkout / "untracked").write_text("2")
    assert state_of(checkout, Launcher()) == (CodeState(commit=commit, changed=False), "")
    (checkout / "file").write_text("2")
    assert state_of(checkout, Launcher()) == (CodeState(commit=commit, changed=True), "")


def test_a_folder_that_is_not_has_none(tmp_path: Path) -> None:
    assert state_of(tmp_path, Launcher()) == (None, "")


def test_a_damaged_checkout_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere")
    found, why_not = state_of(tmp_path, Launcher())
    assert found is None
    assert "/nowhere" in why_not


def test_without_git_it_is_said(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert state_of(checkout, Launcher()) == (None, "git is not on the PATH")


def test_a_git_that_started_us_does_not_name_the_checkout(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "commit", "-m", "one")
    here, _ = state_of(checkout, Launcher())
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert state_of(checkout, Launcher()) == (here, "")
    assert here is not None


def test_what_is_installed_inside_a_checkout_has_no_commit_of_its_own(checkout: Path) -> None:
    git(checkout, "commit", "-m", "one")
    assert own_code(checkout, Launcher(), []) is not None
    assert own_code(checkout / "deep", Launcher(), []) is None


def test_every_life_of_a_run_says_where_it_comes_from(bench: Bench) -> None:
    bench.write()
    bench.env |= {"OMP_NUM_THREADS": "2", "HF_TOKEN": "hunter2", "EDITOR": "vi"}
    done = bench.run()
    assert done.returncode == 0, done.stderr
    (found,) = [event for event in bench.events if isinstance(event, Provenance)]
    assert (found.variables["OMP_NUM_THREADS"], found.variables["HF_TOKEN"]) == ("2", HIDDEN)
    assert "EDITOR" not in found.variables
    assert "hunter2" not in (bench.run_dir / "journal.jsonl").read_text()
    assert found.packages["own"]["msgspec"]
    assert found.kernel
    assert found.memory_bytes > 0
