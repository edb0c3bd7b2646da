"""One round: a random sweep, killed again and again at random, resumed until it is done, and examined."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from orchestrator import proc
from orchestrator.proc import ProcessRef
from orchestrator.record.replay import JOURNAL_NAME
from orchestrator.stores.home import run_tag_of
from tests.soak.audit import Audit, living
from tests.soak.sweeps import is_healthy, random_sweep
from tests.soak.violence import Act, perform, random_acts, targets

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0
#: The promise for a killed coordinator, and how often we look.
GONE_AFTER_KILL_S, LOOK_S = 5.0, 0.02
#: For a worker to come up, or a child of it, if there is to be one.
APPEARS_S = 3.0
MOST_LIVES, CALM_LIVES = 4, 3
DONE = (0, 1)
#: The negative ones where it came before the program had begun to handle any.
BY_SIGNAL = {"SIGKILL": {-9}, "SIGTERM": {143, -15}, "SIGINT": {130, -2}, "SIGHUP": {143, -1}}


@dataclass
class Report:
    """What came of a round, or of all: `+` adds them up."""

    rounds: int = 0
    lives: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    twice: int = 0
    left: int = 0
    wrong: int = 0
    slowest_teardown_s: float = 0.0
    slowest_gone_s: float = 0.0
    trouble: list[str] = field(default_factory=list)

    def __add__(self, other: Report) -> Report:
        return Report(
            self.rounds + other.rounds,
            self.lives + other.lives,
            self.hits + other.hits,
            self.records + other.records,
            self.lost + other.lost,
            self.twice + other.twice,
            self.left + other.left,
            self.wrong + other.wrong,
            max(self.slowest_teardown_s, other.slowest_teardown_s),
            max(self.slowest_gone_s, other.slowest_gone_s),
            self.trouble + other.trouble,
        )


class Round:
    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="al-soak-"))
        self.run_dir = self.folder / "run"
        self.run_dir.mkdir()
        self.run_tag = run_tag_of(self.run_dir)
        self.tmp = self.folder / "t"
        self.tmp.mkdir()
        self.audit = Audit(self.run_dir)
        self.report = Report(rounds=1)
        self.story: list[str] = []
        self.only_coordinators = True

    def run(self) -> Report:
        """The folder stays if anything was wrong."""
        sweep = random_sweep(self.rng, self.folder)
        (self.folder / "sweep.yaml").write_text(json.dumps(sweep, indent=1, ensure_ascii=False), encoding="utf-8")
        for _ in range(self.rng.randint(1, MOST_LIVES)):
            if self._life(random_acts(self.rng)) in DONE:
                break
        self._calm()
        self._conclude(sweep)
        return self.report

    def _calm(self) -> None:
        """Nothing is done to it any more; a last fault of its own may still stop one life."""
        codes: list[int] = []
        while len(codes) < CALM_LIVES and (not codes or codes[-1] not in DONE):
            codes.append(self._life([]))
        if codes[-1] not in DONE:
            self.audit.wrong.append(f"never came to an end: exit codes {codes}")

    def _life(self, acts: list[Act]) -> int:
        began, code = time.monotonic(), self._start()
        coordinator = reference(code.pid)
        self.report.lives += 1
        self.story.append(f"life {self.report.lives}:")
        try:
            for act in acts:
                if coordinator and self._comes(act, code, began):
                    self._do(act, coordinator)
            code.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.audit.wrong.append(f"life {self.report.lives} did not end within {PATIENCE_S:.0f} s")
        finally:
            code.kill()
            code.wait()
        self._after(code.returncode, acts)
        return code.returncode

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "orchestrator", "sweep", str(self.folder / "sweep.yaml"), "--run-dir"]
        argv += [str(self.run_dir), *(["--resume"] if (self.run_dir / JOURNAL_NAME).exists() else [])]
        env = {**os.environ, "AIRLOCK_HOME": str(self.folder / "home"), "TMPDIR": str(self.tmp)}
        with open(self.folder / "output", "ab") as out:
            return subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def _comes(self, act: Act, code: subprocess.Popen[bytes], began: float) -> bool:
        """Waits for the moment: after the life's start, or after whoever is meant was first seen."""
        from_s = began
        # SIGQUIT is survived from the run's beginning on, which a worker shows.
        awaited = "warden" if "SIGQUIT" in act.signals and act.who == "coordinator" else act.who
        if awaited in ("warden", "worker", "child"):
            patience = time.monotonic() + APPEARS_S
            while not targets(awaited, self.run_tag) and code.poll() is None and time.monotonic() < patience:
                time.sleep(LOOK_S)
            if not targets(awaited, self.run_tag):
                return False
            from_s = time.monotonic() - act.at_s / 2
        try:
            code.wait(max(0.0, from_s + act.at_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return True
        return False

    def _do(self, act: Act, coordinator: ProcessRef) -> None:
        hit = perform(act, coordinator, self.run_tag)
        self.story.append(f"  {act} ({hit} hit)")
        self.report.hits[f"{act.who} {' '.join(act.signals)}"] += hit
        self.only_coordinators = self.only_coordinators and act.who == "coordinator"

    def _after(self, code: int, acts: list[Act]) -> None:
        self.story.append(f"  exit code {code}")
        allowed = {*DONE, *(c for act in acts for name in act.signals for c in BY_SIGNAL.get(name, ()))}
        if code not in allowed:
            self.audit.wrong.append(f"life {self.report.lives} ended with exit code {code}, see {self.folder}/output")
        if any("warden" in act.who for act in acts):  # then the next start has to do it
            living(self.run_tag)
        else:
            self._gone(GONE_AFTER_KILL_S if code < 0 else 0.0)
        self.audit.after_a_life()

    def _gone(self, within_s: float) -> None:
        began = time.monotonic()
        while (left := living(self.run_tag)) and time.monotonic() - began < within_s:
            time.sleep(LOOK_S)
        self.report.slowest_gone_s = max(self.report.slowest_gone_s, time.monotonic() - began)
        self.audit.left += [f"process {one.pid} {one.name} after life {self.report.lives}" for one in left]

    def _conclude(self, sweep: dict[str, Any]) -> None:
        untouched = [m["name"] for m in sweep["methods"] if is_healthy(m)] if self.only_coordinators else []
        self.audit.at_the_end(untouched)
        self.audit.resources(self.tmp, self.run_tag)
        audit, report = self.audit, self.report
        report.records = len(audit.committed)
        report.lost, report.twice, report.left, report.wrong = map(
            len, (audit.lost, audit.twice, audit.left, audit.wrong)
        )
        report.slowest_teardown_s = audit.slowest_teardown_s
        if audit.problems:
            (self.folder / "story").write_text("\n".join([*self.story, *audit.problems]) + "\n")
            report.trouble = [f"round {self.seed}: {self.folder}", *self.story, *audit.problems]
        else:
            shutil.rmtree(self.folder)


def reference(pid: int) -> ProcessRef | None:
    one = proc.stat(pid)
    return proc.ref(one) if one else None
