"""The order of measurement, what is measured again at the end, and repeats that are left out, in real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.events import PointEnded, PointSkipped, PointStarted, WorkerLaunched
from orchestrator.plan import Plan, SweepPoint
from orchestrator.report import RunView, rows, status
from orchestrator.view.results import speed_text
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

METHODS = ["scripted", {"name": "salted", "base": "scripted", "engine_args": {"salt": "x"}}]
#: However unlike two repeats are, their interval at this level is within this share: true of any numbers above 0.
ALWAYS_ENOUGH = {"stop_early": 0.9, "confidence": 0.01}
NEVER_ENOUGH = {"stop_early": 1e-9, "confidence": 0.999}


def plan_of(bench: Bench) -> Plan:
    return msgspec.json.decode((bench.run_dir / "plan.json").read_bytes(), type=Plan)


def points(bench: Bench) -> dict[str, SweepPoint]:
    return {point.id: point for point in plan_of(bench).points}


def launched(bench: Bench) -> list[str]:
    return [event.method for event in bench.events if isinstance(event, WorkerLaunched)]


def ran(bench: Bench) -> list[str]:
    return [event.point for event in bench.events if isinstance(event, PointStarted)]


def skipped(bench: Bench) -> list[str]:
    return [event.point for event in bench.events if isinstance(event, PointSkipped)]


# --- order --------------------------------------------------------------------


def test_interleaved_repeats_alternate_between_workers(bench: Bench) -> None:
    bench.write(methods=METHODS, repeats=2, measurement={"order": "interleaved"})
    assert bench.run().returncode == 0
    assert launched(bench) == ["scripted", "salted", "scripted", "salted"]
    known = points(bench)
    assert [(known[p].method, known[p].repeat, known[p].config.batch_size) for p in ran(bench)] == [
        (name, repeat, size) for repeat in (0, 1) for name in ("scripted", "salted") for size in (1, 4)
    ]
    workers = {e.point: e.incarnation for e in bench.events if isinstance(e, PointStarted)}
    assert len(set(workers.values())) == 4, "a fresh one for each repeat"
    assert set(bench.keys().values()) == {1}
    bench.assert_clean()


def test_a_random_order_is_that_of_its_seed(bench: Bench) -> None:
    orders = []
    for n, seed in enumerate((5, 5, 6)):
        other = Bench(bench.folder / str(n))
        other.write(
            methods=METHODS,
            prompts=PROMPTS[:1],
            matrix={"batch_size": [1, 2, 4]},
            repeats=2,
            measurement={"order": "random", "order_seed": seed},
        )
        assert other.run().returncode == 0
        assert ran(other) == [point.id for point in plan_of(other).points]
        assert plan_of(other).measurement.order_seed == seed
        orders.append(ran(other))
        other.assert_clean()
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(orders[2]), "the points are the same"


def test_a_run_goes_on_in_the_order_it_began_with(bench: Bench) -> None:
    bench.write(methods=METHODS, repeats=2, measurement={"order": "random"})
    assert bench.run().returncode == 0
    bench.write(methods=METHODS, repeats=2, measurement={"order": "random", "order_seed": 1})
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert "the order of measurement changed since this run began" in refused.stderr
    bench.write(methods=METHODS[::-1], repeats=2, measurement={"order": "random"})
    assert bench.run("--resume").returncode == 0


def test_a_run_that_goes_on_says_what_it_does_not_take_up(bench: Bench) -> None:
    bench.write(matrix={"batch_size": [4]})
    assert bench.run().returncode == 0
    bench.write(matrix={"batch_size": [4]}, measurement={"slo_ttft_s": 1})
    done = bench.run("--resume")
    assert done.returncode == 0
    assert "measurement.slo_ttft_s is 1.0 now, but this run began with null" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "cls", "loads"),
    [({"nonsense": 1}, "config", 1), ({"fault": {"at": "load", "do": "segv"}}, "engine_crash", 3)],
    ids=["for good", "perhaps"],
)
def test_a_load_that_fails_for_good_is_not_tried_for_every_repeat(
    bench: Bench, args: dict[str, Any], cls: str, loads: int
) -> None:
    faulty = {"name": "faulty", "base": "scripted", "engine_args": args}
    policies = {"engine_crash": {"loads": 0}}
    measurement = {"order": "interleaved", "drift": True, "reference": "scripted"}
    bench.write(methods=["scripted", faulty], repeats=3, measurement=measurement, policies=policies)
    assert bench.run().returncode == 1
    assert Counter(launched(bench)) == {"scripted": 4, "faulty": loads}
    ends = bench.outcomes()["faulty"]
    assert [end.cause and end.cause.cls for end in ends] == [cls] * 6
    assert sum("not tried" in end.cause.message for end in ends if end.cause) == (4 if loads == 1 else 0)
    assert [end.outcome for end in bench.outcomes()["scripted"]] == ["ok"] * 7


# --- drift --------------------------------------------------------------------


def test_the_reference_is_measured_once_more_at_the_very_end(bench: Bench) -> None:
    bench.write(methods=METHODS, repeats=2, measurement={"order": "interleaved", "drift": True, "reference": "salted"})
    assert bench.run().returncode == 0
    known = points(bench)
    last = known[ran(bench)[-1]]
    assert (last.method, last.role, last.config.batch_size) == ("salted", "drift", 1)
    assert launched(bench)[-2:] == ["salted", "salted"], "in a fresh worker"
    assert [point.role for point in known.values()].count("drift") == 1
    again = {r["prompt_id"]: r["text"] for r in bench.records if r["point"] == last.id}
    (twin,) = (p for p in known.values() if (p.config, p.repeat, p.role) == (last.config, 0, "measure"))
    assert again == {r["prompt_id"]: r["text"] for r in bench.records if r["point"] == twin.id}
    assert RunView.load(bench.run_dir).complete
    bench.assert_clean()


# --- stopping early -------------------------------------------------------------


def test_repeats_that_are_not_needed_are_left_out(bench: Bench) -> None:
    bench.write(methods=METHODS, repeats=5, measurement=ALWAYS_ENOUGH)
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert launched(bench) == ["scripted", "salted"]
    assert Counter(points(bench)[p].repeat for p in ran(bench)) == {0: 4, 1: 4, 2: 4}
    assert Counter(points(bench)[p].repeat for p in skipped(bench)) == {3: 4, 4: 4}
    assert len(bench.keys()) == 2 * 2 * 3 * len(PROMPTS)
    assert done.stdout.count("stopped after 3 of 5 repeats") == 4
    view = RunView.load(bench.run_dir)
    assert view.complete
    assert status(view)["points"] == {"total": 20, "done": 12, "failed": 0, "partial": 0, "skipped": 8, "left": 0}
    assert (status(view)["exit_code"], status(view)["records_planned"]) == (0, status(view)["records"])
    reasons = view.replay.skipped
    for row in rows(view):
        told = {reasons[point].reason for point in row.points if point in reasons}
        assert told == {f"3 repeats gave {speed_text(row)} tokens/s at confidence 0.01, within stop_early 0.9"}
    bench.assert_clean()


@pytest.mark.parametrize("order", ["interleaved", "random"])
def test_no_worker_is_launched_for_what_is_left_out(bench: Bench, order: str) -> None:
    bench.write(methods=METHODS, repeats=4, measurement={"order": order, **ALWAYS_ENOUGH})
    assert bench.run().returncode == 0
    assert Counter(launched(bench)) == {"scripted": 3, "salted": 3}
    assert len(skipped(bench)) == 2 * 2 * 1
    assert {*ran(bench), *skipped(bench)} == set(points(bench))


def test_repeats_that_are_needed_are_measured(bench: Bench) -> None:
    bench.write(repeats=4, measurement=NEVER_ENOUGH)
    assert bench.run().returncode == 0
    assert skipped(bench) == []
    assert len(ran(bench)) == 8


@pytest.mark.parametrize("order", ["grouped", "interleaved", "random"])
def test_a_killed_run_comes_to_the_same_points(bench: Bench, fifo: Fifo, tmp_path: Path, order: str) -> None:
    """Killed in the third batch of a worker, after some repeats were left out or not yet."""
    hanging = method("second", at="batch:3", do="hang", once=str(tmp_path / "once"), touch=fifo.path)
    measurement = {"order": order, "order_seed": 2, "drift": True, **ALWAYS_ENOUGH}
    sweep: dict[str, Any] = {"methods": ["scripted", hanging], "repeats": 4, "measurement": measurement}
    bench.write(**sweep)
    first = bench.start()
    fifo.line()
    left = bench.processes()
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    before = skipped(bench)
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert set(bench.keys().values()) == {1}
    assert skipped(bench)[: len(before)] == before
    assert len(skipped(bench)) == len(set(skipped(bench))) == 2 * 2 * 1
    assert RunView.load(bench.run_dir).complete
    bench.assert_clean()

    again = [e.point for e in bench.events if isinstance(e, PointEnded | PointSkipped)]
    assert bench.run("--resume").returncode == 0
    assert [e.point for e in bench.events if isinstance(e, PointEnded | PointSkipped)] == again
    unbroken = Bench(bench.folder / "unbroken")
    unbroken.write(**sweep)
    assert unbroken.run().returncode == 0
    assert (set(bench.keys()), set(skipped(bench))) == (set(unbroken.keys()), set(skipped(unbroken)))


def test_the_plan_verb_shows_how_it_will_be_measured(bench: Bench) -> None:
    bench.write(repeats=9, measurement={"order": "random", "order_seed": 3, "drift": True, "stop_early": 0.02})
    command = [sys.executable, "-m", "orchestrator", "plan", str(bench.folder / "sweep.yaml")]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=True)
    assert "order random with seed 3" in done.stdout
    assert "within 0.02 of it" in done.stdout
    assert "once more, for drift" in done.stdout


def test_a_script_sees_what_was_left_out(bench: Bench) -> None:
    bench.write(repeats=4, measurement=ALWAYS_ENOUGH)
    assert bench.run().returncode == 0
    command = [sys.executable, "-m", "orchestrator", "status", str(bench.run_dir), "--json"]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=True)
    found = json.loads(done.stdout)
    assert (found["complete"], found["points"]["skipped"], found["points"]["left"]) == (True, 2, 0)
