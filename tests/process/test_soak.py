"""A short soak, and that its audit sees what it is there to see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from orchestrator.events import WorkerLaunched
from orchestrator.stores.home import run_tag_of
from tests.process.dying import ROOT
from tests.process.sweeping import PATIENCE_S, Bench
from tests.soak.audit import Audit, living
from tests.soak.sweeps import random_sweep
from tests.soak.violence import random_acts

pytestmark = pytest.mark.usefixtures("nothing_leaked")

SEED = 3
MINUTES = 0.05


def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    """As scripts/soak runs it; what it leaves behind shows up as leaked from this test."""
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES), "--seed", str(SEED)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(re.findall(r"^(losses|duplicates|leaks|other faults): (\d+)$", done.stdout, re.MULTILINE))
    assert told == {"losses": "0", "duplicates": "0", "leaks": "0", "other faults": "0"}
    found = re.search(r"^seed 3: (\d+) sweeps in (\d+) lives", done.stdout, re.MULTILINE)
    assert found
    assert int(found[1]) >= 4
    assert int(found[2]) > int(found[1])
    assert "slowest teardown of a worker: " in done.stdout
    assert not list(tmp_path.iterdir())


def test_all_choices_come_from_the_seed(tmp_path: Path) -> None:
    def chosen(seed: str) -> object:
        rng = Random(seed)
        return random_sweep(rng, tmp_path), random_acts(rng), random_acts(rng)

    assert chosen("1-1") == chosen("1-1")
    assert chosen("1-1") != chosen("1-2")


@pytest.fixture
def audited(tmp_path: Path) -> tuple[Bench, Audit]:
    bench = Bench(tmp_path)
    bench.write(methods=["scripted", {"name": "broken", "base": "scripted", "engine_args": {"fault": BROKEN}}])
    assert bench.run().returncode == 1
    audit = Audit(bench.run_dir)
    audit.after_a_life()
    assert audit.problems == []
    return bench, audit


BROKEN = {"at": "load", "do": "raise"}


def test_a_run_in_order_passes(audited: tuple[Bench, Audit]) -> None:
    bench, audit = audited
    audit.at_the_end(untouched=["scripted"])
    audit.resources(bench.tmp, run_tag_of(bench.run_dir))
    assert audit.problems == []
    assert len(audit.committed) == len(bench.records)


def test_a_commit_that_vanished_is_a_loss(audited: tuple[Bench, Audit]) -> None:
    bench, audit = audited
    journal = bench.run_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"batch_committed"' in line)
    journal.write_bytes(b"".join(lines[:last]))
    audit.after_a_life()
    assert audit.lost
    audit.at_the_end(untouched=[])
    assert any("has no outcome" in line for line in audit.lost)


def test_a_vanished_journal_is_a_loss(audited: tuple[Bench, Audit]) -> None:
    bench, audit = audited
    (bench.run_dir / "journal.jsonl").unlink()
    audit.after_a_life()
    assert len(audit.lost) == len(bench.records)


def test_a_record_that_changed_is_a_loss_and_one_that_is_wrong_is_seen(audited: tuple[Bench, Audit]) -> None:
    _, audit = audited
    key, (ids, text, error) = next(iter(audit.committed.items()))
    audit.committed[key] = ([*ids, 1], text, error)
    audit.after_a_life()
    assert audit.lost == [f"{key} has changed"]
    audit.committed[key] = ([*ids, 1], text, error)
    audit.at_the_end(untouched=[])
    assert audit.wrong == [f"{key} is not what an unbroken run gives"]


def test_a_record_of_an_ok_point_that_is_missing_is_a_loss(audited: tuple[Bench, Audit]) -> None:
    _, audit = audited
    key = next(iter(audit.committed))
    del audit.committed[key]
    audit.at_the_end(untouched=[])
    assert audit.lost == [f"{key} is missing though its point is ok"]


def test_a_line_too_many_is_a_duplicate(audited: tuple[Bench, Audit]) -> None:
    bench, audit = audited
    with (bench.run_dir / "generations.jsonl").open("ab") as file:
        file.write(b"{}\n")
    audit.at_the_end(untouched=[])
    assert len(audit.twice) == 1


def test_a_failure_of_what_was_left_alone_is_seen(audited: tuple[Bench, Audit]) -> None:
    _, audit = audited
    audit.at_the_end(untouched=["broken"])
    assert audit.wrong
    assert all(line.startswith("broken failed though nothing was done to it") for line in audit.wrong)


def test_what_is_left_is_seen(audited: tuple[Bench, Audit]) -> None:
    bench, audit = audited
    tag = run_tag_of(bench.run_dir)
    incarnation = next(event.incarnation for event in bench.events if isinstance(event, WorkerLaunched))
    segment = Path(f"/dev/shm/airlock-scripted-{incarnation}")
    (bench.tmp / "al-something").mkdir()
    segment.touch()
    try:
        with subprocess.Popen(["sleep", "infinity"], env={"AIRLOCK_RUN": tag}) as sleeping:
            audit.resources(bench.tmp, tag)
            sleeping.kill()
    finally:
        segment.unlink()
    assert audit.left == [
        f"process {sleeping.pid} sleep",
        "temporary al-something",
        f"shared memory {segment.name}",
    ]
    assert living(tag) == []
