"""The points of a sweep by optimum-benchmark, where it is installed: in the environment of Transformers, or in the
interpreter that AIRLOCK_OPTIMUM_PYTHON names."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.figures import REPO, Figure, spent

VARIABLE = "AIRLOCK_OPTIMUM_PYTHON"
NAME = "optimum-benchmark"
_LOOK = "import importlib.util as u, sys; sys.exit(u.find_spec('optimum_benchmark') is None)"


def optimum(
    folder: Path, python: str, environment: Mapping[str, str], order: Mapping[str, Any], name: str, ours_s: float
) -> Figure:
    """`ours_s` against its wall time; where it is not installed, or fails, that is said instead."""
    python = os.environ.get(VARIABLE, python)
    if subprocess.run([python, "-c", _LOOK], env=dict(environment), check=False).returncode:
        return Figure(name, ours_s, "s", f"nothing: {NAME} is not installed in {python}, and {VARIABLE} names no other")
    asked = folder / "optimum.json"
    asked.write_text(json.dumps(order))
    try:
        with asked.open() as orders:
            command = [python, str(REPO / "scripts" / "optimum_points.py"), str(folder)]
            wall_s = spent(command, environment, orders).wall_s
    except SystemExit as exc:  # 0.6.0 can't be imported beside Transformers 5, say
        return Figure(name, ours_s, "s", f"nothing: {NAME} failed, {exc}")
    return Figure(name, ours_s, "s", NAME, wall_s, most=0.25)


def points(cells: Sequence[tuple[str, int]], repeats: int, prompts: int) -> list[tuple[str, int, int]]:
    """Attention, batch size and batches of each cell: an iteration of theirs is one batch."""
    return [(attention, size, repeats * -(-prompts // size)) for attention, size in cells]
