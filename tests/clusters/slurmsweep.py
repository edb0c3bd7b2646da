"""Sweeps on the cluster of slurmcluster.py, from inside of it: what they are, what befalls them, what they leave."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator import proc
from orchestrator.clusters.allocations import SlotAsked, SlotJoined, SlotLeft
from orchestrator.events import StateChanged, WorkerReady
from orchestrator.provenance import Provenance
from orchestrator.stores.home import run_tag_of, tag_of
from tests.clusters.slurmbench import until
from tests.clusters.slurmcluster import SlurmCluster
from tests.process.sweeping import PROMPTS, QUICK_LIMITS, Bench

T = TypeVar("T")
SILENCE_S = 8.0
PATIENCE_S = 60.0
MOST_SLOTS = 2
CLUSTER = {"slots": MOST_SLOTS, "cpus": 1, "listen": "tcp://127.0.0.1", "silence_s": SILENCE_S}
#: What is held at a gate is no hang.
LIMITS = QUICK_LIMITS | {"batch_s": PATIENCE_S, "launch_s": PATIENCE_S}


class Sweep(Bench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = SlurmCluster()
        self.begun = folder / "begun"
        os.mkfifo(self.begun)
        self._gates: list[Path] = []
        self._begun = os.open(self.begun, os.O_RDWR)
        self._running: list[subprocess.Popen[str]] = []

    def write(self, **changes: Any) -> None:
        cluster = CLUSTER | changes.pop("cluster", {})
        defaults: dict[str, Any] = {"matrix": {"batch_size": [2]}, "limits": LIMITS}
        super().write(**(defaults | changes), launcher="slurm", cluster=cluster)

    def wrapper(self, script: str) -> str:
        """A Python for outposts that does something before."""
        path = self.folder / "python"
        path.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def held(self, name: str, *faults: dict[str, Any]) -> dict[str, Any]:
        """A method whose first worker stands still in its second batch until `go`."""
        gate = self.folder / f"{name}-gate"
        os.mkfifo(gate)
        self._gates.append(gate)
        stop = [
            {"at": "batch:2", "do": "mark", "touch": str(self.begun), "once": str(self.folder / f"{name}-begun")},
            {"at": "batch:2", "do": "mark", "gate": str(gate), "once": str(self.folder / f"{name}-held")},
        ]
        return {"name": name, "base": "scripted", "engine_args": {"faults": [*faults, *stop]}}

    def begin(self, *args: str) -> subprocess.Popen[str]:
        self._running.append(self.start(*args))
        return self._running[-1]

    def await_held(self, workers: int = 1) -> list[int]:
        """PIDs of so many workers that stand still."""
        text = ""
        while text.count("\n") < workers:
            assert select.select([self._begun], [], [], PATIENCE_S)[0], self._standing()
            text += os.read(self._begun, 4096).decode()
        return [int(line.split()[1]) for line in text.splitlines()]

    def _standing(self) -> str:
        """Of sweeps that did not come so far."""
        ended = [running for running in self._running if running.poll() is not None]
        return "nobody stands still\n" + "\n".join(str(running.communicate()) for running in ended)

    def go(self) -> None:
        """All that stand still go on."""
        for gate in self._gates:
            os.close(os.open(gate, os.O_WRONLY))

    def close(self) -> None:
        for running in self._running:
            if running.poll() is None:
                running.kill()
            running.communicate()
        os.close(self._begun)

    # --- what it told ---------------------------------------------------------------

    def says(self, running: subprocess.Popen[str], words: str) -> None:
        """Returns once it has."""
        assert running.stdout is not None
        while words not in (line := running.stdout.readline()):
            assert line, f"it ended without {words!r}\n{self.story()}"

    def ended(self, running: subprocess.Popen[str], code: int = 0) -> str:
        said, complaint = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == code, f"exit {running.returncode}\n{self.story()}\n{said}\n{complaint}"
        return said + complaint

    def story(self) -> str:
        logs = sorted((self.run_dir / "logs").glob("outpost-*.log"))
        told = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
        events = [event for event in self.events if not isinstance(event, StateChanged | Provenance | WorkerReady)]
        return "\n".join([str(event)[:300] for event in events] + told)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def told(self, true: Callable[[], T]) -> T:
        """Once the journal says so."""
        return until(true, bool)

    @property
    def jobs(self) -> list[str]:
        """That were asked for."""
        return [event.job for event in self.of(SlotAsked)]

    def joined(self, slot: str) -> list[tuple[int, int]]:
        """(attempt, restarts) of each outpost that came."""
        return [(event.attempt, event.restarts) for event in self.of(SlotJoined) if event.slot == slot]

    def left(self, slot: str) -> list[str]:
        return [event.reason for event in self.of(SlotLeft) if event.slot == slot]

    # --- what there is ------------------------------------------------------------------

    def processes(self) -> list[proc.ProcessRef]:
        """Of the run and its outposts: all nodes are this machine."""
        slots = [tag_of(self.run_dir / "slots" / f"slurm{n}") for n in range(MOST_SLOTS)]
        tags = [*([run_tag_of(self.run_dir)] if self.run_dir.exists() else []), *slots]
        found = [one for one in proc.table().values() if not one.dead]
        return [proc.ref(one) for one in found if any(proc.belongs(one.pid, tag) for tag in tags)]

    def queued(self) -> list[str]:
        """The jobs of the run that Slurm has."""
        shown = slurm("squeue", "--noheader", "--all", "--format=%i").split()
        return sorted(set(shown) & set(self.jobs))

    def outpost(self, worker: int) -> int:
        """The PID of the outpost that a worker is of."""
        table, pid = proc.table(), worker
        while "outpost" not in command_line(pid):
            pid = table[pid].ppid
        return pid

    def parent(self, pid: int) -> int:
        return proc.table()[pid].ppid

    def node_of(self, job: str) -> str:
        return slurm("squeue", "--noheader", "--format=%N", f"--jobs={job}")

    # --- how it must end ----------------------------------------------------------------

    def assert_whole(self, records: int) -> None:
        assert set(self.keys().values()) == {1}
        assert len(self.records) == records, self.story()

    def assert_nothing_left(self) -> None:
        """Slurm shows a job until the last process of it is gone."""
        until(self.queued, lambda found: not found)
        until(self.processes, lambda found: not found)
        assert not (self.run_dir / "outposts").exists()
        asked, left = self.jobs, [event.job for event in self.of(SlotLeft)]
        assert sorted(asked) == sorted(job for job in left if job), self.story()
        lying = [str(path) for path in self.tmp.rglob("*")]
        assert not lying, f"{lying}\n{self.story()}"


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def variable(pid: int, name: str) -> str | None:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(word.partition("=")[::2] for word in words).get(name)


def slurm(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


RECORDS = len(PROMPTS)
