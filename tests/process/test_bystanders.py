"""Whoever is not of the run is never touched: the caller and its children, another run, whatever has a pid again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.events import WorkerLaunched
from orchestrator.reaper import ProcessRef, alive
from orchestrator.stores.home import run_tag_of
from tests.process.disks import done
from tests.process.dying import ROOT
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: What engines do to those around them, and what makes us sweep.
VIOLENT = [
    method("killed", at="batch:1", do="sigkill"),
    method("quits", at="batch:1", do="sigquit_group"),
    {
        "name": "leaves",
        "base": "scripted",
        "engine_args": {
            "faults": [
                {"at": "load", "do": "child_clear_env"},
                {"at": "load", "do": "child_setsid"},
                {"at": "batch:1", "do": "segv"},
            ]
        },
    },
    method("deaf", at="batch:1", do="hang_ignore_term"),
]


def violent(bench: Bench) -> None:
    limits = {"batch_s": 0.5, "terminate_s": 0.2, "drain_s": 1}
    bench.write(methods=VIOLENT, prompts=["a"], matrix={"batch_size": [1]}, limits=limits)


def test_a_program_that_runs_a_sweep_inside_itself(bench: Bench) -> None:
    """Also the shell above it, in the same process group, which goes on with its next command."""
    violent(bench)
    report = bench.folder / "report"
    inner = [sys.executable, "-m", "tests.process.embedding", str(report), *bench.command()[3:]]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@"; echo "the shell goes on: $?"', "sh", *inner],
        cwd=ROOT,
        env={**bench.env, **tags_of_another_run()},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "the shell goes on: 0", done.stdout + done.stderr
    assert json.loads(report.read_text()) == {"code": 1, "sleeping": None, "ended": 7, "group": True, "handler": True}
    bench.assert_clean()


def tags_of_another_run() -> dict[str, str]:
    """As where a coordinator is started from inside a worker."""
    return {"AIRLOCK_RUN": "f" * 16, "AIRLOCK_INCARNATION": "w1-0badcafe", "AIRLOCK_WARDEN_PID": "1"}


def test_tags_in_our_own_environment_reach_no_worker(bench: Bench, fifo: Fifo) -> None:
    bench.write(prompts=["a"], methods=[method("seen", at="batch:1", do="hang", touch=fifo.path)])
    bench.env |= tags_of_another_run()
    running = bench.start()
    worker = fifo.pids(1)["batch:1"]
    assert proc.environ_value(worker, "AIRLOCK_RUN") == run_tag_of(bench.run_dir)
    assert proc.environ_value(worker, "AIRLOCK_WARDEN_PID") != "1"
    running.terminate()
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 143


@contextmanager
def other_run(folder: Path) -> Iterator[tuple[Bench, list[ProcessRef]]]:
    """Of the same user, with the same home and temporary folder, in the middle of a batch until the end."""
    gate = folder / "gate"
    bench = Bench(folder / "other")
    os.mkfifo(gate)
    bench.write(methods=[method("gated", at="batch:2", do="mark", gate=str(gate))], limits={"batch_s": PATIENCE_S})
    running = bench.start()
    fd = os.open(gate, os.O_WRONLY)
    try:
        yield bench, bench.processes()
    finally:
        os.close(fd)
        out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out + err
    assert len([event for event in bench.events if isinstance(event, WorkerLaunched)]) == 1
    assert len(bench.keys()) == 2 * len(PROMPTS)
    bench.assert_clean()


def test_another_run_beside_one_whose_workers_die(bench: Bench) -> None:
    violent(bench)
    with other_run(bench.folder) as (other, theirs):
        assert len(theirs) == 2
        bench.env |= {"TMPDIR": other.env["TMPDIR"], "AIRLOCK_HOME": other.env["AIRLOCK_HOME"]}
        done = bench.run()
        assert done.returncode == 1, done.stderr
        assert not bench.processes()
        assert all(map(alive, theirs))


def test_another_run_beside_one_whose_coordinator_and_wardens_die(bench: Bench, fifo: Fifo) -> None:
    once: dict[str, Any] = {"once": str(bench.folder / "once"), "touch": fifo.path}
    bench.write(methods=[method("killed", at="batch:2", do="hang", **once)])
    with other_run(bench.folder) as (other, theirs):
        bench.env |= {"TMPDIR": other.env["TMPDIR"], "AIRLOCK_HOME": other.env["AIRLOCK_HOME"]}
        running = bench.start()
        fifo.line()
        ours = bench.processes()
        running.send_signal(signal.SIGSTOP)
        for ref in ours:
            os.kill(ref.pid, signal.SIGKILL)
        running.kill()
        running.communicate(timeout=PATIENCE_S)
        wait_gone(ours, GONE_AFTER_KILL_S)
        assert bench.run("--resume").returncode == 0
        assert all(map(alive, theirs))
    assert set(bench.keys().values()) == {1}


def test_another_run_at_the_same_path_in_a_mount_namespace_of_its_own(bench: Bench) -> None:
    """Two containers that share process ids, or two jobs with a /tmp each."""
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    bench.write()
    with other_run(bench.folder) as (other, theirs):
        mount = f"mount --bind '{elsewhere}' '{other.run_dir}'"
        private = ["unshare", "--mount", "--propagation=private", "sh", "-c"]
        if not done(*private, mount):
            pytest.skip("mount namespaces are not permitted here")
        bench.run_dir = other.run_dir
        inner = subprocess.run(
            [*private, f'{mount} && exec "$@"', "sh", *bench.command()],
            env=other.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert inner.returncode == 0, inner.stderr
        assert (elsewhere / "journal.jsonl").exists()
        assert all(map(alive, theirs))


def test_a_namesake_with_a_tag_that_only_looks_alike(bench: Bench) -> None:
    """Survivors are known by the whole of their tag: not by a part of it, not by name, not by what they are told."""
    bench.run_dir.mkdir()
    tag = run_tag_of(bench.run_dir)
    alike: list[dict[str, Any]] = [
        {"env": {"AIRLOCK_RUN": tag[:-1]}},
        {"env": {"AIRLOCK_RUN": f"{tag}0"}},
        {"env": {"NOT_AIRLOCK_RUN": tag}},
        {"env": {"OTHER": f"AIRLOCK_RUN={tag}"}},
        {"env": {}, "executable": "/bin/sleep"},
    ]
    children = [
        subprocess.Popen([f"AIRLOCK_RUN={tag}", "infinity"], **{"executable": "/bin/sleep", **more}) for more in alike
    ]
    try:
        bench.write()
        assert bench.run().returncode == 0
        assert bench.run("--resume").returncode == 0
        assert [child.poll() for child in children] == [None] * len(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
