"""The cells of the fault matrix, as plain values: which fault strikes in which state of a worker, and by what sweep.

Each cell is one small sweep: a faulty scripted method, then a healthy one. The
fault strikes once, in the first worker of the faulty method. Pure.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATES = ("launching", "importing", "standby", "loading", "ready", "busy", "draining", "terminating")
#: As people call them → what the scripted worker calls them.
FAULTS = {
    "exit 0": "exit0",
    "exit 1": "exit1",
    "segfault": "segv",
    "SIGKILL": "sigkill",
    "SIGSTOP": "sigstop",
    "hang, deaf to SIGTERM": "hang_ignore_term",
    "memory limit hit": "memory_limit",
    "memory limit, killed": "memory_killed",
    "garbage frame": "garbage",
    "wrong protocol number": "wrong_protocol",
    "wrong token": "wrong_token",
    "message out of turn": "out_of_turn",
    "late result": "late",
    "oversized message": "oversized_frame",
    "child dies": "child_dies",
    "child left: plain": "child_plain",
    "child left: setpgid": "child_setpgid",
    "child left: setsid": "child_setsid",
    "child left: double fork": "child_double_fork",
    "child left: renamed": "child_renamed",
    "child left: no environment": "child_clear_env",
    "child left: holds the log": "child_hold_log",
    "child left: holds the lock": "child_hold_lock",
}
FAULTY, HEALTHY = "faulty", "healthy"
PROMPTS = ("a", "b", "c", "d")
BATCH_SIZE = 2
#: The second batch: what the first one gave must stay.
STRUCK_BATCH = "batch:2"

_MOMENTS = {
    "launching": "hello",
    "importing": "import",
    "standby": "standby",
    "loading": "load",
    "ready": "idle",
    "busy": STRUCK_BATCH,
    "draining": "shutdown",
    "terminating": "shutdown",
}
_EARLY = ("launching", "importing", "standby")
#: States in which the fault waits until the coordinator is seen there; it knows of the others without that.
GATED = ("importing", "standby", "loading", "ready")
#: States that a coordinator leaves at once; it is held there until the fault has struck.
HELD = ("standby", "ready")
DEAF = ("sigstop", "hang_ignore_term")
#: Faults of which the coordinator hears nothing, so that nothing but the hold's end can follow.
SILENT = (*DEAF, "wrong_token")

#: More than the limit of a cgroup that is lent for this; what a worker holds that dies without one.
CGROUP_BYTES, HELD_BYTES = 1 << 30, 64 << 20

#: Seconds. Long where nothing is waited for, so that a slow machine fails no cell; the grace of those that ignore it.
LONG_S, TERMINATE_S = 30.0, 0.3
#: Where a cell waits for a deadline, so long; a healthy worker needs a tenth.
SHORT_S = {"launch_s": 4.0, "import_s": 2.0, "load_s": 2.0, "batch_s": 2.0, "drain_s": 0.5}
_DEADLINE_OF = {
    "launching": "launch_s",
    "importing": "import_s",
    "standby": "load_s",
    "loading": "load_s",
    "ready": "batch_s",
    "busy": "batch_s",
    "draining": "drain_s",
}


@dataclass(frozen=True)
class Cell:
    """`fault` is a value of FAULTS. `always`: it strikes every worker of its method, in READY before any batch."""

    state: str
    fault: str
    always: bool = False

    def __str__(self) -> str:
        return f"{self.state}-{self.fault}" + "-always" * self.always

    @classmethod
    def named(cls, name: str) -> Cell:
        """Raises ValueError."""
        state, fault, *rest = name.split("-")
        cell = cls(state, fault, rest == ["always"])
        if str(cell) != name or cell not in (*CELLS, *ALWAYS):
            raise ValueError(f"there is no cell {name!r}")
        return cell

    @property
    def silent(self) -> bool:
        return self.fault in SILENT or self.fault.startswith("child_")

    @property
    def lays_segment(self) -> bool:
        """Whether the worker makes a segment in /dev/shm that the coordinator gets to see before the fault."""
        return self.state in ("ready", "busy", "draining", "terminating")

    @property
    def waits_for(self) -> str | None:
        """The limit that has to pass, if any."""
        if self.fault in DEAF:
            return _DEADLINE_OF.get(self.state)
        if self == Cell("launching", "wrong_token"):
            return "launch_s"
        return "batch_s" if self == Cell("busy", "late") else None


CELLS = tuple(Cell(state, fault) for fault in FAULTS.values() for state in STATES)
#: Beside the matrix: a method of which no worker ever works.
ALWAYS = tuple(Cell(state, fault, True) for fault in ("exit1", "garbage") for state in STATES)


@dataclass(frozen=True)
class Places:
    """Where one cell runs: all below `root`, whose path must be short. `cgroup` is a folder that may be empty."""

    root: Path
    cgroup: str = ""

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def sweep_file(self) -> Path:
        return self.root / "sweep.yaml"

    @property
    def tmp(self) -> Path:
        return self.root / "t"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def touch(self) -> Path:
        """A FIFO: each fault says its moment and a pid there."""
        return self.root / "touch"

    @property
    def address(self) -> str:
        """Of the loopback network, and of this cell alone: whatever listens there is ours."""
        return "127." + ".".join(str(1 + part % 254) for part in zlib.crc32(str(self.root).encode()).to_bytes(4)[1:])

    @property
    def gate(self) -> Path:
        """A FIFO: a fault in a gated state waits for it."""
        return self.root / "gate"


def sweep(cell: Cell, places: Places) -> dict[str, Any]:
    faulty: dict[str, Any] = {"name": FAULTY, "base": "scripted"}
    faults = _faults(cell, places)
    options = {"faults": faults if cell.always else [_once(places, n, **fault) for n, fault in enumerate(faults)]}
    if cell.state in _EARLY:
        faulty["env_vars"] = {"SCRIPTED_OPTIONS": json.dumps(options)}
    else:
        faulty["engine_args"] = options
    return {
        "name": str(cell),
        "model": "scripted",
        "prompts": list(PROMPTS),
        "methods": [faulty, {"name": HEALTHY, "base": "scripted"}],
        "sampling": {"batch_size": BATCH_SIZE},
        "warmup": 0,
        "limits": limits(cell),
    }


def limits(cell: Cell) -> dict[str, float]:
    states = ("launch", "import", "standby", "load", "ready", "batch", "drain", "terminate", "kill", "release")
    found = {f"{state}_s": LONG_S for state in states}
    if cell.fault in DEAF:
        found["terminate_s"] = TERMINATE_S
    if cell.waits_for:
        found[cell.waits_for] = SHORT_S[cell.waits_for]
    return found


def _faults(cell: Cell, places: Places) -> list[dict[str, Any]]:
    """What the cell is about comes last; before it what brings the worker there, and what it leaves lying about."""
    moment = _MOMENTS[cell.state]
    litter_at = moment if cell.state in ("launching", "importing") else "import" if cell.state == "standby" else "load"
    found: list[dict[str, Any]] = [
        {"at": litter_at, "do": "port", "path": places.address},
        {"at": litter_at, "do": "file"},
    ]
    if cell.lays_segment:
        found.append({"at": "load", "do": "shm"})
    if cell.state == "terminating":  # one word out of turn and the coordinator sends SIGTERM
        found += [{"at": STRUCK_BATCH, "do": do} for do in ("out_of_turn", "hang")]
    fault: dict[str, Any] = {"at": moment, "do": cell.fault, "touch": str(places.touch)}
    if cell == Cell("busy", "late"):
        fault["do"] = "late_answer"
    if cell.state in GATED:
        fault["gate"] = str(places.gate)
    if cell.fault == "child_hold_lock":
        fault["path"] = str(places.run_dir / "lock")
    if cell.fault == "memory_killed":
        fault |= {"path": places.cgroup, "bytes": CGROUP_BYTES if places.cgroup else HELD_BYTES}
    return [*found, fault]


def _once(places: Places, number: int, **fault: Any) -> dict[str, Any]:
    return {**fault, "once": str(places.root / f"once{number}")}
