"""Runs real sweeps of the scripted engine through the command line, and reads what they left."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import proc
from orchestrator.events import Event, PointEnded, WorkerReleased
from orchestrator.reaper import alive
from orchestrator.record.replay import replay
from orchestrator.stores.home import run_tag_of

PATIENCE_S = 60
#: The design's promise: this long after a SIGKILL of the coordinator no child of it is left.
GONE_AFTER_KILL_S = 5.0
PROMPTS = [f"prompt {i}" for i in range(6)]
QUICK_LIMITS = {
    "launch_s": 20,
    "import_s": 5,
    "load_s": 5,
    "batch_s": 5,
    "drain_s": 2,
    "terminate_s": 0.3,
    "kill_s": 5,
    "release_s": 10,
}
#: A failure is what it is, at once.
NO_SECOND_TRY = {cls: {"times": 0, "loads": 0} for cls in ("oom", "engine_crash", "engine_error", "hang", "protocol")}


class Bench:
    """One folder with a sweep file, and the sweeps that are run of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.tmp = folder / "t"
        self.tmp.mkdir(parents=True)
        self.env = {
            **os.environ,
            "AIRLOCK_HOME": str(folder / "home"),
            "TMPDIR": str(self.tmp),
            "PYTHONUNBUFFERED": "1",
        }

    def write(self, **changes: Any) -> None:
        """A sweep of one healthy scripted method, two batch sizes; `changes` replace whole sections."""
        sweep = {
            "name": "test",
            "model": "scripted",
            "prompts": PROMPTS,
            "methods": ["scripted"],
            "matrix": {"batch_size": [1, 4]},
            "limits": QUICK_LIMITS,
            "warmup": 0,
            **changes,
        }
        (self.folder / "sweep.yaml").write_text(json.dumps(sweep))  # JSON is YAML

    def command(self, *args: str) -> list[str]:
        head = [sys.executable, "-m", "orchestrator", "sweep", str(self.folder / "sweep.yaml")]
        return [*head, "--run-dir", str(self.run_dir), *args]

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*args), env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *args: str, patience_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args), env=self.env, text=True, capture_output=True, timeout=patience_s, check=False
        )

    # --- what a run left --------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        return list(replay(self.run_dir).events())

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / "generations.jsonl").read_text().splitlines()]

    def keys(self) -> Counter[tuple[str, str]]:
        return Counter((r["point"], r["prompt_id"]) for r in self.records)

    def outcomes(self) -> dict[str, list[PointEnded]]:
        """By method."""
        plan = json.loads((self.run_dir / "plan.json").read_text())
        method = {p["id"]: p["method"] for start in plan["starts"] for p in start["points"]}
        found: dict[str, list[PointEnded]] = {}
        for event in self.events:
            if isinstance(event, PointEnded):
                found.setdefault(method[event.point], []).append(event)
        return found

    def releases(self) -> list[WorkerReleased]:
        return [event for event in self.events if isinstance(event, WorkerReleased)]

    def processes(self) -> list[proc.ProcessRef]:
        """Of the run, alive: wardens, workers and what these started."""
        if not self.run_dir.exists():
            return []
        tag = run_tag_of(self.run_dir)
        return [proc.ref(s) for s in proc.table().values() if not s.dead and proc.belongs(s.pid, tag)]

    def assert_clean(self) -> None:
        """Nothing of the run lives or lies about, and every worker's proof says so."""
        assert not list(self.tmp.iterdir())
        assert not self.processes()
        for release in self.releases():
            assert release.reclaim.processes_left == 0, msgspec.to_builtins(release)
            assert release.reclaim.returned, msgspec.to_builtins(release)


def method(name: str, *, early: bool = False, **fault: Any) -> dict[str, Any]:
    """A scripted method with one fault. `early`: it must act before the worker gets its Init."""
    spec: dict[str, Any] = {"name": name, "base": "scripted"}
    if early:
        return {**spec, "env_vars": {"SCRIPTED_OPTIONS": json.dumps({"fault": fault})}}
    return {**spec, "engine_args": {"fault": fault}}


def wait_gone(refs: list[proc.ProcessRef], patience_s: float) -> None:
    """Each ends within `patience_s`; the orphans of a killed coordinator, which come to us, are reaped."""
    for ref in refs:
        try:
            fd = os.pidfd_open(ref.pid)
        except ProcessLookupError:
            continue
        try:
            if alive(ref):
                assert select.select([fd], [], [], patience_s)[0], f"{ref} is still alive"
        finally:
            os.close(fd)
        with suppress(ChildProcessError):
            os.waitpid(ref.pid, os.WNOHANG)
