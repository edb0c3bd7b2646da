"""What follows a failure, over whole sweeps and several lives: bounded, told as it was, and never paid for twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import BatchCommitted, PointEnded, Waited, WorkerLaunched
from orchestrator.record.replay import JOURNAL_NAME, Line, scan
from tests.process.launching import Fifo
from tests.process.sweeping import PATIENCE_S, PROMPTS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def launches(bench: Bench) -> int:
    return sum(isinstance(event, WorkerLaunched) for event in bench.events)


def cut_behind_the_last_commit(bench: Bench) -> None:
    """As if the coordinator had been killed there."""
    lines = [line for line in scan(bench.run_dir / JOURNAL_NAME) if isinstance(line, Line)]
    os.truncate(bench.run_dir / JOURNAL_NAME, max(line.end for line in lines if isinstance(line.event, BatchCommitted)))


@pytest.mark.parametrize(("do", "cls"), [("raise", "engine_error"), ("memory_error", "oom")])
def test_what_is_tried_again_in_a_fresh_worker_is_not_tried_for_ever(bench: Bench, do: str, cls: str) -> None:
    """The engine lives and answers all else, so nothing but the count can end it."""
    policies = {cls: {"do": "retry", "times": 1}}
    bench.write(methods=[method("stubborn", at="prompt:3", do=do)], matrix={"batch_size": [2]}, policies=policies)
    assert bench.run().returncode == 1
    (end,) = bench.outcomes()["stubborn"]
    assert end.cause is not None
    assert (end.outcome, end.cause.cls, end.cause.policy) == ("failed", cls, "retry, 1 time")
    assert launches(bench) == 2
    assert set(bench.keys().values()) == {1}
    bench.assert_clean()


@pytest.mark.parametrize(
    ("faults", "outcome"), [({"at": "load", "do": "mark"}, "ok"), ({"at": "batch:1", "do": "missing"}, "partial")]
)
def test_a_point_whose_records_are_all_there_is_ended_without_a_worker(
    bench: Bench, faults: dict[str, Any], outcome: str
) -> None:
    bench.write(methods=[method("done", **faults)], matrix={"batch_size": [6]})
    bench.run()
    (whole,) = bench.outcomes()["done"]
    cut_behind_the_last_commit(bench)
    assert bench.run("--resume").returncode == int(outcome != "ok")
    (end,) = bench.outcomes()["done"]
    assert (end.outcome, end.cause) == (outcome, whole.cause)
    assert launches(bench) == 1
    assert len(bench.keys()) == len(PROMPTS)


def test_the_cause_of_an_error_record_outlives_its_coordinator(bench: Bench) -> None:
    bench.write(methods=[method("sloppy", at="batch:1", do="missing")], matrix={"batch_size": [3]})
    bench.run()
    lines = [line for line in scan(bench.run_dir / JOURNAL_NAME) if isinstance(line, Line)]
    os.truncate(bench.run_dir / JOURNAL_NAME, min(x.end for x in lines if isinstance(x.event, BatchCommitted)))
    assert bench.run("--resume").returncode == 1
    (end,) = [event for event in bench.events if isinstance(event, PointEnded)]
    assert end.cause is not None
    assert (end.outcome, end.cause.message) == ("partial", "the engine gave no result for this prompt")


@pytest.mark.parametrize(
    ("do", "policies"), [("segv", {"engine_crash": {"times": 0}}), ("raise", {"engine_error": "give_up"})]
)
def test_a_warmup_that_fails_is_no_exception_to_a_strict_policy(
    bench: Bench, do: str, policies: dict[str, Any]
) -> None:
    bench.write(methods=[method("cold", at="batch:1", do=do)], matrix={"batch_size": [2]}, warmup=1, policies=policies)
    assert bench.run().returncode == 1
    assert [end.outcome for end in bench.outcomes()["cold"]] == ["failed"]
    assert launches(bench) == 1


def test_a_short_stop_is_no_part_of_what_was_measured_unsaid(bench: Bench, tmp_path: Path) -> None:
    """^Z and fg within a second: no deadline is near, but the figures of the batch are not the engine's."""
    fifo = Fifo(tmp_path / "moment")
    slow = method("slow", at="batch:1", do="mark", touch=fifo.path)
    slow["engine_args"]["token_s"] = 0.02
    bench.write(methods=[slow], matrix={"batch_size": [3]})
    with bench.start() as running:
        fifo.line()
        job = [running.pid, *(ref.pid for ref in bench.processes())]
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            for pid in job:
                os.kill(pid, signum)
        running.communicate(timeout=PATIENCE_S)
    fifo.close()
    assert running.returncode == 0
    assert [record["flags"] for record in bench.records] == [["suspended"]] * 3 + [[]] * 3
    assert [event.what for event in bench.events if isinstance(event, Waited)] == ["suspended"]


def test_the_log_tail_of_a_hung_worker_is_what_its_engine_said_last(bench: Bench) -> None:
    """The stacks that it was asked for go into the same log."""
    faults = [{"at": "batch:1", "do": "print_flood", "bytes": 64 << 10}, {"at": "batch:1", "do": "hang"}]
    hung = {"name": "hung", "base": "scripted", "engine_args": {"faults": faults}}
    limits = {"batch_s": 1, "terminate_s": 0.3}
    bench.write(methods=[hung], matrix={"batch_size": [6]}, limits=limits, policies={"hang": {"times": 0}})
    assert bench.run().returncode == 1
    (end,) = bench.outcomes()["hung"]
    assert end.cause is not None
    assert "most recent call first" in end.cause.stacks
    assert set(end.cause.log_tail) == {"x", "\n"}


def test_an_environment_that_cannot_run_a_worker_is_not_tried_again(bench: Bench, tmp_path: Path) -> None:
    """It lost a package after it was checked: every other worker would end as the first did, before its first word."""
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "msgpack.py").write_text("raise ImportError('libmsgpack.so.1 is gone')")
    lost = {"name": "lost", "base": "scripted", "env_vars": {"PYTHONPATH": str(tmp_path / "lost")}}
    bench.write(methods=[lost, "scripted"])
    assert bench.run().returncode == 1
    causes = [end.cause for end in bench.outcomes()["lost"]]
    assert [cause and (cause.cls, cause.phase, cause.policy) for cause in causes] == [
        ("environment", "launching", "give_up")
    ] * 2
    assert all(cause and "libmsgpack.so.1 is gone" in cause.message for cause in causes)
    assert all(cause and "-m pip install msgpack" in cause.message for cause in causes)
    assert [end.outcome for end in bench.outcomes()["scripted"]] == ["ok", "ok"]
    assert launches(bench) == 2
    bench.assert_clean()
