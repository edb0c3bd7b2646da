"""The Slurm back end on a cluster of its own; what is tested there stands in slurm_inside.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import proc
from tests.clusters import slurmcluster

pytestmark = pytest.mark.usefixtures("nothing_leaked")

INSIDE = str(Path(__file__).with_name("slurm_inside.py"))
MOST_S = 240


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := slurmcluster.why_not():
        (pytest.fail if os.environ.get("AIRLOCK_TEST_CLUSTERS") == "required" else pytest.skip)(reason)


def run_inside(*selection: str, proctrack: str = "linuxproc") -> None:
    folder = str(slurmcluster.FOLDER / "t")
    words = ["-q", "-p", "no:cacheprovider", "--basetemp", folder, INSIDE, *selection]
    command = slurmcluster.command(sys.executable, "-m", "pytest", *words, proctrack=proctrack)
    done = subprocess.run(command, cwd=slurmcluster.REPO, capture_output=True, text=True, timeout=MOST_S, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_on_a_cluster() -> None:
    run_inside()


def test_stopping_where_processes_are_known_by_their_group() -> None:
    run_inside("-k", "stop", proctrack="pgid")


def test_a_failure_inside_is_told() -> None:
    with pytest.raises(AssertionError, match="exit 5"):
        run_inside("-k", "no_such_test")


def test_the_cluster_dies_with_its_command() -> None:
    """Also when that is killed; `nothing_leaked` looks for what is left."""
    command = slurmcluster.command("sh", "-c", "echo up; exec sleep infinity")
    with subprocess.Popen(command, cwd=slurmcluster.REPO, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == "up\n"
        inside = list(proc.descendants([harness.pid], proc.table()))
        harness.kill()
    assert {"munged", "slurmctld", "slurmd"} <= {one.name for one in inside}
    assert {"sh", "sleep"} & {one.name for one in inside}, "it has said its word, and is the other in a moment"
    (first,) = (one.pid for one in inside if one.ppid == harness.pid)
    os.waitpid(first, 0)  # an orphan of ours now, and the last of the namespace to end
