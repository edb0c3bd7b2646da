"""How far a run has come, for those who watch it live."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class WorkerProgress(Struct, frozen=True, kw_only=True):
    """What one worker is doing. None: not known.

    state               of its life; "busy" while it has a point, from the journal
    settings            by which its point is told from others
    batches_done        of its worker start, in this life of the run; `batches_total` with those that are left
    tokens_per_s        generated ones, of the last batch
    memory_bytes        the resident sets of its processes; on GPUs the most memory seen in use on its devices
    memory_total_bytes  what these devices have
    """

    slot: str = ""
    incarnation: str = ""
    method: str = ""
    state: str = ""
    point: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    batches_done: int = 0
    batches_total: int = 0
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


class Progress(Struct, frozen=True, kw_only=True):
    """A snapshot for the live view; never journalled. `points_done` have ended well, `points_failed` otherwise; `eta_s`
    until the last worker is gone, None where it can't be told."""

    workers: list[WorkerProgress] = field(default_factory=list)
    points_done: int = 0
    points_failed: int = 0
    points_skipped: int = 0
    points_total: int = 0
    eta_s: float | None = None
