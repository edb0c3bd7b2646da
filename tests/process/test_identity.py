"""What a method names and its environment holds, changed between a start and its --resume: never two in one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.envs import EnvStore
from orchestrator.events import Event
from orchestrator.journal import encode_event
from orchestrator.launcher import Launcher
from orchestrator.provenance import Provenance
from orchestrator.record.framing import frame
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.methodfiles import files_in
from tests.process.sweeping import NO_SECOND_TRY, Bench, method
from tests.process.test_compare import compare

pytestmark = pytest.mark.usefixtures("nothing_leaked")

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny_worker.py"


@pytest.fixture
def worker(bench: Bench) -> Path:
    """A copy, and a sweep that runs it beside the scripted engine."""
    copy = bench.folder / "worker.py"
    copy.write_bytes(TINY.read_bytes())
    tiny = {"name": "tiny", "base": "scripted", "worker": [sys.executable, str(copy)]}
    bench.write(methods=[tiny, "scripted"], sampling={"max_new_tokens": 4})
    return copy


def edit(program: Path) -> None:
    program.write_text(program.read_text() + "# changed\n")


def provenances(bench: Bench) -> list[Provenance]:
    return [event for event in bench.events if isinstance(event, Provenance)]


def test_a_worker_program_that_changed_needs_a_flag(bench: Bench, worker: Path) -> None:
    assert bench.run().returncode == 0
    edit(worker)
    journal = (bench.run_dir / "journal.jsonl").read_bytes()
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert f"{worker} of tiny is not what this run began with" in refused.stderr
    assert "--accept-environment-change" in refused.stderr
    assert (bench.run_dir / "journal.jsonl").read_bytes() == journal
    accepted = bench.run("--resume", "--accept-environment-change")
    assert accepted.returncode == 0, accepted.stderr
    digests = [one.files["tiny"][str(worker)] for one in provenances(bench)]
    assert len(set(digests)) == 2, "each start says which it was"
    bench.assert_clean()


def test_one_that_is_the_same_goes_on(bench: Bench, worker: Path) -> None:
    assert bench.run().returncode == 0
    worker.touch()
    assert bench.run("--resume").returncode == 0
    assert [set(one.files) for one in provenances(bench)] == [{"tiny"}] * 2


def test_a_variable_of_the_caller_that_decides_how_engines_work_needs_a_flag(bench: Bench) -> None:
    once = str(bench.folder / "once")
    bench.write(methods=[method("dies", at="batch:2", do="exit1", once=once)], policies=NO_SECOND_TRY)
    bench.env |= {"OMP_NUM_THREADS": "2", "VLLM_OF_ANOTHER_ENGINE": "1"}
    assert bench.run().returncode == 1
    bench.env |= {"OMP_NUM_THREADS": "1", "VLLM_OF_ANOTHER_ENGINE": "2"}
    assert bench.run("--resume").returncode == 1, "nothing is left to be measured"
    refused = bench.run("--resume", "--retry-failed")
    assert refused.returncode == 2
    assert "the variable OMP_NUM_THREADS is not what this run began with (2 then, 1 now)" in refused.stderr
    assert "VLLM" not in refused.stderr
    accepted = bench.run("--resume", "--retry-failed", "--accept-environment-change")
    assert accepted.returncode == 0, accepted.stderr
    bench.assert_clean()


def test_a_file_that_a_variable_names_is_known_by_its_content(bench: Bench) -> None:
    settings = bench.folder / "settings.json"
    settings.write_text("{}")
    bench.write(methods=[{"name": "set", "base": "scripted", "env_vars": {"MY_SETTINGS": str(settings)}}])
    assert bench.run().returncode == 0
    settings.write_text("[]")
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert f"{settings} of set is not what this run began with" in refused.stderr


def test_a_file_that_an_engine_writes_stops_nothing(bench: Bench, tmp_path: Path) -> None:
    """It was not there when the run began."""
    bench.write(methods=[method("flaky", at="load", do="raise", once=str(tmp_path / "marker"))])
    assert bench.run().returncode == 1
    assert bench.run("--resume", "--retry-failed").returncode == 0


def test_a_run_of_an_earlier_airlock_goes_on(bench: Bench, worker: Path) -> None:
    """Which did not write down what methods name: whether it changed is not known, and nothing says that it did."""
    assert bench.run().returncode == 0
    journal = bench.run_dir / "journal.jsonl"
    journal.write_bytes(b"".join(frame(encode_event(event)) for event in _without_files(bench.events)))
    edit(worker)
    done = bench.run("--resume")
    assert done.returncode == 0, done.stderr


def _without_files(events: list[Event]) -> Iterator[Event]:
    for event in events:
        yield msgspec.structs.replace(event, files={}) if isinstance(event, Provenance) else event


def installed(site: Path, name: str, **files: str) -> None:
    """As an installer leaves it, in a folder on an interpreter's path."""
    told = site / f"{name.replace('-', '_')}-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (told / file.replace("__", ".")).write_text(text)


