"""What the Ray back end promises, on the cluster of `raycluster`; test_ray.py runs this inside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.clusters.base import Errand, Sighting
from orchestrator.clusters.ray_cluster import RayCluster
from orchestrator.errors import ClusterError
from orchestrator.launcher import Launcher
from orchestrator.reaper import ProcessRef, Reaper, alive, send
from tests.clusters.raycluster import ADDRESS, GPU_OF, HEAD, SECOND, START_S, Nodes, ray_python, until
from tests.process.launching import PATIENCE_S, TREE, Fifo, watched

pytestmark = pytest.mark.usefixtures("nothing_leaked")

KINDS = ("plain", "setsid", "daemon", "clean", "stubborn")
GONE_S = 8.0  # Ray's own time, the warden's two seconds of grace, and a moment


@dataclass
class Bench:
    cluster: RayCluster
    folder: Path
    run_tag: str
    fifo: Fifo
    nodes: Nodes

    def errand(self, *argv: str, on: str = SECOND, **more: Any) -> Errand:
        return Errand("errand", argv, {"GIVEN": "yes"}, self.folder, self.folder / "log", options=(f"{on}=1",), **more)

    def tree(self, leader: str = "polite", **more: Any) -> str:
        """The job of an errand with descendants of every kind, all of them there."""
        job = self.cluster.submit(self.errand(*self.tree_argv(leader), **{"gpus": 1, **more}))
        self.all_there()
        return job

    def all_there(self) -> None:
        self.fifo.pids(1 + len(KINDS))

    def tree_argv(self, leader: str) -> list[str]:
        return [sys.executable, "-I", "-S", TREE, self.fifo.path, leader, *KINDS]

    def of(self, job: str) -> dict[int, str]:
        """Its processes on any node, the warden among them, by this namespace's pids."""
        found = proc.table().values()
        return {one.pid: one.name for one in found if proc.belongs(one.pid, self.run_tag, job) and not one.dead}

    @contextmanager
    def going(self, job: str) -> Iterator[None]:
        """All that the errand has is gone soon after what the block does."""
        there = self.of(job)
        assert len(there) == 2 + len(KINDS), there
        with watched(there) as still:
            yield
            assert not {pid: there[pid] for pid in still(GONE_S)}
        assert not self.of(job)

    def ray_worker(self, job: str) -> ProcessRef:
        """The process of the errand's actor. Ray names it after the class."""
        found = [one for one in proc.table().values() if "ray::Tether" in " ".join(proc.cmdline(one.pid))]
        assert len(found) == 1, (job, found)
        return proc.ref(found[0])

    def driver(self) -> ProcessRef:
        found = (one for one in proc.table().values() if "ray_driver.py" in " ".join(proc.cmdline(one.pid)))
        return next(proc.ref(one) for one in found if not one.dead)

    def ended(self, job: str, timeout_s: float = PATIENCE_S) -> Sighting:
        return self.reaches(job, "ended", timeout_s)

    def reaches(self, job: str, state: str, timeout_s: float = PATIENCE_S) -> Sighting:
        until(lambda: self.cluster.state(job).state == state, state, timeout_s)
        return self.cluster.state(job)


@pytest.fixture
def bench(nothing_leaked: None, run_tag: str, tmp_path: Path) -> Iterator[Bench]:  # noqa: ARG001
    fifo = Fifo(tmp_path / "fifo")
    with connected(run_tag, tmp_path) as cluster:
        yield Bench(cluster, tmp_path, run_tag, fifo, Nodes())
    fifo.close()


@contextmanager
def connected(run_tag: str, folder: Path, **more: Any) -> Iterator[RayCluster]:
    given = {"address": ADDRESS, "python": str(ray_python()), **more}
    cluster = RayCluster(Launcher(), run_tag, folder / "driver.log", **given)
    yield cluster
    cluster.close()


def test_it_can_be_used(bench: Bench) -> None:
    assert bench.cluster.check() == []


def test_an_errand_runs_to_its_end(bench: Bench) -> None:
    (bench.folder / "log").write_text("before\n")
    code = "import os, sys; print(sys.stdin.read(), os.getcwd(), os.environ['GIVEN']); sys.exit(3)"
    job = bench.cluster.submit(bench.errand(sys.executable, "-c", code))
    ended = bench.ended(job)
    assert (ended.reason, ended.seen["code"]) == ("exit code 3", "3")
    assert ended.node
    assert (bench.folder / "log").read_text() == f"before\n {bench.folder} yes\n"
    bench.cluster.stop(job)
    assert bench.cluster.state(job) == ended


def test_what_cannot_be_started_says_why(bench: Bench) -> None:
    assert "No such file or directory: '/no/such'" in bench.ended(bench.cluster.submit(bench.errand("/no/such"))).reason


