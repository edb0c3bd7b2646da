"""What earlier runs beside this one tell of how long batches and worker starts take here. A pure read.

It helps a forecast and nothing else, so it costs little: the newest few runs, a bounded number of bytes, and whatever
can't be read is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.errors import JournalError
from orchestrator.events import Event, RunStarted
from orchestrator.record.disk import read_regular
from orchestrator.record.framing import JOURNAL_NAME, Line, scan
from orchestrator.run.paces import Cell, Inputs

MOST_RUNS = 8
MOST_FOLDERS = 5000
MOST_BYTES = 12 << 20


@dataclass(frozen=True)
class Past:
    """One earlier run: its points, and what happened in it, as far as that was read."""

    cells: dict[str, Cell]
    events: list[Event]


class _Method(Struct, frozen=True):
    name: str
    engine: str


class _Config(Struct, frozen=True):
    """Of a plan no more than this, so that those of other versions can be read."""

    method: _Method
    device: str
    batch_size: int
    max_new_tokens: int
    task: str = "generate"


class _Point(Struct, frozen=True):
    id: str
    config: _Config


class _Start(Struct, frozen=True):
    points: list[_Point]


class _Model(Struct, frozen=True):
    digest: str


class _Plan(Struct, frozen=True):
    model: _Model
    prompts_digest: str
    prompt_ids: list[str]
    starts: list[_Start]


_decode_plan = msgspec.json.Decoder(_Plan).decode


def past(run_dir: Path, model: str, host: str) -> Iterator[Past]:
    """Runs in the folder that `run_dir` is in, of the model with this digest on this host: the oldest of the newest
    few first, so that the last word is the newest's."""
    left = MOST_BYTES
    found: list[Past] = []
    for folder in _newest(run_dir):
        if left <= 0 or len(found) >= MOST_RUNS:
            break
        one, cost = _read(folder, model, host, left)
        left -= cost
        found += [one] if one else []
    yield from reversed(found)


def _newest(run_dir: Path) -> list[Path]:
    """The run directories beside `run_dir`, the one that was written last first."""
    here = run_dir.absolute()
    times: list[tuple[float, str, Path]] = []
    with suppress(OSError):
        for n, folder in enumerate(here.parent.iterdir()):
            if n >= MOST_FOLDERS:
                break
            with suppress(OSError):
                if folder != here:
                    times.append(((folder / JOURNAL_NAME).stat().st_mtime, folder.name, folder))
    return [folder for _, _, folder in sorted(times, reverse=True)]


def _read(folder: Path, model: str, host: str, most_bytes: int) -> tuple[Past | None, int]:
    """What is told there, None if nothing that helps; and how many bytes it cost."""
    try:
        size = (folder / "plan.json").stat().st_size
        if size > most_bytes:
            return None, 0
        plan = _decode_plan(read_regular(folder / "plan.json"))
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None, 0
    if plan.model.digest != model:
        return None, size
    events: list[Event] = []
    end = 0
    with suppress(JournalError, OSError):  # what stands before the damage is good
        for line in scan(folder / JOURNAL_NAME, most_bytes - size):
            if isinstance(line, Line):
                end = line.end
                if isinstance(line.event, RunStarted) and line.event.host != host:
                    break
                events.append(line.event)
    return Past(_cells(plan), events) if events else None, size + end


def _cells(plan: _Plan) -> dict[str, Cell]:
    inputs = Inputs(plan.model.digest, plan.prompts_digest, len(plan.prompt_ids))
    return {point.id: inputs.cell(point.config) for start in plan.starts for point in start.points}
