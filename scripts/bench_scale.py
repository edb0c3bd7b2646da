"""What plan, resume, status and report take when a sweep is large. Run by scripts/bench --only scale.

Per point against a tenth or a hundredth of the points: the start of Python is in both, so a ratio near 1 is as good as
it gets, and one above it says that something grows faster than the sweep.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.figures import Figure, Spent, spent
from scripts.long_run import Size, write_sweep

POINTS = (1_000, 10_000, 100_000)
#: 100 points × 10,000 prompts, in batches of 64 and more.
MILLION = Size(cells=10, repeats=1, prompts=10_000, batch=64, least_tokens=16)
A_TENTH = Size(cells=10, repeats=1, prompts=1_000, batch=64, least_tokens=16)
MIB = 1 << 20


def scale(folder: Path) -> Iterator[Figure]:
    """Plan, resume, status and report of 10,000 and 100,000 points, against 1,000, per point."""
    small: dict[str, Spent] = {}
    for points in POINTS:
        home = folder / str(points)
        home.mkdir()
        for name, found in _commands(home, Size.of_points(points)):
            first = small.setdefault(name, found)
            if found is not first:
                yield from _beside(f"{name}, {points:,} points", found, first, points // POINTS[0], f"{POINTS[0]:,}")


def _beside(name: str, found: Spent, first: Spent, times: int, of: str) -> Iterator[Figure]:
    yield Figure(name, found.wall_s, "s", f"{times} × {of}", first.wall_s * times, most=1.0)
    yield Figure("  its memory", found.peak_bytes / MIB, "MiB", f"with {of}", first.peak_bytes / MIB)


def _commands(folder: Path, size: Size) -> Iterator[tuple[str, Spent]]:
    """In their order: each finds what the ones before it left."""
    file, run_dir = write_sweep(folder, size), folder / "run"
    environment = _environment(folder)
    yield "plan", spent(command("plan", str(file)), environment)
    _finish(file, run_dir, environment)
    yield "resume", spent(command("sweep", str(file), "--run-dir", str(run_dir), "--resume"), environment)
    yield "status", spent(command("status", str(run_dir)), environment)
    yield "report", spent(command("report", str(run_dir)), environment)


def million(folder: Path) -> Iterator[Figure]:
    """Report and exports of a million generations, against a tenth of them, per generation."""
    homes = {size: folder / str(size.generations) for size in (A_TENTH, MILLION)}
    for size, home in homes.items():
        home.mkdir()
        _finish(write_sweep(home, size), home / "run", _environment(home))
    times = MILLION.generations // A_TENTH.generations
    for words in (["report"], *(["export", "--format", name] for name in ("jsonl", "csv", "parquet"))):
        first, found = (spent(command(*words, str(home / "run")), _environment(home)) for home in homes.values())
        name = f"{' as '.join(words[::2])} of {MILLION.generations:,} generations"
        yield from _beside(name, found, first, times, f"{A_TENTH.generations:,}")


def _finish(file: Path, run_dir: Path, environment: Mapping[str, str]) -> None:
    """In a process of its own, for a home of its own."""
    program = "import sys, pathlib, scripts.long_run as l; l.finish(*map(pathlib.Path, sys.argv[1:]))"
    spent([sys.executable, "-c", program, str(file), str(run_dir)], environment)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "AIRLOCK_HOME": str(folder / "home")}


def command(*args: str) -> Sequence[str]:
    return [sys.executable, "-m", "orchestrator", *args]
