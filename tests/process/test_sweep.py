"""Whole sweeps on the scripted engine: results, failures of one method, poison prompts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import BatchCommitted, BatchLost, Probed, RunEnded, Waited, WarmupDone, WorkerLaunched
from orchestrator.view.phrases import cause_text
from tests.process.launching import Fifo
from tests.process.sweeping import NO_SECOND_TRY, PATIENCE_S, PROMPTS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def test_a_clean_run(bench: Bench) -> None:
    bench.write(methods=["scripted", {"name": "salted", "base": "scripted", "engine_args": {"salt": "x"}}], warmup=1)
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert len(bench.keys()) == 2 * 2 * len(PROMPTS)
    assert set(bench.keys().values()) == {1}
    assert len([e for e in bench.events if isinstance(e, WorkerLaunched)]) == 2, "points of one load share a worker"
    assert len([e for e in bench.events if isinstance(e, WarmupDone)]) == 4
    assert {r["prompt_digest"] for r in bench.records if r["method"] == "scripted"} == {
        r["prompt_digest"] for r in bench.records if r["method"] == "salted"
    }
    assert all(r["generated_tokens"] == len(r["token_ids"]) for r in bench.records)
    bench.assert_clean()


def test_output_does_not_depend_on_the_batch_size(bench: Bench) -> None:
    bench.write()
    assert bench.run().returncode == 0
    texts: dict[str, set[str]] = {}
    for record in bench.records:
        texts.setdefault(record["prompt_id"], set()).add(record["text"])
    assert all(len(found) == 1 for found in texts.values())


FATES: list[tuple[dict[str, Any], str, str]] = [
    ({"at": "import", "do": "raise", "early": True}, "environment", "importing"),
    ({"at": "import", "do": "exit0", "early": True}, "engine_crash", "launching importing"),
    ({"at": "import", "do": "hang", "early": True}, "hang", "importing"),
    ({"at": "hello", "do": "wrong_protocol", "early": True}, "protocol", "launching"),
    ({"at": "load", "do": "raise"}, "engine_error", "loading"),
    ({"at": "load", "do": "memory_error"}, "oom", "loading"),
    ({"at": "load", "do": "segv"}, "engine_crash", "loading"),
    ({"at": "load", "do": "hang_ignore_term"}, "hang", "loading"),
    ({"at": "batch:2", "do": "exit0"}, "engine_crash", "busy"),
    ({"at": "batch:2", "do": "sigkill"}, "engine_crash", "busy"),
    ({"at": "batch:2", "do": "raise_fatal"}, "engine_crash", "busy"),
    ({"at": "batch:2", "do": "hang_ignore_term"}, "hang", "busy"),
    ({"at": "batch:2", "do": "sigstop"}, "hang", "busy"),
    ({"at": "batch:2", "do": "garbage"}, "protocol", "busy"),
    ({"at": "batch:2", "do": "out_of_turn"}, "protocol", "busy"),
]


@pytest.mark.parametrize(
    ("fault", "cls", "phase"),
    FATES,
    ids=lambda v: "-".join(v.values()) if isinstance(v, dict) and "early" not in v else str(v),
)
def test_a_failing_method_never_ends_the_sweep(bench: Bench, fault: dict[str, Any], cls: str, phase: str) -> None:
    """Wherever and however it dies: its cause is named, the others finish, nothing is left, exit 1."""
    limits = {
        "import_s": 1.5,
        "load_s": 1.5,
        "batch_s": 1.5,
        "launch_s": 20,
        "terminate_s": 0.3,
        "drain_s": 2,
    }
    methods = [method("faulty", **fault), "scripted"]
    bench.write(methods=methods, matrix={"batch_size": [4]}, limits=limits, policies=NO_SECOND_TRY)
    done = bench.run()
    assert done.returncode == 1, done.stderr
    (faulty,) = bench.outcomes()["faulty"]
    assert faulty.outcome == "failed"
    assert faulty.cause is not None
    assert faulty.cause.cls == cls
    assert faulty.cause.phase in phase.split(), "a Hello may go down with its process"
    (healthy,) = bench.outcomes()["scripted"]
    assert healthy.outcome == "ok"
    as_it_happened, at_the_end = done.stdout.split("ended with exit code 1", 1)
    said = cause_text(faulty.cause)
    assert (as_it_happened.count(said), at_the_end.count(said)) == (1, 1), "in full once each, and nothing is lost"
    bench.assert_clean()


@pytest.mark.parametrize(("do", "cls"), [("segv", "engine_crash"), ("hang", "hang"), ("garbage", "protocol")])
def test_a_load_that_dies_is_tried_again_and_once_only(bench: Bench, tmp_path: Path, do: str, cls: str) -> None:
    once = method("shaky", at="load", do=do, once=str(tmp_path / "fired"))
    methods = [once, method("hopeless", at="load", do=do)]
    bench.write(methods=methods, matrix={"batch_size": [6]}, limits={"load_s": 1, "terminate_s": 0.3})
    assert bench.run().returncode == 1
    assert [e.outcome for e in bench.outcomes()["shaky"]] == ["ok"]
    (end,) = bench.outcomes()["hopeless"]
    assert end.cause is not None
    assert (end.outcome, end.cause.cls, end.cause.phase) == ("failed", cls, "loading")
    assert [r.cause and r.cause.cls for r in bench.releases()] == [cls, None, cls, cls]
    bench.assert_clean()


def test_an_engine_that_fails_at_everything_after_one_prompt_loses_that_prompt_alone(bench: Bench) -> None:
    """The process is of no more use, and nobody says so: a probe finds out."""
    ruin = method("ruined", at="prompt:2", do="ruin")
    bench.write(methods=[ruin], matrix={"batch_size": [2]})
    assert bench.run().returncode == 1
    assert [(r["prompt_id"], r["error"]["root"]) for r in bench.records if r["error"]] == [("2", "engine_error")]
    assert len(bench.keys()) == len(PROMPTS)
    assert {e.ok for e in bench.events if isinstance(e, Probed)} == {False}
    bench.assert_clean()


def test_a_job_that_was_suspended_is_no_hang(bench: Bench, tmp_path: Path) -> None:
    """^Z, or a batch system that makes room: all of it stops for longer than a batch may take."""
    fifo = Fifo(tmp_path / "moment")
    slow = method("slow", at="batch:1", do="mark", touch=fifo.path)
    slow["engine_args"]["token_s"] = 0.02
    bench.write(methods=[slow], matrix={"batch_size": [6]}, limits={"batch_s": 2.5})
    running = bench.start()
    fifo.line()
    job = [running.pid, *(ref.pid for ref in bench.processes())]
    for pid in job:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(4)
    for pid in job:
        os.kill(pid, signal.SIGCONT)
    _, err = running.communicate(timeout=PATIENCE_S)
    fifo.close()
    assert running.returncode == 0, err
    (waited,) = [e for e in bench.events if isinstance(e, Waited)]
    assert (waited.what, waited.over) == ("suspended", True)
    assert waited.wait_s > 2
    assert all(r["flags"] == ["suspended"] for r in bench.records)
    bench.assert_clean()


def test_a_crash_is_retried_in_a_fresh_worker(bench: Bench, tmp_path: Path) -> None:
    once = method("shaky", at="batch:2", do="segv", once=str(tmp_path / "fired"))
    bench.write(methods=[once], matrix={"batch_size": [2]})
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert len(bench.keys()) == len(PROMPTS)
    assert set(bench.keys().values()) == {1}
    (lost,) = [e for e in bench.events if isinstance(e, BatchLost)]
    assert lost.prompts == ["2", "3"]
    assert lost.cause.signal == "SIGSEGV"
    assert len(bench.releases()) == 2
    bench.assert_clean()


@pytest.mark.parametrize("do", ["raise", "segv", "hang", "raise_fatal"])
def test_a_poison_prompt_costs_one_error_record(bench: Bench, do: str) -> None:
    limits = {"batch_s": 1, "terminate_s": 0.3}
    bench.write(methods=[method("allergic", at="prompt:3", do=do)], matrix={"batch_size": [6]}, limits=limits)
    done = bench.run()
    assert done.returncode == 1, done.stderr
    assert set(bench.keys()) == {(bench.records[0]["point"], str(i)) for i in range(6)}
    assert set(bench.keys().values()) == {1}
    (bad,) = [r for r in bench.records if r["error"]]
    assert bad["prompt_id"] == "3"
    assert bad["finish_reason"] == "error"
    root = {"raise": "engine_error", "hang": "hang"}.get(do, "engine_crash")
    assert (bad["error"]["cls"], bad["error"]["root"], bad["error"]["policy"]) == (
        "bad_prompt",
        root,
        "halve, 2 times; record",
    )
    (outcome,) = bench.outcomes()["allergic"]
    assert outcome.outcome == "partial"
    assert any("split_batch" in r["flags"] for r in bench.records)
    bench.assert_clean()


@pytest.mark.parametrize("do", ["missing", "duplicate", "wrong_digest"])
def test_a_wrong_result_is_an_error_of_that_prompt_alone(bench: Bench, do: str) -> None:
    bench.write(methods=[method("sloppy", at="batch:1", do=do)], matrix={"batch_size": [3]})
    assert bench.run().returncode == 1
    assert [r["prompt_id"] for r in bench.records if r["error"]] == ["0"]
    assert len(bench.keys()) == len(PROMPTS)


def test_surplus_results_are_flagged_and_dropped(bench: Bench) -> None:
    bench.write(methods=[method("generous", at="batch:1", do="surplus")], matrix={"batch_size": [3]})
    assert bench.run().returncode == 0
    assert len(bench.keys()) == len(PROMPTS)
    flags = [e.flags for e in bench.events if isinstance(e, BatchCommitted)]
    assert flags == [["surplus_results"], []]


def test_unclean_text_is_stored_with_a_flag(bench: Bench) -> None:
    bench.write(methods=[method("dirty", at="prompt:0", do="surrogates")], matrix={"batch_size": [1]})
    assert bench.run().returncode == 0
    (record,) = [r for r in bench.records if r["prompt_id"] == "0"]
    assert record["flags"] == ["unclean_text"]


@pytest.mark.parametrize("child", ["child_plain", "child_setsid", "child_double_fork", "child_clear_env"])
def test_children_left_behind_are_found_named_and_ended(bench: Bench, child: str) -> None:
    bench.write(methods=[method("parent", at="load", do=child)], matrix={"batch_size": [6]})
    done = bench.run()
    assert done.returncode == 0, done.stderr
    (release,) = bench.releases()
    assert len(release.reclaim.strays_killed) == 1
    bench.assert_clean()


def test_a_worker_that_hangs_in_its_shutdown_does_not_fail_its_method(bench: Bench) -> None:
    limits = {"drain_s": 0.5, "terminate_s": 0.3}
    bench.write(
        methods=[method("sticky", at="shutdown", do="hang_ignore_term")], matrix={"batch_size": [6]}, limits=limits
    )
    assert bench.run().returncode == 0
    (release,) = bench.releases()
    assert (release.reclaim.rung, release.signal, release.cause) == ("kill", "SIGKILL", None)
    bench.assert_clean()


def test_a_segment_left_in_dev_shm_is_removed_and_named(bench: Bench) -> None:
    bench.write(methods=[method("sharing", at="load", do="shm", bytes=4096)], matrix={"batch_size": [6]})
    assert bench.run().returncode == 0
    (release,) = bench.releases()
    (path,) = release.reclaim.shm_removed
    assert not Path(path).exists()


def test_the_share_of_measurement_is_told(bench: Bench) -> None:
    slow = {"name": "slow", "base": "scripted", "engine_args": {"token_s": 0.01}}
    bench.write(methods=[slow], matrix={"batch_size": [6]}, warmup=1)
    assert bench.run().returncode == 0
    (ended,) = [e for e in bench.events if isinstance(e, RunEnded)]
    measured = sum(e.stats.wall_s for e in bench.events if isinstance(e, BatchCommitted) and e.stats)
    assert ended.measured_s == pytest.approx(measured)
    assert 0 < ended.measured_s < ended.wall_s


def test_status_report_and_export_read_a_finished_run(bench: Bench) -> None:
    bench.write(methods=["scripted", method("faulty", at="load", do="raise")])
    bench.run()
    status = json.loads(_read(bench, "status", "--json"))
    assert status["state"] == "finished"
    assert (status["points"]["total"], status["points"]["failed"]) == (4, 2)
    report = _read(bench, "report")
    assert "faulty" in report
    assert "told to" in report or "engine_error" in report
    lines = [json.loads(line) for line in _read(bench, "export", "--format", "jsonl").splitlines()]
    assert len(lines) == 2 * len(PROMPTS)
    assert all(line["prompt_token_ids"] for line in lines)
    assert _read(bench, "export", "--format", "csv").count("\n") == 2 * len(PROMPTS) + 1


def _read(bench: Bench, verb: str, *args: str) -> str:
    command = [sys.executable, "-m", "orchestrator", verb, str(bench.run_dir), *args]
    return subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=60, check=True).stdout


def test_a_full_disk_stops_the_run_in_order(bench: Bench) -> None:
    """A limit on the size of files stands in for the disk: the journal can't grow past it."""
    prompts = [f"prompt {i}" for i in range(40)]
    unasked = {"run_dir_free_mib": 0, "tmp_free_mib": 0, "shm_free_mib": 0}
    bench.write(prompts=prompts, matrix={"batch_size": [1]}, repeats=8, limits=unasked)
    limited = ["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "limited", *bench.command()]
    done = subprocess.run(limited, env=bench.env, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "journal.jsonl" in done.stdout or "generations.jsonl" in done.stdout
    assert "--resume" in done.stdout
    assert not bench.processes()
    assert bench.run("--resume").returncode == 0
    assert len(bench.keys()) == 8 * len(prompts)
    assert set(bench.keys().values()) == {1}