def test_an_environment_knows_the_code_that_may_be_edited_in_it(tmp_path: Path) -> None:
    """Under a version that stays the same. What an engine loads into itself unasked is known as well."""
    checkout, site = tmp_path / "check out", tmp_path / "site"
    checkout.mkdir()
    (checkout / "engine.py").write_text("a = 1\n")
    origin = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    installed(site, "my-engine", direct_url__json=json.dumps(origin))
    installed(site, "my-copy", direct_url__json=json.dumps({"url": checkout.as_uri(), "dir_info": {}}))
    installed(site, "my-plugin", entry_points__txt="[vllm.general_plugins]\nmine = mine:register\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with closing(EnvStore(tmp_path / "home", Launcher(), lambda _: None, kind="cpu")) as store:
        env = store.add("mine", "scripted", str(python))
        assert env.editable["my-engine"] == str(checkout)
        assert "my-copy" not in env.editable
        before = files_in(env)
        assert before["my-plugin"] == "1.0"
        (checkout / "engine.py").write_text("a = 2\n")
        now = store.ensure(["mine"])["mine"]
        assert isinstance(now, EngineEnv)
        assert now.fingerprint == env.fingerprint, "which does not tell"
        assert files_in(now)[str(checkout)] != before[str(checkout)]


def recorded(code: str) -> str:
    """What an installer writes down: scripts and caches are not of the code."""
    return f"../../../bin/x,sha256=a{code},1\n__pycache__/x.pyc,,\nx.py,sha256={code},7\nx-1.0.dist-info/RECORD,,\n"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            {"vcs_info": {"vcs": "git", "commit_id": "a" * 40, "requested_revision": "main"}},
            {"vcs_info": {"vcs": "git", "commit_id": "b" * 40, "requested_revision": "main"}},
            "1.0+git.aaaaaaaaaaaa → 1.0+git.bbbbbbbbbbbb",
        ),
        ({"dir_info": {}}, {"dir_info": {}}, "1.0+copy."),
        ({"archive_info": {}}, {"archive_info": {}}, "1.0+copy."),
    ],
    ids=["commit", "folder", "archive"],
)
def test_an_environment_knows_what_is_no_release(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    """Main of today and of last week have the same version, and so have two builds of one checkout."""
    site = tmp_path / "site"
    files = {"direct_url__json": json.dumps({"url": "https://x.org/", **before}), "RECORD": recorded("1")}
    installed(site, "transformers", **files)
    installed(site, "torch", RECORD=recorded("1"))
    installed(site, "half", METADATA="Metadata-Version: 2.1\nName: half\n")
    installed(site, "odd", direct_url__json="[]")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    said: list[str] = []
    with closing(EnvStore(tmp_path / "home", Launcher(), said.append, kind="cpu")) as store:
        env = store.add("mine", "scripted", str(python))
        assert env.installed["torch"] == "1.0", "a release is known by its version"
        (site / "transformers-1.0.dist-info" / "RECORD").write_text(recorded("1").replace("=a1", "=b1"))
        same = store.ensure(["mine"])["mine"]
        assert isinstance(same, EngineEnv)
        assert same.fingerprint == env.fingerprint
        files = {"direct_url.json": json.dumps({"url": "https://x.org/", **after}), "RECORD": recorded("2")}
        for name, text in files.items():
            (site / "transformers-1.0.dist-info" / name).write_text(text)
        now = store.ensure(["mine"])["mine"]
        assert isinstance(now, EngineEnv)
        assert now.fingerprint.digest != env.fingerprint.digest
        assert any(f"transformers {told}" in line for line in said)


def test_compare_names_the_program_that_differs(tmp_path: Path, bench: Bench, worker: Path) -> None:
    assert bench.run().returncode == 0
    before: Any = bench.run_dir.rename(tmp_path / "before")
    edit(worker)
    assert bench.run().returncode == 0
    assert f"files.tiny.{worker}" in compare(before, bench.run_dir)