def test_a_log_that_the_node_cannot_write_says_so(bench: Bench) -> None:
    errand = replace(bench.errand("touch", "began"), log=bench.folder / "none" / "log")
    assert "none/log" in bench.ended(bench.cluster.submit(errand)).reason
    assert not (bench.folder / "began").exists()


@pytest.mark.parametrize(
    ("gpus", "seen"), [(0, "CUDA_VISIBLE_DEVICES="), (1, f"CUDA_VISIBLE_DEVICES={GPU_OF[SECOND]}")]
)
def test_only_what_was_granted_is_seen(bench: Bench, gpus: int, seen: str) -> None:
    bench.ended(bench.cluster.submit(bench.errand("env", gpus=gpus)))
    env = (bench.folder / "log").read_text().splitlines()
    assert seen in env
    assert not [line for line in env if line.startswith(("OMP_NUM_THREADS=", "RAY_", "PYTHONBREAKPOINT="))]


def test_one_waits_for_what_another_has_and_gets_it_once_nothing_of_that_is_left(bench: Bench) -> None:
    first = bench.tree()
    second = bench.cluster.submit(bench.errand("sh", "-c", "exit 0", gpus=1))
    waiting = bench.cluster.state(second)
    assert waiting.state == "pending"
    assert "needs GPU 1" in waiting.reason
    with bench.going(first):
        bench.cluster.stop(first)
        bench.reaches(second, "ended")
        assert not bench.of(first)


def test_one_that_waits_can_be_stopped(bench: Bench) -> None:
    first = bench.tree()
    second = bench.cluster.submit(bench.errand("touch", "began", gpus=1))
    bench.cluster.stop(second)
    bench.ended(second)
    with bench.going(first):
        bench.cluster.stop(first)
    bench.ended(first)
    assert not (bench.folder / "began").exists()


def test_stop_is_sigterm_first_and_may_be_said_again(bench: Bench) -> None:
    job = bench.tree()
    with bench.going(job):
        bench.cluster.stop(job)
        assert bench.fifo.line().startswith("term ")
        bench.cluster.stop(job)
    assert bench.ended(job).reason == "exit code 0"
    bench.cluster.stop(job)


def test_who_ignores_sigterm_is_killed(bench: Bench) -> None:
    bench.cluster.grace_s = 0.5
    job = bench.tree("stubborn")
    with bench.going(job):
        bench.cluster.stop(job)
        assert bench.fifo.line().startswith("term ")
    assert bench.ended(job).reason == "killed by SIGKILL"


def test_a_time_limit_is_kept(bench: Bench) -> None:
    job = bench.tree(time_limit_s=1.0)
    assert bench.ended(job).reason == "exit code 0"
    assert not bench.of(job)


def test_another_process_can_ask_and_stop(bench: Bench, run_tag: str) -> None:
    job = bench.tree()
    with connected(run_tag, bench.folder) as other, bench.going(job):
        assert other.state(job).state == "running"
        other.stop(job)
        until(lambda: other.state(job).state == "ended", "end", PATIENCE_S)
        other.stop(job)


def test_close_ends_what_runs(bench: Bench, run_tag: str) -> None:
    job = bench.tree()
    with bench.going(job):
        bench.cluster.close()
    with pytest.raises(ClusterError, match="let go of"):
        bench.cluster.state(job)
    with connected(run_tag, bench.folder) as other:
        assert other.state(job).state == "ended"


def test_close_ends_a_call_under_way(bench: Bench) -> None:
    """Calls come from another thread than the end does."""
    said: list[str] = []

    def ask() -> None:
        try:
            bench.cluster.nodes()
        except ClusterError as error:
            said.append(str(error))

    bench.cluster.nodes()
    driver = bench.driver()
    send(driver, signal.SIGSTOP)
    asking = threading.Thread(target=ask)
    asking.start()
    until(bench.cluster._asking.locked, "call", PATIENCE_S)
    bench.cluster.close()
    asking.join()
    assert "Ray's driver ended" in said[0]
    assert not alive(driver)


def test_the_driver_is_killed(bench: Bench) -> None:
    job = bench.tree()
    driver = bench.driver()
    with bench.going(job):
        send(driver, signal.SIGKILL)
        until(lambda: is_lost(bench, job), "word of it", PATIENCE_S)
    assert bench.ended(job)


def is_lost(bench: Bench, job: str) -> bool:
    """A call that was under way complains; the driver that follows knows nothing of the job."""
    try:
        return bench.cluster.state(job).state != "running"
    except ClusterError as exc:
        return "Ray's driver ended" in str(exc)


def test_the_ray_worker_is_killed(bench: Bench) -> None:
    job = bench.tree()
    with bench.going(job):
        os.kill(bench.ray_worker(job).pid, signal.SIGKILL)
    assert "actor" in bench.ended(job).reason


