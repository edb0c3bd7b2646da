"""A run that was over before is gone on with: nothing is measured, and the exit code is what it was."""

from __future__ import annotations

import pytest

from orchestrator.events import PointSkipped, RunEnded, RunStarted, WorkerLaunched
from tests.process.sweeping import NO_SECOND_TRY, PROMPTS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def test_a_finished_run_says_so_and_measures_nothing(bench: Bench) -> None:
    bench.write()
    bench.run_dir = bench.folder / "my run"
    first = bench.run()
    assert "tokens/s" in first.stdout
    assert f"`python -m orchestrator report '{bench.run_dir}'` tells more" in first.stdout
    before = (bench.run_dir / "generations.jsonl").read_bytes()
    again = bench.run("--resume")
    assert again.returncode == 0, again.stderr
    assert "nothing is left to do: all 2 points of this run had ended before\n" in again.stdout
    assert f"`python -m orchestrator report '{bench.run_dir}'` has the results" in again.stdout
    assert "tokens/s" not in again.stdout
    assert (bench.run_dir / "generations.jsonl").read_bytes() == before
    assert [type(one) for one in bench.events if isinstance(one, (RunStarted, RunEnded, WorkerLaunched))] == [
        RunStarted,
        WorkerLaunched,
        RunEnded,
        RunStarted,
        RunEnded,
    ]
    bench.assert_clean()


def test_what_did_not_end_well_still_decides_on_the_exit_code(bench: Bench) -> None:
    bad = method("bad", on="generate", do="raise")
    bench.write(methods=["scripted", bad], policies=NO_SECOND_TRY, matrix={"batch_size": [1]})
    assert bench.run().returncode == 1
    again = bench.run("--resume", "--view", "quiet")
    assert again.returncode == 1
    assert "all 2 points of this run had ended before, 1 not well (--retry-failed measures those again)" in again.stdout
    ended = [one for one in bench.events if isinstance(one, RunEnded)]
    assert [one.exit_code for one in ended] == [1, 1]
    assert bench.run("--resume", "--retry-failed").returncode == 1
    assert sum(isinstance(one, WorkerLaunched) for one in bench.events) == 3, "that is something to do"


def test_points_that_are_not_needed_are_not_left(bench: Bench) -> None:
    rule = {"stop_early": 0.9, "least_repeats": 3}
    bench.write(repeats=5, matrix={"batch_size": [1]}, measurement=rule)
    assert bench.run().returncode == 0
    skipped = sum(isinstance(one, PointSkipped) for one in bench.events)
    again = bench.run("--resume")
    assert again.returncode == 0
    told = f", {skipped} of them not needed\n" if skipped else " before\n"
    assert told in again.stdout
    assert len(bench.keys()) == (5 - skipped) * len(PROMPTS)


def test_strict_judges_it_all_the_same(bench: Bench) -> None:
    salted = {"name": "salted", "base": "scripted", "engine_args": {"salt": "x"}}
    bench.write(methods=["scripted", salted])
    assert bench.run().returncode == 0
    assert bench.run("--resume").returncode == 0
    again = bench.run("--resume", "--strict")
    assert again.returncode == 1
    assert "fairness: " in again.stdout
