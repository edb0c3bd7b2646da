"""The adapter on a real cluster. Run by test_slurm.py, inside the namespaces of slurmcluster.py; never collected."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.clusters.slurm import Slurm
from orchestrator.errors import ClusterError
from tests.clusters.desk import Caller, Desk
from tests.clusters.slurmbench import PATIENCE_S, Bench, until
from tests.clusters.slurmcluster import CPUS_PER_NODE, GPUS_PER_NODE

LIMIT_S = 60.0
ON_N1 = "--nodelist=n1"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, str, Caller]]:
    """A job with the shortest time limit there is, begun before all else; most of the minute the others run."""
    made = Bench(tmp_path_factory.mktemp("limited"))
    yield made, *made.begin(made.errand("stubborn", time_limit_s=LIMIT_S, options=("--nodelist=n2",)))
    made.close()


def test_a_healthy_cluster_has_no_objection(bench: Bench) -> None:
    assert bench.slurm.check() == []
    assert bench.slurm.objections(bench.errand(gpus=GPUS_PER_NODE, memory_mib=100, time_limit_s=90)) == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"gpus": GPUS_PER_NODE + 1}, "Requested node configuration is not available"),
        ({"options": ("--gres=rocket:1",)}, "Invalid generic resource (gres) specification"),
        ({"options": ("--partition=nowhere",)}, "invalid partition specified: nowhere"),
        ({"options": ("--nonsense",)}, "unrecognized option '--nonsense'"),
        ({"options": ("--array=1-3",)}, "one errand is one job"),
    ],
)
def test_what_slurm_would_refuse_is_said_before(bench: Bench, wish: Mapping[str, object], words: str) -> None:
    errand = bench.errand(**wish)  # type: ignore[arg-type]
    assert words in "; ".join(bench.slurm.objections(errand))
    with pytest.raises(ClusterError) as raised:
        bench.submit(errand)
    assert words in str(raised.value)


def test_a_job_runs_to_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "7", "SBATCH_ARRAY_INX": "1-3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    cwd = bench.folder / "it's $HOME"
    cwd.mkdir()
    log = bench.folder / "100% of %j \\.log"
    words = ("two words", "$HOME `id` 'x' \"y\"", "line\n#SBATCH --hold", "")
    errand = bench.errand(*words, name="x JobState=COMPLETED", cwd=cwd, log=log, env={"GIVEN": "a 'b'\n$c"})
    job, caller = bench.begin(errand)
    assert caller.hello["argv"] == list(words)
    assert caller.hello["cwd"] == str(cwd)
    assert caller.env["GIVEN"] == "a 'b'\n$c"
    assert not {"SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES", "SBATCH_ARRAY_INX"} & caller.env.keys()
    running = bench.slurm.state(job)
    assert (running.state, running.node, running.restarts) == ("running", caller.env["SLURMD_NODENAME"], 0)
    caller.tell("exit 3")
    assert caller.word() == "gone"
    ended = bench.ended(job)
    assert ended.reason == "FAILED: NonZeroExitCode"
    assert log.read_text() == f"run of {list(words)}\n"
    assert bench.slurm.notes == ["not handed on to jobs: SBATCH_ARRAY_INX"]


def test_a_success_is_told_from_a_failure(bench: Bench) -> None:
    job, caller = bench.begin(bench.errand())
    caller.tell("exit 0")
    assert bench.ended(job).reason == "COMPLETED"


def test_each_job_sees_the_gpus_it_was_granted(bench: Bench) -> None:
    one, two = (bench.begin(bench.errand(gpus=1, options=(ON_N1,)))[1] for _ in range(2))
    both = bench.begin(bench.errand(gpus=2, options=("--nodelist=n2",)))[1]
    none = bench.begin(bench.errand(options=(ON_N1,)))[1]
    assert {one.env["CUDA_VISIBLE_DEVICES"], two.env["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
    assert both.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in none.env
    waiting = bench.submit(bench.errand(gpus=1))
    found = bench.sighted(waiting, lambda found: found.reason not in ("", "Priority"))
    assert (found.state, found.node, found.reason) == ("pending", "", "Resources")


def test_a_job_that_can_not_begin_ends(bench: Bench) -> None:
    unwritable = bench.submit(bench.errand(log=bench.folder / "none" / "log"))
    astray = bench.submit(bench.errand(cwd=bench.folder / "none"))
    assert bench.ended(unwritable).reason == "FAILED: JobLaunchFailure"
    assert bench.ended(astray).reason == "FAILED: NonZeroExitCode"
    assert "none" in (bench.folder / "log").read_text()


def test_stop_asks_first_and_may_be_said_twice(bench: Bench) -> None:
    job, caller = bench.begin(bench.errand())
    bench.slurm.stop(job)
    assert [caller.word(), caller.word()] == ["SIGTERM", "gone"]
    assert bench.ended(job).reason == "CANCELLED"
    bench.slurm.stop(job)
    bench.slurm.hasten(job)


def test_stop_ends_what_does_not_listen(bench: Bench) -> None:
    job, caller = bench.begin(bench.errand("stubborn"))
    bench.slurm.stop(job)
    assert caller.word() == "SIGTERM"
    assert bench.slurm.state(job).state == "running"
    assert caller.word() == "gone"
    assert bench.ended(job).reason == "CANCELLED"


def test_stop_of_a_job_that_waits(bench: Bench) -> None:
    job = bench.submit(bench.errand(options=("--begin=now+1hour",)))
    assert bench.slurm.state(job).state == "pending"
    bench.slurm.stop(job)
    assert bench.ended(job).reason == "CANCELLED: BeginTime"


def test_a_job_that_slurm_does_not_know(bench: Bench) -> None:
    found = bench.slurm.state("999999")
    assert (found.state, found.reason) == ("ended", "slurm_load_jobs error: Invalid job id specified")
    bench.slurm.stop("999999")
    for wrong in (bench.slurm.state, bench.slurm.stop):
        with pytest.raises(ClusterError, match=r"(?i)job ?id"):
            wrong("nonsense")


def test_a_requeued_job_waits_unless_it_is_hastened(bench: Bench) -> None:
    job, first = bench.begin(bench.errand())
    subprocess.run(["scontrol", "requeue", job], check=True)
    assert [first.word(), first.word()] == ["SIGTERM", "gone"]
    held = bench.sighted(job, lambda found: found.state == "pending")
    assert (held.restarts, held.reason, held.node) == (1, "BeginTime", "")
    bench.slurm.hasten(job)
    second = bench.desk.caller()
    assert (second.env["SLURM_JOB_ID"], second.env["SLURM_RESTART_COUNT"]) == (job, "1")
    again = bench.slurm.state(job)
    assert (again.state, again.restarts) == ("running", 1)
    bench.slurm.hasten(job)
    assert second.lives()
    assert (bench.folder / "log").read_text().count("run of []\n") == 2


def test_a_job_of_more_weight_takes_the_place_of_another(bench: Bench) -> None:
    job, victim = bench.begin(bench.errand(cpus=CPUS_PER_NODE, options=(ON_N1,)))
    urgent = bench.submit(bench.errand(cpus=CPUS_PER_NODE, options=(ON_N1, "--partition=urgent")))
    assert [victim.word(), victim.word()] == ["SIGTERM", "gone"]
    found = bench.sighted(job, lambda found: found.state == "pending")
    assert (found.restarts, found.reason) == (1, "BeginTime")
    assert bench.desk.caller().env["SLURM_JOB_ID"] == urgent
    assert "DUE TO PREEMPTION" in (bench.folder / "log").read_text()


def test_secrets_are_seen_by_nobody_else(bench: Bench) -> None:
    secret = secrets.token_hex(16)
    job, caller = bench.begin(bench.errand(env={"SECRET": secret}))
    assert caller.env["SECRET"] == secret
    for words in (["show", "job", "-dd", job], ["write", "batch_script", job, "-"]):
        shown = subprocess.run(["scontrol", *words], check=True, capture_output=True, text=True).stdout
        assert Desk.argv()[0] in shown or f"JobId={job}" in shown
        assert secret not in shown
    assert secret not in str(bench.slurm.state(job))
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and secret in command_line(pid)] == []
    holding = [
        path for path in bench.cluster.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert holding, "Slurm keeps the environment of a job somewhere"
    assert [path for path in holding if open_to_others(path)] == []


def command_line(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def test_a_controller_that_does_not_answer(bench: Bench) -> None:
    job, caller = bench.begin(bench.errand())
    controller = int((bench.cluster.folder / "slurmctld.pid").read_text())
    hasty = Slurm(call_s=0.5)
    os.kill(controller, signal.SIGSTOP)
    try:
        for call in (hasty.state, hasty.stop, hasty.hasten):
            with pytest.raises(ClusterError, match="gave no answer within"):
                call(job)
        assert hasty.check() == ["scontrol gave no answer within 0.5 s"]
    finally:
        os.kill(controller, signal.SIGCONT)
    assert bench.slurm.check() == []
    assert caller.word() in ("SIGTERM", "gone")  # what was asked of it stands, answer or not


def test_a_lost_node_starts_a_job_twice(bench: Bench) -> None:
    """Its slurmd is gone, its processes are not: a Sighting tells of the second run alone."""
    job, first = bench.begin(bench.errand())
    node = bench.slurm.state(job).node
    bench.cluster.kill_node(node)
    lost = bench.sighted(job, lambda found: found.restarts == 1)
    assert (lost.state, lost.node) == ("pending", "")
    assert first.lives()
    bench.slurm.hasten(job)
    second = bench.desk.caller()
    assert (second.env["SLURM_JOB_ID"], second.env["SLURM_RESTART_COUNT"]) == (job, "1")
    found = bench.slurm.state(job)
    assert (found.state, found.restarts) == ("running", 1)
    assert found.node != node
    assert first.lives()
    bench.cluster.start_node(node)  # which ends what it finds of the earlier run, without SIGTERM
    assert first.word() == "gone"
    assert second.lives()
    until(bench.cluster.node_states, lambda states: states[node] == "IDLE")


def test_a_time_limit_is_announced(limited: tuple[Bench, str, Caller]) -> None:
    bench, job, caller = limited
    told = caller.says()
    assert told["word"] == "SIGTERM"
    assert bench.slurm.state(job).state == "running"
    assert caller.lives()
    assert caller.word(2 * PATIENCE_S) == "SIGTERM"  # the limit itself
    assert caller.word() == "gone"
    assert time.monotonic() - told["at_s"] > LIMIT_S / 4
    assert bench.ended(job).reason == "TIMEOUT: TimeLimit"
