"""Killed, interrupted, resumed: what a later life does with what it finds. Of the end: test_coordinator_death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator import proc
from orchestrator.events import RunStarted, SurvivorsReaped
from orchestrator.journal import encode_event
from orchestrator.record.replay import frame
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def hanging_at(fifo: Fifo, tmp_path: Path, moment: str = "batch:3", do: str = "hang") -> dict[str, Any]:
    """Hangs once, telling the FIFO; a later life passes."""
    return method("second", at=moment, do=do, once=str(tmp_path / "once"), touch=fifo.path)


def unbroken_keys(bench: Bench, methods: list[Any]) -> set[tuple[str, str]]:
    other = Bench(bench.folder / "unbroken")
    other.write(methods=methods)
    assert other.run().returncode == 0
    return set(other.keys())


@pytest.mark.parametrize("do", ["hang", "hang_ignore_term", "sigstop"])
def test_sigkill_of_the_coordinator_then_resume(bench: Bench, fifo: Fifo, tmp_path: Path, do: str) -> None:
    methods = ["scripted", hanging_at(fifo, tmp_path, do=do), {"name": "third", "base": "scripted"}]
    bench.write(methods=methods)
    first = bench.start()
    fifo.line()
    left = bench.processes()
    assert len(left) == 2, "a warden and its worker"
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    committed = bench.keys()
    assert len(PROMPTS) * 2 < len(committed) < len(PROMPTS) * 6

    second = bench.run("--resume")
    assert second.returncode == 0, second.stderr
    assert set(bench.keys().values()) == {1}
    assert set(committed) < set(bench.keys())
    assert [e.life for e in bench.events if isinstance(e, RunStarted)] == [1, 2]
    bench.assert_clean()
    assert set(bench.keys()) == unbroken_keys(bench, methods)


def test_survivors_of_a_killed_life_are_found_and_named(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    """Even the wardens are gone by force: the next life finds the worker by its tag."""
    bench.write(methods=[hanging_at(fifo, tmp_path, do="hang_ignore_term")])
    first = bench.start()
    fifo.line()
    left = bench.processes()
    first.send_signal(signal.SIGSTOP)
    wardens = [ref for ref in left if any("warden" in arg for arg in proc.cmdline(ref.pid))]
    survivors = [ref for ref in left if ref not in wardens]
    for ref in survivors:  # frozen, so that its own watch over its warden can't act before we look
        os.kill(ref.pid, signal.SIGSTOP)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    second = bench.run("--resume")
    assert second.returncode == 0, second.stderr
    wait_gone(left, GONE_AFTER_KILL_S)
    assert [e for e in bench.events if isinstance(e, SurvivorsReaped)]
    assert set(bench.keys().values()) == {1}
    bench.assert_clean()


def test_a_run_in_use_is_refused(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    bench.write(methods=[hanging_at(fifo, tmp_path)])
    running = bench.start()
    fifo.line()
    other = bench.run("--resume")
    assert other.returncode == 2
    assert str(running.pid) in other.stderr
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": ["another prompt"]},
        {"sampling": {"max_new_tokens": 7}},
        {"matrix": {"batch_size": [1, 2]}},
        {"methods": ["scripted", {"name": "more", "base": "scripted"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_resume_of_a_changed_file_is_refused(bench: Bench, change: dict[str, Any]) -> None:
    bench.write()
    assert bench.run().returncode == 0
    before = (bench.run_dir / "journal.jsonl").read_bytes()
    bench.write(**change)
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert "changed" in refused.stderr or "not in the sweep" in refused.stderr
    assert (bench.run_dir / "journal.jsonl").read_bytes() == before


def test_failed_points_stay_unless_retried(bench: Bench, tmp_path: Path) -> None:
    flaky = method("flaky", at="load", do="raise", once=str(tmp_path / "once"))
    bench.write(methods=[flaky, "scripted"])
    assert bench.run().returncode == 1
    assert bench.run("--resume").returncode == 1, "a failed point is a result"
    assert bench.run("--resume", "--retry-failed").returncode == 0
    assert set(bench.keys().values()) == {1}
    assert len(bench.keys()) == 4 * len(PROMPTS)


def test_an_environment_that_changed_needs_a_flag(bench: Bench) -> None:
    bench.write()
    assert bench.run().returncode == 0
    journal = bench.run_dir / "journal.jsonl"
    started = next(e for e in bench.events if isinstance(e, RunStarted))
    digest = started.environments["own"]
    # The same run, begun in another environment: only the stored digest differs.
    changed = msgspec.structs.replace(started, environments={"own": "f" * 16})
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([frame(encode_event(changed)), *lines[1:]]))
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert digest in refused.stderr
    assert bench.run("--resume", "--accept-environment-change").returncode == 0


def test_json_of_the_plan_is_readable(bench: Bench) -> None:
    bench.write()
    bench.run()
    assert json.loads((bench.run_dir / "plan.json").read_text())["name"] == "test"


def test_a_start_that_was_cut_short_can_be_begun_again(bench: Bench) -> None:
    """Killed between making the folder and the first event: nothing ran, so nothing is lost by beginning anew."""
    bench.write()
    assert bench.run().returncode == 0
    (bench.run_dir / "journal.jsonl").unlink()
    (bench.run_dir / "generations.jsonl").unlink()
    again = bench.run()
    assert again.returncode == 0, again.stderr
    assert len(bench.keys()) == 2 * len(PROMPTS)


def test_a_folder_with_other_things_in_it_is_never_used(bench: Bench) -> None:
    bench.write()
    bench.run_dir.mkdir()
    (bench.run_dir / "thesis.tex").write_text("years of work")
    refused = bench.run()
    assert refused.returncode == 2
    assert [p.name for p in bench.run_dir.iterdir()] == ["thesis.tex"]


def test_shared_memory_of_a_killed_life_is_removed_by_the_next(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    sharing = method("sharing", at="load", do="shm", bytes=4096, once=str(tmp_path / "shared"))
    bench.write(methods=[sharing, hanging_at(fifo, tmp_path, "load")])
    first = bench.start()
    fifo.line()
    left = bench.processes()
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    assert bench.run("--resume").returncode == 0
    bench.assert_clean()


def test_a_run_begun_with_overrides_goes_on_with_them(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    bench.write(methods=[hanging_at(fifo, tmp_path)])
    first = bench.start("--set", "sampling.max_new_tokens=5", "--set", "matrix.batch_size=2,3")
    fifo.line()
    first.terminate()
    assert first.wait(PATIENCE_S) == 143
    first.communicate()
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "--set sampling.max_new_tokens=5" in resumed.stdout
    assert {r["generated_tokens"] <= 5 for r in bench.records} == {True}
    assert len(bench.keys()) == 2 * len(PROMPTS)
    other = bench.run("--resume", "--set", "sampling.max_new_tokens=6")
    assert other.returncode == 2
    assert "(--set matrix.batch_size=2,3 as well, as it was begun, or use another --run-dir)" in other.stderr
    other = bench.run("--resume", "--set", "stop_after=1h", "--set", "matrix.batch_size=[2, 3]")
    assert other.returncode == 2
    assert "(--set sampling.max_new_tokens=5 as well, as it was begun, or use another --run-dir)" in other.stderr


@pytest.mark.parametrize("flag", ["--retry-failed", "--accept-environment-change"])
def test_a_flag_of_resume_alone_is_refused(bench: Bench, flag: str) -> None:
    bench.write()
    refused = bench.run(flag)
    assert refused.returncode == 2
    assert flag in refused.stderr
    assert not bench.run_dir.exists()


@pytest.mark.parametrize("verb", [["env", "list"], ["plan"], ["sweep"]], ids=" ".join)
def test_an_unusable_home_is_one_sentence(bench: Bench, tmp_path: Path, verb: list[str]) -> None:
    (tmp_path / "file").touch()
    bench.env["AIRLOCK_HOME"] = str(tmp_path / "file" / "home")
    bench.write(model="demo", methods=["hf_sdpa"])
    arguments = [str(bench.folder / "sweep.yaml")] if verb != ["env", "list"] else []
    command = [sys.executable, "-m", "orchestrator", *verb, *arguments]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert "Traceback" not in done.stderr
    if verb == ["sweep"]:
        assert done.returncode == 2
        assert "AIRLOCK_HOME" in done.stderr


@pytest.mark.parametrize("moment", ["load", "batch:1"])
def test_a_signal_to_the_whole_job_blames_nobody(bench: Bench, fifo: Fifo, tmp_path: Path, moment: str) -> None:
    """As a batch system ends a job: the worker hears it as well, and may be gone before we are asked to stop."""
    slow = method("slow", at=moment, do="mark", touch=fifo.path, once=str(tmp_path / "once"))
    slow["engine_args"] |= {"load_s": 1.0, "token_s": 0.05}
    bench.write(methods=[slow], matrix={"batch_size": [1]}, sampling={"max_new_tokens": 10})
    running = bench.start()
    fifo.line()
    worker = next(ref for ref in bench.processes() if not any("warden" in arg for arg in proc.cmdline(ref.pid)))
    os.kill(running.pid, signal.SIGSTOP)  # so that the order is certain: first the worker, then we
    os.kill(worker.pid, signal.SIGTERM)
    os.kill(running.pid, signal.SIGTERM)
    os.kill(running.pid, signal.SIGCONT)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 143
    assert not [r for r in bench.records if r["error"]]
    assert bench.run("--resume").returncode == 0
    assert len(bench.keys()) == len(PROMPTS)
    assert set(bench.keys().values()) == {1}


def test_retry_failed_runs_prompts_with_error_records_again(bench: Bench, tmp_path: Path) -> None:
    first = {"at": "prompt:2", "do": "raise", "once": str(tmp_path / "a")}
    again = {"at": "batch:5", "do": "raise", "once": str(tmp_path / "b")}  # its second chance, after a probe
    moody = {"name": "moody", "base": "scripted", "engine_args": {"faults": [first, again]}}
    bench.write(methods=[moody], matrix={"batch_size": [1]})
    assert bench.run().returncode == 1
    assert [r["prompt_id"] for r in bench.records if r["error"]] == ["2"]
    retried = bench.run("--resume", "--retry-failed")
    assert retried.returncode == 0, retried.stdout
    assert bench.outcomes()["moody"][-1].outcome == "ok"
    command = [sys.executable, "-m", "orchestrator", "export", str(bench.run_dir)]
    lines = subprocess.run(command, env=bench.env, text=True, capture_output=True, check=True).stdout.splitlines()
    assert len(lines) == len(PROMPTS)
    assert not [line for line in map(json.loads, lines) if line["error"]]


def test_a_commit_that_is_missing_stops_the_resume(bench: Bench) -> None:
    bench.write(matrix={"batch_size": [1]})
    assert bench.run().returncode == 0
    journal = bench.run_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    commits = [number for number, line in enumerate(lines) if b'"batch_committed"' in line]
    journal.write_bytes(b"".join(line for number, line in enumerate(lines) if number != commits[2]))
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert "a commit is missing" in refused.stderr


def test_a_prompt_file_that_never_ends_is_refused_at_once(bench: Bench, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prompts.jsonl")
    bench.write(prompts="prompts.jsonl")
    refused = bench.run()
    assert refused.returncode == 2
    assert "no regular file" in refused.stderr
