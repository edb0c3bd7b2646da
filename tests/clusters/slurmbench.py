"""Submits errands of a test on the cluster of slurmcluster.py, from inside of it, and ends them with the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator.clusters.base import Errand, Sighting
from orchestrator.clusters.slurm import Slurm
from tests.clusters.desk import Caller, Desk
from tests.clusters.slurmcluster import SlurmCluster

T = TypeVar("T")
PATIENCE_S = 60.0


@dataclass
class Bench:
    folder: Path
    desk: Desk = field(default_factory=Desk)
    slurm: Slurm = field(default_factory=Slurm)
    cluster: SlurmCluster = field(default_factory=SlurmCluster)
    jobs: list[str] = field(default_factory=list)

    def errand(self, *words: str, env: Mapping[str, str] | None = None, **more: object) -> Errand:
        known: dict[str, object] = {"name": "test", "cwd": self.folder, "log": self.folder / "log", "cpus": 1, **more}
        return Errand(argv=Desk.argv(*words), env={**self.desk.variables, **(env or {})}, **known)  # type: ignore[arg-type]

    def submit(self, errand: Errand) -> str:
        self.jobs.append(self.slurm.submit(errand))
        return self.jobs[-1]

    def begin(self, errand: Errand) -> tuple[str, Caller]:
        job = self.submit(errand)
        caller = self.desk.caller()
        assert caller.env["SLURM_JOB_ID"] == job
        return job, caller

    def sighted(self, job: str, true: Callable[[Sighting], bool]) -> Sighting:
        return until(lambda: self.slurm.state(job), true)

    def ended(self, job: str) -> Sighting:
        return self.sighted(job, lambda found: found.state == "ended")

    def close(self) -> None:
        for job in self.jobs:
            self.slurm.stop(job)
        for job in self.jobs:
            self.ended(job)
        self.desk.close()


def until(ask: Callable[[], T], true: Callable[[T], bool]) -> T:
    """Slurm tells nobody of a change; it is asked."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not true(found := ask()):
        assert time.monotonic() < deadline, f"still {found}"
        pause.wait(0.1)
    return found
