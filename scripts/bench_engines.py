"""Figures that take a real engine, each beside what it is compared with. Run by scripts/bench --engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator import devices
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.events import RunEnded
from orchestrator.launcher import Launcher
from orchestrator.record.replay import replay
from orchestrator.report import RunView, rows
from orchestrator.stores.home import airlock_home
from scripts.figures import REPO, Figure, run_sweep

PROMPTS = 64


def environment(name: str) -> EngineEnv:
    store = EnvStore(airlock_home(), Launcher(), print_progress, kind=devices.discover().kind)
    return store.build(name)


def print_progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def quickstart(folder: Path) -> Iterator[Figure]:
    """Measurement in the quickstart sweep, against its wall time."""
    run_dir = run_sweep(folder, REPO / "examples" / "quickstart.yaml")
    yield from share(run_dir, "the quickstart sweep, loads included")


def share(run_dir: Path, name: str) -> Iterator[Figure]:
    """How much of a run's wall time was spent inside engines' generate calls, warm-up not counted."""
    for event in replay(run_dir).events():
        if isinstance(event, RunEnded):
            yield Figure(f"measurement in {name}", event.measured_s, "s", "its wall time", event.wall_s)


def buckets(folder: Path) -> Iterator[Figure]:
    """Compiled decoding with fixed buckets against compiled decoding that takes every batch as it comes."""
    sweep = {
        "name": "buckets",
        "model": "demo",
        "prompts": [" ".join(["Tell me more about the sea."] * (1 + n % 12)) for n in range(PROMPTS)],
        "methods": ["hf_compile", "hf_rocket"],
        "settings": {"bucket_batch_sizes": [8], "bucket_lengths": [64, 128]},
        "sampling": {"batch_size": 8, "max_new_tokens": 16, "ignore_eos": True},
    }
    run_dir = run_sweep(folder, sweep)
    plain, rocket = ((row.speed.output, row.counters.told("recompiles")) for row in rows(RunView.load(run_dir)))
    if plain[0] is None or rocket[0] is None or plain[1] is None or rocket[1] is None:
        raise SystemExit("one of the two does not tell its speed or its recompiles")
    what = f"{PROMPTS} prompts of mixed lengths"
    yield Figure(f"hf_rocket, {what}", rocket[0].value, "tokens/s", "hf_compile", plain[0].value)
    yield Figure("hf_rocket: recompiles after warm-up", rocket[1], "", target="target: 0")
    yield Figure("hf_compile: recompiles after warm-up", plain[1], "")
