"""A call of the harness, carried out: a run directory with its prompts, a sweep over them, its records read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.definition import sweepfile
from orchestrator.definition.sweepfile import Problems
from orchestrator.errors import InputError, Problem
from orchestrator.exits import EXIT_OK, EXIT_PARTIAL
from orchestrator.harness.calls import Call, Unanswered
from orchestrator.record.disk import write_atomic
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.output import Record
from orchestrator.view.runview import RunView

#: Becomes a command that is sent SIGTERM (15) when the process that began it, its first argument, ends.
_LEASHED: Final = (
    "import ctypes, os, sys; PR_SET_PDEATHSIG = 1; ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 15, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
_STDERR: Final = 2
#: Of a sweep file that is given: what each call says itself.
OURS: Final = ("name", "prompts", "matrix", "zip", "sampling", "repeats", "answers", "notify")


@dataclass(frozen=True)
class Sweeps:
    """`base`: what all sweeps say, with their one method. `folder`: its run directories, each with its files beside it,
    so that what lists the runs of a folder finds runs and nothing else."""

    base: Mapping[str, Any]
    folder: Path

    def run_dir(self, call: Call) -> Path:
        (method,) = self.base["methods"]
        named = method if isinstance(method, str) else method["name"]
        return self.folder / f"{named}-{call.name(self.base)}"

    def written(self, call: Call) -> Path:
        """The sweep file of a call, with its prompts beside it."""
        run_dir = self.run_dir(call)
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts, file = (run_dir.with_name(run_dir.name + end) for end in (".prompts.jsonl", ".sweep.yaml"))
        write_atomic(prompts, ["".join(json.dumps(line) + "\n" for line in call.prompts).encode()])
        said = {
            **self.base,
            "name": call.name(self.base),
            "prompts": {"file": str(prompts.resolve()), "chat_template": "off"},
            "sampling": {**self.base.get("sampling", {}), **call.sampling},
            "repeats": 1,
        }
        write_atomic(file, [(json.dumps(said, indent=2) + "\n").encode()])  # JSON is YAML
        return file

    def records(self, call: Call) -> tuple[Path, dict[str, Record]]:
        """The run directory, and its records by prompt id, those of failures among them. Raises Unanswered."""
        file, run_dir = self.written(call), self.run_dir(call)
        command = ["-m", "orchestrator", "sweep", str(file), "--run-dir", str(run_dir)]
        again = ["--resume", "--retry-failed"] if (run_dir / JOURNAL_NAME).exists() else []
        ended = _swept([*command, *again, "--view", "plain"])
        if ended not in (EXIT_OK, EXIT_PARTIAL):
            raise Unanswered(f"{run_dir}: the sweep ended with exit code {ended}")
        view = RunView.load(run_dir)
        return run_dir, {one.prompt_id: one for one in view.records_of([point.id for point in view.plan.points])}


def _swept(command: Sequence[str]) -> int:
    """Its exit code. `command`: Python's arguments. Its lines go where the harness's own log goes, as standard output
    is the harness's. A sweep whose harness is killed is told to end; one that is interrupted with it is waited for."""
    leashed = [sys.executable, "-c", _LEASHED, str(os.getpid()), *command]
    going = subprocess.Popen(leashed, stdout=_STDERR)
    try:
        return going.wait()
    except KeyboardInterrupt:
        going.wait()
        raise


def base_of(file: Path | None, method: str, said: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in a sweep file, if one is given; of its methods this one, and on top what is said here. Raises
    InputError."""
    found = _read(file) if file else {}
    listed = found.get("methods", ())
    own = next((one for one in listed if isinstance(one, Mapping) and one.get("name") == method), method)
    base = {key: value for key, value in found.items() if key not in OURS}
    return {**base, **said, "settings": {**base.get("settings", {}), **settings}, "methods": [own]}


def _read(file: Path) -> dict[str, Any]:
    problems = Problems()
    try:
        node = sweepfile.load(file.read_text(encoding="utf-8"), str(file), problems)
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError([Problem(str(file), "", f"can't be read: {exc}")]) from exc
    plain = None if node is None else node.plain()
    found: dict[str, Any] = plain if isinstance(plain, dict) else {}
    if not found:
        problems.add(str(file), "", "is no mapping of a sweep's settings")
    if problems.found:
        raise InputError(problems.ordered())
    return {**found, **({"model": anchored(found["model"], file.parent)} if "model" in found else {})}


def anchored(model: Any, base: Path) -> Any:
    """A folder that is written from `base`, for files that stand elsewhere."""
    if isinstance(model, str):
        return str((base / model).resolve()) if model.startswith(".") else model
    path = model.get("path") if isinstance(model, dict) else None
    return {**model, "path": str((base / path).resolve())} if isinstance(path, str) else model
