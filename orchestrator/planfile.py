"""plan.json as a reader needs it. Who reports reads files and loads nothing that can launch a
process; so this is not `plan.Plan`, which is built from models and prompts. What it does not name it skips.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.errors import JournalError
from protocol.specs import BackendConfig


class PlannedPoint(Struct, frozen=True):
    id: str
    method: str
    config: BackendConfig
    repeat: int


class PlannedStart(Struct, frozen=True):
    key: str
    env: str
    config: BackendConfig
    points: tuple[PlannedPoint, ...]


class PlannedModel(Struct, frozen=True):
    name: str
    digest: str


class PlanFile(Struct, frozen=True):
    """See `plan.Plan` for the meaning of the fields."""

    name: str
    digest: str
    model: PlannedModel
    prompts_digest: str
    prompt_ids: tuple[str, ...]
    starts: tuple[PlannedStart, ...]
    repeats: int
    warmup: int
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[PlannedPoint, ...]:
        """All points, in the order they run."""
        return tuple(point for start in self.starts for point in start.points)


def read_plan(path: Path) -> PlanFile:
    """Raises JournalError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanFile)
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}: not a run directory, or one whose start was cut short") from exc
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: is not a plan of this version of Airlock: {exc}") from exc
