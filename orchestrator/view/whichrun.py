"""Which folder is a run, and what was meant by the name of one that is none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.definition.spelling import likely
from orchestrator.errors import InputError, Problem
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.planfile import PLAN_NAME
from orchestrator.view.wording import listed

#: One of these tells that a folder is a run.
SIGNS: Final = (PLAN_NAME, JOURNAL_NAME)
#: Where runs go unless told.
_USUAL: Final = Path("runs")
_NAMED: Final = 5


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in SIGNS)


def run_dirs(named: Sequence[str]) -> list[Path]:
    """As they were named on the command line. Raises InputError with each that is not there, or a folder of runs."""
    folders = [Path(one) for one in named]
    if problems := [problem for folder in folders if (problem := _problem(folder))]:
        raise InputError(problems)
    return folders


def _problem(folder: Path) -> Problem | None:
    if not os.path.lexists(folder):
        return Problem(str(folder), "", "there is no such run directory", _meant(folder))
    inside = [] if is_run(folder) else _runs_in(folder)
    if inside:
        return Problem(str(folder), "", "is a folder of runs, not a run", f"name one: {_listed(inside)}")
    return None


def _meant(folder: Path) -> str:
    if is_run(_USUAL / folder):
        return f"did you mean {_USUAL / folder}?"
    near = {one.name: one for one in (*_runs_in(_USUAL), *_runs_in(folder.parent))}
    close = likely(folder.name, near)
    return f"did you mean {near[close]}?" if close else f"runs: {_listed(list(near.values()))}" if near else ""


def _listed(folders: Sequence[Path]) -> str:
    return listed([str(one) for one in folders], _NAMED)


def _runs_in(folder: Path) -> list[Path]:
    """Nothing where it can't be read."""
    try:
        return sorted(one for one in folder.iterdir() if is_run(one))
    except OSError:
        return []
