"""Whole sweeps on a Slurm cluster of the tests' own, and what may befall them there (slurm_sweeps.py).

Without Slurm, or the right to make namespaces, these are skipped; where AIRLOCK_TEST_CLUSTERS is "required" they fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clusters import slurm_sweeps, slurmcluster

pytestmark = pytest.mark.usefixtures("nothing_leaked")
ALL_S = 600.0
CASES = [name for name in vars(slurm_sweeps) if name.startswith("test_")]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By case: "" for each run of it that passed, else what it said."""
    if reason := slurmcluster.why_not():
        (pytest.fail if os.environ.get("AIRLOCK_TEST_CLUSTERS") == "required" else pytest.skip)(reason)
    found = tmp_path_factory.mktemp("slurm") / "found.xml"
    words = ["-q", "-p", "no:cacheprovider", "--basetemp", str(slurmcluster.FOLDER / "t"), f"--junit-xml={found}"]
    inner = [sys.executable, "-m", "pytest", *words, slurm_sweeps.__file__]
    done = subprocess.run(
        slurmcluster.command(*inner),
        cwd=slurmcluster.REPO,
        capture_output=True,
        text=True,
        timeout=ALL_S,
        check=False,
    )
    assert found.exists(), done.stdout + done.stderr
    return read(found)


def read(path: Path) -> dict[str, list[str]]:
    cases: dict[str, list[str]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        said = [str(one.text) for one in case if one.tag in ("failure", "error", "skipped")]
        cases.setdefault(case.attrib["name"].partition("[")[0], []).append("\n".join(said))
    return cases


@pytest.mark.parametrize("case", CASES)
def test_a_sweep_on_slurm(case: str, told: dict[str, list[str]]) -> None:
    said = told.get(case, ["it was not run"])
    assert not any(said), "\n".join(said)