def test_a_ray_worker_that_is_stopped_can_still_be_stopped(bench: Bench) -> None:
    job = bench.tree()
    with bench.going(job):
        os.kill(bench.ray_worker(job).pid, signal.SIGSTOP)
        assert bench.cluster.state(job).state == "unknown"
        bench.cluster.stop(job)


@pytest.fixture
def caller(bench: Bench) -> Iterator[subprocess.Popen[str]]:
    words = ["-m", "tests.clusters.raycaller", str(bench.folder), bench.run_tag, *bench.tree_argv("polite")]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()
    Reaper(bench.run_tag).sweep()  # its driver's warden ends as a child of ours


def submitted(bench: Bench, caller: subprocess.Popen[str]) -> str:
    assert caller.stdout
    said, _, job = caller.stdout.readline().strip().partition(" ")
    assert said == "submitted"
    bench.all_there()
    return job


def test_the_caller_is_killed(bench: Bench, caller: subprocess.Popen[str]) -> None:
    job = submitted(bench, caller)
    with bench.going(job):
        caller.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_the_callers_signals_are_its_own(bench: Bench, caller: subprocess.Popen[str], signum: signal.Signals) -> None:
    job = submitted(bench, caller)
    assert caller.stdout
    caller.send_signal(signum)
    assert caller.stdout.readline() == f"{signum.name} running\n"
    with bench.going(job):
        caller.send_signal(signum)
        assert caller.wait(PATIENCE_S) == 0


def test_a_token_that_is_missing_is_told(bench: Bench, run_tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    with connected(run_tag, bench.folder) as stranger:
        assert "no authentication token was found" in stranger.check()[0]


def without_packages(folder: Path) -> str:
    venv.create(folder / "bare", symlinks=True)
    return str(folder / "bare" / "bin" / "python")


def test_why_it_cannot_be_used(bench: Bench, run_tag: str) -> None:
    with connected(run_tag, bench.folder, address="127.0.0.1:1") as nowhere:
        (reason,) = nowhere.check()
        assert "127.0.0.1:1" in reason
    with connected(run_tag, bench.folder, python="/no/python") as no_python:
        assert "/no/python" in no_python.check()[0]
    with connected(run_tag, bench.folder, python=without_packages(bench.folder)) as no_ray:
        assert "Ray is not installed" in no_ray.check()[0]
    with connected(run_tag, bench.folder, address="ray://127.0.0.1:10001") as client:
        assert "client protocol" in client.check()[0]


def test_what_no_node_has_is_refused(bench: Bench) -> None:
    assert bench.cluster.objections(bench.errand("true", gpus=1)) == []
    assert bench.cluster.objections(bench.errand("true", gpus=2)) == ["no node has GPU 2 (the most: 1)"]
    both = Errand("both", ("true",), {}, bench.folder, bench.folder / "log", options=(f"{HEAD}=1", f"{SECOND}=1"))
    assert bench.cluster.objections(both) == ["no node has all of one 1, two 1"]
    assert bench.cluster.objections(bench.errand("true", on="gold")) == ["no node has gold 1 (the most: 0)"]


def test_what_no_node_has_any_more_is_waited_for(bench: Bench) -> None:
    job = bench.cluster.submit(bench.errand("true", on="gold"))
    assert bench.cluster.state(job).state == "pending"
    bench.cluster.stop(job)
    bench.ended(job)


# The last ones: each takes the second node down.


@pytest.fixture
def node_to_lose(bench: Bench) -> Iterator[ProcessRef]:
    second = bench.nodes.second()
    yield second
    send(second, signal.SIGKILL)
    until(lambda: bench.nodes.replaced(second), "second node", START_S)
    until(lambda: sum(SECOND in node for node in bench.cluster.nodes()) == 1, "end of the old one", START_S)


@pytest.mark.usefixtures("node_to_lose")
def test_the_raylet_is_killed(bench: Bench) -> None:
    """Its Ray workers notice and end."""
    job = bench.tree()
    with bench.going(job):
        os.kill(bench.nodes.raylet().pid, signal.SIGKILL)
    bench.reaches(job, "unknown")


@pytest.mark.usefixtures("node_to_lose")
def test_the_raylet_is_killed_and_its_ray_worker_later(bench: Bench) -> None:
    job = bench.tree()
    there, worker, raylet = bench.of(job), bench.ray_worker(job), bench.nodes.raylet()
    os.kill(worker.pid, signal.SIGSTOP)  # so that it notices nothing
    os.kill(raylet.pid, signal.SIGKILL)
    bench.reaches(job, "unknown")
    bench.cluster.stop(job)
    assert bench.of(job) == there
    with bench.going(job):
        os.kill(worker.pid, signal.SIGKILL)


def test_the_whole_node_is_killed(bench: Bench, node_to_lose: ProcessRef) -> None:
    job = bench.tree()
    with bench.going(job):
        os.kill(node_to_lose.pid, signal.SIGKILL)
    bench.reaches(job, "unknown")
