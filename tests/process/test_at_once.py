"""Several workers of one run at the same time: each in its slot, none in another's way, all gone at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import BatchCommitted, RunEnded, StateChanged, WorkerLaunched, WorkerReleased
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.run.standby import ALONE
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, method, wait_gone

pytestmark = [
    pytest.mark.usefixtures("nothing_leaked"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers on CPUs of their own need two CPUs"),
]
TWO = {"slots": 2, "standby": "off"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "b")


def fifo(bench: Bench, name: str) -> str:
    path = bench.folder / name
    os.mkfifo(path)
    return str(path)


def waiting_for_each_other(bench: Bench) -> list[dict[str, Any]]:
    """Neither's first batch ends before the other's has begun."""
    first, second = fifo(bench, "first"), fifo(bench, "second")
    return [
        {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(first), touch(second)]}},
        {"name": "two", "base": "scripted", "engine_args": {"faults": [touch(first), wait(second)]}},
    ]


def plain(name: str) -> dict[str, Any]:
    return {"name": name, "base": "scripted"}


def touch(path: str, at: str = "batch:1") -> dict[str, str]:
    return {"at": at, "do": "mark", "touch": path}


def wait(path: str, at: str = "batch:1") -> dict[str, str]:
    return {"at": at, "do": "mark", "gate": path}


def of(bench: Bench, kind: type[Any]) -> list[Any]:
    return [event for event in bench.events if isinstance(event, kind)]


def launches(bench: Bench) -> dict[str, WorkerLaunched]:
    return {event.method: event for event in of(bench, WorkerLaunched)}


def test_two_workers_on_two_cpu_sets(bench: Bench) -> None:
    bench.write(methods=waiting_for_each_other(bench), devices=TWO)
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = launches(bench)["one"], launches(bench)["two"]
    assert {one.slot, two.slot} == {"slot0", "slot1"}
    assert one.cpus
    assert two.cpus
    assert one.cpus != two.cpus
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    assert set(bench.keys().values()) == {1}
    first = next(c for c in of(bench, BatchCommitted) if c.incarnation == one.incarnation)
    assert first.neighbours == [f"{two.slot}: two"]
    bench.assert_clean()


def test_exclusive_lets_nobody_run_beside_another(bench: Bench) -> None:
    bench.write(methods=[plain("one"), plain("two")], devices={"cpus": ["0", "1"], "exclusive": True})
    assert bench.run().returncode == 0
    assert not [commit for commit in of(bench, BatchCommitted) if commit.neighbours]
    assert {launch.slot for launch in launches(bench).values()} == {"slot0"}


def test_a_crash_in_one_slot_costs_the_other_nothing(bench: Bench) -> None:
    one, two = waiting_for_each_other(bench)
    two["engine_args"]["faults"].append({"at": "batch:1", "do": "sigkill"})
    bench.write(methods=[one, two], devices=TWO, policies={"engine_crash": "give_up"})
    assert bench.run().returncode == 1
    assert {name: {end.outcome for end in ends} for name, ends in bench.outcomes().items()} == {
        "one": {"ok"},
        "two": {"failed"},
    }
    causes = {release.incarnation: release.cause for release in bench.releases()}
    assert causes[launches(bench)["one"].incarnation] is None
    bench.assert_clean()


def test_memory_that_ran_out_beside_another_leaves_no_larger_point_out(bench: Bench) -> None:
    first, second = fifo(bench, "first"), fifo(bench, "second")
    failing = [wait(first), {"at": "batch:1", "do": "memory_error"}, touch(second, "batch:2")]
    one = {"name": "one", "base": "scripted", "engine_args": {"faults": failing}}
    two = {"name": "two", "base": "scripted", "engine_args": {"faults": [touch(first), wait(second)]}}
    bench.write(methods=[one, two], devices=TWO, policies={"oom": "give_up"})
    bench.run()
    small, large = bench.outcomes()["one"]
    assert small.cause is not None
    assert "shared the host's memory: " in small.cause.message
    assert (small.outcome, large.outcome) == ("failed", "ok")
    bench.assert_clean()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_all_leave_when_the_run_is_to_stop_and_a_resume_does_the_rest(bench: Bench, how: signal.Signals) -> None:
    begun, never = fifo(bench, "begun"), fifo(bench, "never")
    held = [
        {
            "name": name,
            "base": "scripted",
            "engine_args": {"faults": [once(touch(begun), bench, name), once(wait(never), bench, f"{name}-too")]},
        }
        for name in ("one", "two")
    ]
    bench.write(methods=held, devices=TWO)
    running = bench.start()
    read_lines(begun, 2)
    os.kill(running.pid, how)
    assert running.wait(PATIENCE_S) in (130, 143)
    running.communicate()
    bench.assert_clean()
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert set(bench.keys().values()) == {1}
    bench.assert_clean()


def once(fault: dict[str, str], bench: Bench, name: str) -> dict[str, str]:
    return {**fault, "once": str(bench.folder / f"once-{name}")}


def read_lines(path: str, count: int) -> list[str]:
    with open(os.open(path, os.O_RDWR), encoding="utf-8") as file:
        return [file.readline() for _ in range(count)]


# --- the next one, before its slot is free ----------------------------------------------


def states(bench: Bench, incarnation: str) -> list[tuple[int, str]]:
    """(place in the journal, state)"""
    told = [(n, e) for n, e in enumerate(bench.events) if isinstance(e, StateChanged)]
    return [(n, e.state) for n, e in told if e.incarnation == incarnation]


def place(bench: Bench, kind: type[Any], incarnation: str) -> int:
    return next(n for n, e in enumerate(bench.events) if isinstance(e, kind) and e.incarnation == incarnation)


def standing_by(bench: Bench, faults: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The first one's batch ends only once the second is importing."""
    gate = fifo(bench, "imports")
    first = {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(gate)]}}
    return [first, method("two", early=True, **touch(gate, "import")), *faults]


