"""What outlives a coordinator: nothing for long while a warden lives, and else only until the next start."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from orchestrator import proc
from orchestrator.events import SurvivorsReaped
from orchestrator.reaper import ProcessRef, alive
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: Each in its own way hard to attribute once its parents are gone; see `workers.backends.scripted_children`.
KINDS = ["child_plain", "child_ignore_term", "child_setsid", "child_double_fork", "child_renamed", "child_clear_env"]


def begin(bench: Bench, fifo: Fifo, do: str, **more: str) -> tuple[subprocess.Popen[str], list[ProcessRef], ProcessRef]:
    """A coordinator, its wardens, and the child of its worker, which then hangs."""
    once = {"once": str(bench.folder / "a"), "touch": fifo.path, **more}
    hang = {"at": "batch:2", "do": "hang_ignore_term", "once": str(bench.folder / "b"), "touch": fifo.path}
    faults = [{"at": "load", "do": do, **once}, hang]
    bench.write(methods=[{"name": "parent", "base": "scripted", "engine_args": {"faults": faults}}])
    running = bench.start()
    child = reference(fifo.pids(1)["load"])
    fifo.line()
    wardens = [ref for ref in bench.processes() if any(arg.endswith("warden.py") for arg in proc.cmdline(ref.pid))]
    assert len(wardens) == 1
    return running, wardens, child


def reference(pid: int) -> ProcessRef:
    one = proc.stat(pid)
    assert one is not None
    return proc.ref(one)


def kill_both(running: subprocess.Popen[str], wardens: list[ProcessRef]) -> None:
    running.send_signal(signal.SIGSTOP)  # else it would sweep as soon as the warden is gone
    for ref in wardens:
        os.kill(ref.pid, signal.SIGKILL)
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    wait_gone(wardens, GONE_AFTER_KILL_S)


def finish(bench: Bench) -> None:
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert set(bench.keys().values()) == {1}
    assert len(bench.keys()) == 2 * len(PROMPTS)


@pytest.mark.parametrize("do", KINDS)
def test_the_next_start_ends_what_a_killed_coordinator_and_warden_left(bench: Bench, fifo: Fifo, do: str) -> None:
    running, wardens, child = begin(bench, fifo, do)
    worker = [ref for ref in bench.processes() if ref not in (*wardens, child)]
    kill_both(running, wardens)
    wait_gone(worker, GONE_AFTER_KILL_S)  # tied to its warden
    assert alive(child)
    finish(bench)
    assert not alive(child)
    wait_gone([child], 0)
    (told,) = [event for event in bench.events if isinstance(event, SurvivorsReaped)]
    assert str(child.pid) in {line.split()[0] for line in told.processes}
    bench.assert_clean()


@pytest.mark.parametrize("stopped", ["warden", "warden and worker", "all"])
def test_a_stopped_warden_wakes_when_its_coordinator_is_killed(bench: Bench, fifo: Fifo, stopped: str) -> None:
    running, wardens, child = begin(bench, fifo, "child_clear_env")
    left = [*bench.processes(), child]
    if stopped == "all":
        running.send_signal(signal.SIGSTOP)
    for ref in wardens if stopped == "warden" else left:
        os.kill(ref.pid, signal.SIGSTOP)
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    finish(bench)


@pytest.mark.parametrize("also", ["nobody", "warden"])
def test_a_survivor_that_holds_the_runs_lock_is_ended_first(bench: Bench, fifo: Fifo, also: str) -> None:
    """It waits for the lock while the run goes on, and gets it the moment the coordinator is killed."""
    running, wardens, child = begin(bench, fifo, "child_hold_lock", path=str(bench.run_dir / "lock"))
    left = [*bench.processes(), child]
    if also == "warden":
        kill_both(running, wardens)
    else:
        running.kill()
        running.communicate(timeout=PATIENCE_S)
    finish(bench)
    wait_gone(left, 0)
    bench.assert_clean()


def test_a_lock_of_a_living_coordinator_costs_its_workers_nothing(bench: Bench, fifo: Fifo) -> None:
    running, _, child = begin(bench, fifo, "child_plain")
    left = [*bench.processes(), child]
    refused = bench.run("--resume")
    assert refused.returncode == 2
    assert f"in use by process {running.pid}" in refused.stderr
    assert all(map(alive, left))
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)
    bench.assert_clean()
