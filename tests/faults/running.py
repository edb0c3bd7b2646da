"""Runs cells of the matrix in this process, as the coordinator of each, and says what was found.

As a program: names of cells on stdin, one a line; a Found as JSON on stdout for each.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.events import BatchLost, Event, PointEnded, StateChanged, WorkerLaunched, WorkerReleased
from orchestrator.record.replay import replay
from orchestrator.run.sweep import Request, run
from orchestrator.stores.home import run_tag_of
from tests.faults.cells import FAULTY, HEALTHY, Cell, Places, sweep
from tests.faults.found import Ended, Found
from tests.faults.held import Hold, holding
from tests.faults.leaks import Snapshot, left_since

LEAVING = ("draining", "terminating")
CGROUP_VARIABLE = "AIRLOCK_FAULTS_CGROUP"


class Bench:
    """The folder of one process that runs cells one after the other. Each cell has a folder of its own in it."""

    def __init__(self, keep: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="al-f"))
        self._keep = keep
        self._count = 0

    def close(self) -> None:
        if not self._keep:
            shutil.rmtree(self.root, ignore_errors=True)

    def run(self, cell: Cell) -> Found:
        """Never raises: what goes wrong is told in `trouble`."""
        self._count += 1
        places = Places(self.root / str(self._count), os.environ.get(CGROUP_VARIABLE, ""))
        places.tmp.mkdir(parents=True)
        places.sweep_file.write_text(json.dumps(sweep(cell, places)))
        with surroundings(places):
            try:
                found = run_cell(cell, places)
            except Exception:
                found = Found(cell=str(cell), trouble=traceback.format_exc())
        if not self._keep:
            shutil.rmtree(places.root, ignore_errors=True)
        return found


@contextmanager
def surroundings(places: Places) -> Iterator[None]:
    """The variables that the coordinator reads, and a current folder of no meaning."""
    before = {name: os.environ.get(name) for name in ("TMPDIR", "AIRLOCK_HOME")}
    os.environ.update(TMPDIR=str(places.tmp), AIRLOCK_HOME=str(places.home))
    tempfile.tempdir = None  # it is remembered otherwise
    try:
        yield
    finally:
        tempfile.tempdir = None
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def run_cell(cell: Cell, places: Places) -> Found:
    before = Snapshot.take()
    hold = Hold(cell, places)
    began = time.monotonic()
    try:
        with holding(hold):
            code = run(Request(places.sweep_file, run_dir=places.run_dir, view="quiet"))
    finally:
        hold.close()
    wall_s = time.monotonic() - began
    found = read(cell, places, code)
    pids = [pid for _, pid in hold.struck]
    left = left_since(before, places, run_tag_of(places.run_dir), found.incarnations, pids)
    return msgspec.structs.replace(found, struck=len(hold.struck), left=left, wall_s=wall_s)


# --- what the run's own files say ------------------------------------------


def read(cell: Cell, places: Places, code: int) -> Found:
    events = list(replay(places.run_dir).events())
    method = {p["id"]: p["method"] for start in _plan(places)["starts"] for p in start["points"]}
    faulty = {e.incarnation for e in events if isinstance(e, WorkerLaunched) and e.method == FAULTY}
    releases = [e for e in events if isinstance(e, WorkerReleased)]
    asked_s = _asked_s(events)
    records = [json.loads(line) for line in (places.run_dir / "generations.jsonl").read_text().splitlines()]
    mine = [r for r in records if r["method"] == FAULTY]
    first = next((e for e in releases if e.incarnation in faulty), None)
    return Found(
        cell=str(cell),
        pid=os.getpid(),
        uid=os.getuid(),
        kernel=bool(places.cgroup),
        exit_code=code,
        faulty=_outcome(events, method, FAULTY),
        healthy=_outcome(events, method, HEALTHY),
        first=None if first is None else _ended(first),
        workers=len(faulty),
        lost=[(e.cause.cls, e.prompts) for e in events if isinstance(e, BatchLost)],
        good=sorted(r["prompt_id"] for r in mine if not r["error"]),
        errors={r["prompt_id"]: r["error"]["cls"] for r in mine if r["error"]},
        twice=[f"{m} {p}" for (m, p), n in Counter((r["method"], r["prompt_id"]) for r in records).items() if n > 1],
        not_back=[e.incarnation for e in releases if e.reclaim.processes_left or not e.reclaim.returned],
        slowest_s=max((e.reclaim.teardown_s for e in releases), default=0.0),
        beyond_s=max((e.reclaim.teardown_s - asked_s[e.incarnation] for e in releases), default=0.0),
        incarnations=[e.incarnation for e in events if isinstance(e, WorkerLaunched)],
    )


def _asked_s(events: list[Event]) -> dict[str, float]:
    """Seconds that each worker was given to leave by itself, as far as it took them."""
    state: dict[str, str] = {}
    found: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if isinstance(event, StateChanged):
            if state.get(event.incarnation) in LEAVING:
                found[event.incarnation] += event.after_s
            state[event.incarnation] = event.state
    return found


def _plan(places: Places) -> Any:
    return json.loads((places.run_dir / "plan.json").read_text())


def _outcome(events: list[Event], method: dict[str, str], name: str) -> str:
    ended = [e for e in events if isinstance(e, PointEnded) and method[e.point] == name]
    return " ".join(f"{e.outcome}:{e.cause.cls}" if e.cause else e.outcome for e in ended)


def _ended(release: WorkerReleased) -> Ended:
    cause, proof = release.cause, release.reclaim
    return Ended(
        cls=cause.cls if cause else "",
        phase=cause.phase if cause else "",
        message=cause.message if cause else "",
        exit_status=release.exit_status,
        signal=release.signal,
        rung=proof.rung,
        teardown_s=proof.teardown_s,
        strays=list(proof.strays_killed),
        shm_removed=len(proof.shm_removed),
    )


# --- as a program ------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the folders of the cells")
    bench = Bench(parser.parse_args().keep)
    answers = os.fdopen(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3), "wb", buffering=0)
    os.dup2(2, 1)  # the coordinator's own words
    try:
        for line in iter(sys.stdin.readline, ""):
            answers.write(msgspec.json.encode(bench.run(Cell.named(line.strip()))) + b"\n")
    finally:
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
