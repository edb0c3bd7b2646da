"""From one method to the next: the last record of A to the first batch of B. Run by scripts/bench.

It is read from a run's journal alone, so `--run RUN` tells it of any run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.events import BatchCommitted, Event, PointStarted, StateChanged, WorkerLaunched, WorkerReady
from orchestrator.record.replay import replay
from protocol.records import LoadTimes
from scripts.figures import Figure, run_sweep

IMPORT_CPU_S, LOAD_S = 5.0, 2.0
#: Of the first method, where the second is to import at its side, at the lowest priority.
GENERATES_S, TOKENS = 20.0, 40
WITH, WITHOUT = 1.15, 1.1
REAL = ("hf_sdpa", "vllm_eager", "sglang_torch_native", "hf_eager")


@dataclass(frozen=True)
class Switch:
    """`taken_s` from A's last commit to the start of B's first point, which sends its first batch at once. `early`: B
    was launched while A held the slot, see WorkerLaunched. `late_s` of B's import were left after A's last commit."""

    before: str
    after: str
    taken_s: float
    load: LoadTimes
    early: str
    late_s: float


def switches(events: Iterable[Event]) -> Iterator[Switch]:
    """Of each slot, every time that another worker took over from one that had committed something."""
    launched: dict[str, WorkerLaunched] = {}
    imported: dict[str, float] = {}
    loads: dict[str, LoadTimes] = {}
    last: dict[str, tuple[str, float]] = {}  # by slot: who committed last, and when
    for event in events:
        if isinstance(event, WorkerLaunched):
            launched[event.incarnation] = event
        elif isinstance(event, StateChanged) and event.state == "standby":
            imported[event.incarnation] = event.at
        elif isinstance(event, WorkerReady):
            loads[event.incarnation] = event.metadata.load
        elif isinstance(event, BatchCommitted) and event.incarnation in launched:
            last[launched[event.incarnation].slot] = (event.incarnation, event.at)
        elif isinstance(event, PointStarted) and event.incarnation in loads:
            now = launched[event.incarnation]
            worker, at = last.pop(now.slot, (event.incarnation, 0.0))
            if worker != event.incarnation:
                load = loads[event.incarnation]
                late_s = max(0.0, imported.get(event.incarnation, at) - at)
                yield Switch(launched[worker].method, now.method, event.at - at, load, now.early, late_s)


def figures(run_dir: Path) -> Iterator[Figure]:
    """Of any run."""
    yield from map(figure, switches(replay(run_dir).events()))


def figure(one: Switch) -> Figure:
    """With standby against the load and what was left of the import, else against import and load."""
    hidden = one.early == "standby"
    own_s = one.load.total_s + (one.late_s if hidden else one.load.import_s)
    against = f"{one.after}'s own import and load"
    if hidden:
        against = f"{one.after}'s own load, {one.late_s:.1f} s left of its import"
    name = f"{one.before} to {one.after}{f' ({one.early})' if one.early else ''}"
    return Figure(name, one.taken_s, "s", against, own_s, most=WITH if hidden else WITHOUT)


def scripted(folder: Path) -> Iterator[Figure]:
    """From one method to the next, without standby and with it, against the next one's own start.

    The engine has the phases of one on a GPU: its import takes a CPU, its generation none.
    """
    for standby in ("off", "on"):
        yield from figures(run_sweep(folder / standby, sweep(standby), AIRLOCK_HOME=str(folder / "home")))


def sweep(standby: str) -> dict[str, Any]:
    early = {"SCRIPTED_OPTIONS": json.dumps({"import_cpu_s": IMPORT_CPU_S})}
    token_s = {"one": GENERATES_S / TOKENS if standby == "on" else 0.0, "other": 0.0}
    return {
        "name": f"standby-{standby}",
        "model": "scripted",
        "prompts": ["x"],
        "methods": [
            {"name": name, "base": "scripted", "env_vars": early, "engine_args": {"load_s": LOAD_S, "token_s": step_s}}
            for name, step_s in token_s.items()
        ],
        "sampling": {"max_new_tokens": TOKENS, "ignore_eos": True},
        "devices": {"standby": standby},
        "warmup": 0,
    }


def real(folder: Path) -> Iterator[Figure]:
    """The same on all three engines, as a sweep does it by itself: on a CPU nobody stands by while another generates,
    and the next one imports beside the teardown."""
    sweep = {
        "name": "switch",
        "model": "demo",
        "prompts": ["What is the capital of France?"],
        "methods": REAL,
        "sampling": {"max_new_tokens": 8},
        "warmup": 0,
    }
    yield from figures(run_sweep(folder, sweep))
