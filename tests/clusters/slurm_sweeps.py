"""Whole sweeps on a real cluster, and all that may befall them there.

Run by test_slurm_sweeps.py, inside the namespaces of slurmcluster.py; never collected.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.clusters.allocations import SlotAsked
from orchestrator.events import WorkerLaunched
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.outcomes import Cause
from tests.clusters.proxy import Proxy
from tests.clusters.slurmbench import until
from tests.clusters.slurmsweep import LIMITS, RECORDS, SILENCE_S, Sweep, slurm, variable
from tests.process.sweeping import Bench

ONE_SLOT = {"slots": 1}
ON_N1, ON_N2 = "--nodelist=n1", "--nodelist=n2"


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path / "s")
    yield made
    made.close()


def plain(name: str, *faults: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "base": "scripted", "engine_args": {"faults": list(faults)}}


@pytest.fixture(scope="module", autouse=True)
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sweep, subprocess.Popen[str]]]:
    """With the shortest time limit there is, begun before all else; while it goes by the others run."""
    made = Sweep(tmp_path_factory.mktemp("limited") / "s")
    cluster = {"slots": 1, "attempts": 1, "time_limit": "1m", "options": [ON_N2]}
    made.write(methods=[made.held("one"), plain("two")], cluster=cluster)
    running = made.begin()
    made.await_held()
    yield made, running
    made.close()


def test_two_slots_side_by_side(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), sweep.held("two")])
    running = sweep.begin()
    sweep.await_held(2)
    sweep.go()
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert {event.slot for event in sweep.of(WorkerLaunched)} == {"slurm0", "slurm1"}
    sweep.assert_nothing_left()


def test_a_job_that_is_requeued_begins_anew_at_once(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=ONE_SLOT)
    running = sweep.begin()
    sweep.await_held()
    slurm("scontrol", "requeue", sweep.jobs[0])
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0), (1, 1)]
    sweep.assert_nothing_left()


def test_a_job_that_is_cancelled_is_asked_for_anew(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=ONE_SLOT)
    running = sweep.begin()
    sweep.await_held()
    slurm("scancel", sweep.jobs[0])
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0), (2, 0)]
    assert "CANCELLED" in sweep.left("slurm0")[0]
    sweep.assert_nothing_left()


@pytest.mark.parametrize("whom", ["outpost", "warden", "worker"])
def test_what_is_killed_is_begun_anew(sweep: Sweep, whom: str) -> None:
    """With what the worker has started, out of its session and orphaned."""
    child = {"at": "load", "do": "child_double_fork", "once": str(sweep.folder / "child")}
    sweep.write(methods=[sweep.held("one", child), plain("two")], cluster=ONE_SLOT)
    running = sweep.begin()
    (worker,) = sweep.await_held()
    victim = {"worker": worker, "warden": sweep.parent(worker), "outpost": sweep.outpost(worker)}[whom]
    os.kill(victim, signal.SIGKILL)
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == ([(1, 0), (2, 0)] if whom == "outpost" else [(1, 0)])
    sweep.assert_nothing_left()


def test_a_killed_coordinator_is_missed_by_its_outposts(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), sweep.held("two")])
    running = sweep.begin()
    sweep.await_held(2)
    running.kill()
    until(sweep.processes, lambda found: not found)
    until(sweep.queued, lambda found: not found)
    resumed = sweep.begin("--resume")
    sweep.ended(resumed)
    sweep.assert_whole(2 * RECORDS)


def test_a_resume_ends_the_outposts_of_the_life_before(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), sweep.held("two")], cluster={"silence_s": 600})
    running = sweep.begin()
    sweep.await_held(2)
    running.kill()
    running.wait()
    assert len(sweep.queued()) == 2
    sweep.ended(sweep.begin("--resume"))
    sweep.assert_whole(2 * RECORDS)
    assert [event.attempt for event in sweep.of(SlotAsked)] == [1, 1, 1, 1]
    sweep.assert_nothing_left()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_coordinator_that_is_to_stop_takes_its_outposts_along(sweep: Sweep, how: signal.Signals) -> None:
    sweep.write(methods=[sweep.held("one"), sweep.held("two")])
    running = sweep.begin()
    sweep.await_held(2)
    running.send_signal(how)
    sweep.ended(running, 128 + how)
    sweep.assert_nothing_left()
    sweep.ended(sweep.begin("--resume"))
    sweep.assert_whole(2 * RECORDS)
    sweep.assert_nothing_left()


@pytest.mark.parametrize("apart", [False, True])
def test_a_lost_node_whose_outpost_lives_on(sweep: Sweep, apart: bool) -> None:
    """Slurm begins the job a second time beside it. The later start ends the earlier one; `apart`: it can't see it, as
    on another machine, so that one is not heard any more, and leaves by itself."""
    cluster = ONE_SLOT | ({"python": blindfold(sweep)} if apart else {})
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=cluster)
    running = sweep.begin()
    (worker,) = sweep.await_held()
    outpost = sweep.outpost(worker)
    job = sweep.jobs[0]
    node = sweep.node_of(job)
    sweep.cluster.kill_node(node)
    try:
        until(lambda: slurm("squeue", "--noheader", "--format=%T", f"--jobs={job}"), lambda found: found == "PENDING")
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
        assert sweep.told(lambda: sweep.joined("slurm0")[1:]) == [(1, 1)]
        assert not apart or lives(outpost)
        sweep.ended(running)
        until(lambda: lives(outpost), lambda found: not found)
    finally:
        sweep.cluster.start_node(node)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0), (1, 1)]
    sweep.assert_nothing_left()
    until(sweep.cluster.node_states, lambda states: states[node] == "IDLE")


def blindfold(sweep: Sweep) -> str:
    """A start of the job that does not know the tag of the one before."""
    copy = f"{sweep.folder}/orders.$SLURM_RESTART_COUNT"
    change = f'sed "s/\\"tag\\":\\"/&$SLURM_RESTART_COUNT/" "$AIRLOCK_OUTPOST" >{copy}'
    return sweep.wrapper(f"{change}; export AIRLOCK_OUTPOST={copy} AIRLOCK_RUN=$SLURM_RESTART_COUNT$AIRLOCK_RUN")


def lives(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and not found.dead


def test_a_job_of_more_weight_goes_first(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster={"slots": 1, "cpus": 4, "options": [ON_N1]})
    running = sweep.begin()
    sweep.await_held()
    words = ["--partition=urgent", ON_N1, "--cpus-per-task=4", "--output=/dev/null", "--wrap=sleep 1"]
    slurm("sbatch", *words)
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0), (1, 1)]
    sweep.assert_nothing_left()


def test_each_outpost_has_its_gpu(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), sweep.held("two")], cluster={"gpus": 1, "options": [ON_N1]})
    running = sweep.begin()
    workers = sweep.await_held(2)
    assert {variable(sweep.outpost(pid), "CUDA_VISIBLE_DEVICES") for pid in workers} == {"0", "1"}
    sweep.go()
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    sweep.assert_nothing_left()


def test_an_outpost_that_stands_still_is_given_up(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=ONE_SLOT)
    running = sweep.begin()
    (worker,) = sweep.await_held()
    outpost = sweep.outpost(worker)
    os.kill(outpost, signal.SIGSTOP)
    assert sweep.told(lambda: sweep.left("slurm0")) == [f"not heard of for {SILENCE_S:g} s"]
    with suppress(ProcessLookupError):  # Slurm may have been quicker
        os.kill(outpost, signal.SIGCONT)
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0), (2, 0)]
    sweep.assert_nothing_left()


def by_way_of(sweep: Sweep, proxy: Proxy) -> dict[str, Any]:
    """The outposts dial the proxy."""
    copy = f"{sweep.folder}/orders.$SLURM_JOB_ID"
    change = f'sed \'s/:{proxy.to}"/:{proxy.port}"/\' "$AIRLOCK_OUTPOST" >{copy}'
    python = sweep.wrapper(f"{change}; export AIRLOCK_OUTPOST={copy}")
    return {"slots": 1, "listen": f"tcp://127.0.0.1:{proxy.to}", "python": python}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    made = Proxy(port)
    yield made
    made.close()


def test_a_connection_that_breaks_costs_nothing(sweep: Sweep, proxy: Proxy) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=by_way_of(sweep, proxy))
    running = sweep.begin()
    sweep.await_held()
    proxy.part()
    sweep.go()  # what is told now is told to nobody
    assert proxy.refused.acquire(timeout=SILENCE_S), "it dials again"
    proxy.join()
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    assert sweep.joined("slurm0") == [(1, 0)]
    assert sweep.left("slurm0") == ["the run is over"]


def test_an_outpost_that_is_cut_off_leaves_by_itself(sweep: Sweep, proxy: Proxy) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=by_way_of(sweep, proxy) | {"attempts": 1})
    running = sweep.begin()
    sweep.await_held()
    proxy.part()
    assert "no slot is left" in sweep.ended(running, EXIT_STOPPED_EARLY)
    until(sweep.processes, lambda found: not found)
    proxy.join()
    sweep.ended(sweep.begin("--resume"))
    sweep.assert_whole(2 * RECORDS)


def test_workers_fail_there_as_they_do_here(sweep: Sweep, tmp_path: Path) -> None:
    def methods(folder: Path) -> list[dict[str, Any]]:
        once = {"once": str(folder / "once")}
        return [
            plain("crash", {"at": "batch:2", "do": "sigkill", **once}),
            plain("poison", {"at": "prompt:3", "do": "raise_fatal"}),
            plain("oom", {"at": "prompt:4", "do": "memory_error"}),
            plain("bad_load", {"at": "load", "do": "raise"}),
        ]

    local = Bench(tmp_path / "l")
    local.write(methods=methods(local.folder), matrix={"batch_size": [2]}, limits=LIMITS)
    here = local.run()
    sweep.write(methods=methods(sweep.folder))
    sweep.ended(sweep.begin(), here.returncode)
    assert results(sweep) == results(local)
    assert set(sweep.keys().values()) == {1}
    sweep.assert_nothing_left()


def results(bench: Bench) -> tuple[object, object]:
    """How each method ended, and the error of each record."""
    ends = {name: [(end.outcome, told(end.cause)) for end in ends] for name, ends in bench.outcomes().items()}
    errors = {(r["method"], r["prompt_id"]): r["error"]["cls"] for r in bench.records if r.get("error")}
    return ends, errors


def told(cause: Cause | None) -> str:
    return cause.cls if cause else ""


def test_the_time_there_is(sweep: Sweep) -> None:
    slow = {"name": "slow", "base": "scripted", "engine_args": {"token_s": 0.02}}
    sweep.write(methods=[slow], stop_after=2.0, cluster=ONE_SLOT, matrix={"batch_size": [1]})
    assert "stop_after 2s" in sweep.ended(sweep.begin(), EXIT_STOPPED_EARLY)
    sweep.assert_nothing_left()
    sweep.write(methods=[slow], cluster=ONE_SLOT, matrix={"batch_size": [1]})
    sweep.ended(sweep.begin("--resume"))
    sweep.assert_whole(RECORDS)


def test_a_slot_that_can_never_be_had_is_told_before_anything_starts(sweep: Sweep) -> None:
    sweep.write(cluster={"options": ["--constraint=nowhere"]})
    assert "Invalid feature specification" in sweep.ended(sweep.begin(), 2)
    assert not (sweep.run_dir / "journal.jsonl").exists()


def test_a_controller_that_dies_in_mid_run_is_waited_for(sweep: Sweep) -> None:
    sweep.write(methods=[sweep.held("one"), plain("two")], cluster=ONE_SLOT)
    running = sweep.begin()
    (worker,) = sweep.await_held()
    sweep.cluster.kill_controller()
    try:
        os.kill(sweep.outpost(worker), signal.SIGKILL)
        sweep.says(running, "it is asked again")
    finally:
        sweep.cluster.start_controller()
    sweep.ended(running)
    sweep.assert_whole(2 * RECORDS)
    sweep.assert_nothing_left()


def test_a_time_limit_ends_the_run_with_what_it_has(limited: tuple[Sweep, subprocess.Popen[str]]) -> None:
    sweep, running = limited
    assert "no slot is left" in sweep.ended(running, EXIT_STOPPED_EARLY)
    assert sweep.left("slurm0")[0].endswith("ended, told to by SIGTERM: COMPLETED")
    sweep.assert_nothing_left()
    sweep.ended(sweep.begin("--resume"))
    sweep.assert_whole(2 * RECORDS)
    sweep.assert_nothing_left()
