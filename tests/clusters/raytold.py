"""Runs a file of cases inside the cluster of `raycluster`, and says what came of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.clusters import raycluster

Told = Mapping[str, list[str]]


def cases(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name.startswith("test_")]


def told(module: ModuleType, folder: Path, env: Mapping[str, str], timeout_s: float) -> Told:
    """By case: "" for each run of it that passed, else what it said."""
    if reason := raycluster.why_not():
        (pytest.fail if os.environ.get("AIRLOCK_TEST_RAY") == "required" else pytest.skip)(reason)
    found = folder / "found.xml"
    inner = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={found}"]
    done = subprocess.run(
        raycluster.command(*inner, f"--basetemp={folder / 'inside'}", str(module.__file__)),
        cwd=raycluster.REPO,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert found.exists(), done.stdout + done.stderr
    return read(found)


def read(path: Path) -> Told:
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        said = [str(one.text) for one in case if one.tag in ("failure", "error", "skipped")]
        found.setdefault(case.attrib["name"].partition("[")[0], []).append("\n".join(said))
    return found


def hold(case: str, told: Told) -> None:
    said = told.get(case, ["it was not run"])
    assert not any(said), "\n".join(said)