def test_the_next_worker_imports_while_one_generates_and_loads_only_when_that_is_gone(bench: Bench) -> None:
    bench.write(methods=standing_by(bench), devices={"standby": "on"})
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = launches(bench)["one"], launches(bench)["two"]
    assert (one.early, two.early, two.slot) == ("", "standby", one.slot)
    loading = next(n for n, state in states(bench, two.incarnation) if state == "loading")
    assert place(bench, WorkerLaunched, two.incarnation) < place(bench, WorkerReleased, one.incarnation) < loading
    first = next(c for c in of(bench, BatchCommitted) if c.incarnation == one.incarnation)
    assert first.neighbours == ["standby: two"]
    bench.assert_clean()


def test_without_standby_the_next_worker_starts_when_the_slot_is_free(bench: Bench) -> None:
    bench.write(methods=[plain("one"), plain("two")], devices={"standby": "off"})
    assert bench.run().returncode == 0
    one, two = launches(bench)["one"], launches(bench)["two"]
    assert two.early == ""
    assert place(bench, WorkerReleased, one.incarnation) < place(bench, WorkerLaunched, two.incarnation)


def test_on_cpus_the_next_worker_waits_for_the_teardown(bench: Bench) -> None:
    left = fifo(bench, "left")
    first = {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(left, "shutdown")]}}
    bench.write(methods=[first, method("two", early=True, **touch(left, "import"))], limits={"drain_s": PATIENCE_S})
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert launches(bench)["two"].early == "teardown"
    assert not [commit for commit in of(bench, BatchCommitted) if commit.neighbours]
    bench.assert_clean()


def test_who_dies_standing_by_is_its_own_methods_failure(bench: Bench) -> None:
    gate = fifo(bench, "imports")
    first = {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(gate)]}}
    dying = method("two", early=True, at="import", do="sigkill", touch=gate)
    bench.write(methods=[first, dying, plain("three")], devices={"standby": "on"}, policies={"engine_crash": "give_up"})
    assert bench.run().returncode == 1
    outcomes = {name: {end.outcome for end in ends} for name, ends in bench.outcomes().items()}
    assert outcomes == {"one": {"ok"}, "two": {"failed"}, "three": {"ok"}}
    bench.assert_clean()


def test_who_lacks_memory_standing_by_is_started_once_more_alone(bench: Bench) -> None:
    gate = fifo(bench, "imports")
    first = {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(gate)]}}
    once = str(bench.folder / "once")
    crowded = method("two", early=True, at="import", do="memory_error", touch=gate, once=once)
    bench.write(methods=[first, crowded], devices={"standby": "on"}, policies={"oom": {"loads": 0}})
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event.early for event in of(bench, WorkerLaunched) if event.method == "two"] == ["standby", ""]
    (release,) = [release for release in bench.releases() if release.cause]
    assert release.cause is not None
    assert (release.cause.cls, release.cause.policy) == ("oom", ALONE)
    bench.assert_clean()


def test_who_lacks_memory_alone_as_well_has_failed(bench: Bench) -> None:
    crowded = method("two", early=True, at="import", do="memory_error")
    bench.write(methods=[plain("one"), crowded], devices={"standby": "on"}, policies={"oom": {"loads": 0}})
    assert bench.run().returncode == 1
    (failed,) = {end.cause.policy for end in bench.outcomes()["two"] if end.cause}
    assert failed != ALONE
    assert {end.outcome for end in bench.outcomes()["two"]} == {"failed"}
    bench.assert_clean()


def test_a_killed_coordinator_leaves_neither_the_worker_nor_the_one_that_stands_by(bench: Bench) -> None:
    begun, never = fifo(bench, "begun"), fifo(bench, "never")
    first = {"name": "one", "base": "scripted", "engine_args": {"faults": [wait(never)]}}
    second = method("two", early=True, **touch(begun, "import"))
    bench.write(methods=[first, second], devices={"standby": "on"})
    running = bench.start()
    read_lines(begun, 1)
    refs = [ref for ref in bench.processes() if ref.pid != running.pid]
    assert len(refs) >= 4, "two workers and their wardens"
    running.kill()
    running.communicate()
    wait_gone(refs, GONE_AFTER_KILL_S)


# --- the time there is ------------------------------------------------------------------


def test_stop_after_lets_the_batch_end_and_leaves_the_rest_for_a_resume(bench: Bench) -> None:
    bench.write(
        stop_after=3.0, devices=TWO, matrix={"batch_size": [1]}, methods=[slow("one"), slow("two"), slow("three")]
    )
    done = bench.run()
    assert done.returncode == EXIT_STOPPED_EARLY, done.stdout + done.stderr
    (ended,) = of(bench, RunEnded)
    assert ended.reason.startswith("stop_after 3s: ")
    assert "left" in ended.reason
    assert not [release for release in bench.releases() if release.cause]
    measured = len(bench.records)
    assert 0 < measured < 3 * len(PROMPTS)
    bench.write(devices=TWO, matrix={"batch_size": [1]}, methods=[slow("one"), slow("two"), slow("three")])
    assert bench.run("--resume").returncode == 0
    assert set(bench.keys().values()) == {1}
    assert len(bench.records) == 3 * len(PROMPTS)
    bench.assert_clean()


def slow(name: str) -> dict[str, Any]:
    return {"name": name, "base": "scripted", "engine_args": {"token_s": 0.03}}
