"""From the events of a run to what its batches and worker starts took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator import events as ev
from orchestrator.record.output import FLAG_SUSPENDED
from orchestrator.run.paces import Batch, Cell, Paces, Phase

#: Between two batches of a worker it takes milliseconds; more was a wait for something.
MOST_BETWEEN_S: Final = 2.0
_UP: Final = ("launching", "importing", "loading")
_ALONGSIDE: Final = ("launching", "importing")  # of a worker that was started while another one worked


@dataclass
class _Worker:
    """`at`: when its last batch ended or its point began; None where that tells nothing of the next."""

    early: str
    state: str = "launching"
    spent_s: dict[str, float] = field(default_factory=dict)
    cell: Cell | None = None
    at: float | None = None
    warm: bool = False


class Listener:
    """Turns the events of one run into times. `cells`: of its points; what happens in others is left out."""

    def __init__(self, cells: Mapping[str, Cell], paces: Paces) -> None:
        self._cells = cells
        self._paces = paces
        self._workers: dict[str, _Worker] = {}

    def heed(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._workers.clear()
            case ev.WorkerLaunched():
                self._workers[event.incarnation] = _Worker(event.early)
            case ev.Waited():
                for worker in self._workers.values():
                    worker.at = None
            case ev.WarmupDone():
                self._warmed(event)
            case _:
                if (of := self._workers.get(getattr(event, "incarnation", ""))) is not None:
                    self._of(of, event)

    def _of(self, worker: _Worker, event: ev.Event) -> None:
        match event:
            case ev.StateChanged():
                worker.spent_s[worker.state] = worker.spent_s.get(worker.state, 0.0) + event.after_s
                worker.state = event.state
            case ev.PointStarted():
                self._started(worker, event)
            case ev.BatchCommitted():
                self._committed(worker, event)
            case ev.BatchLost() | ev.Probed():
                worker.at = event.at
            case ev.WorkerReleased():
                del self._workers[event.incarnation]
                if worker.cell is not None:
                    self._paces.went_down(worker.cell, event.reclaim.teardown_s + event.reclaim.wait_s)

    def _started(self, worker: _Worker, event: ev.PointStarted) -> None:
        cell = self._cells.get(event.point)
        if worker.cell is None and cell is not None and "loading" in worker.spent_s:
            states = [state for state in _UP if not (worker.early == "standby" and state in _ALONGSIDE)]
            self._paces.came_up(cell, sum(worker.spent_s.get(state, 0.0) for state in states))
        worker.cell, worker.at = cell, event.at

    def _warmed(self, event: ev.WarmupDone) -> None:
        """It names no worker, but its point is under way in one."""
        cell = self._cells.get(event.point)
        worker = next((one for one in self._workers.values() if cell is not None and one.cell is cell), None)
        if cell is not None and worker is not None:
            phase: Phase = "warm" if worker.warm else "first"
            self._paces.took(Batch(cell.kind, cell.size, phase), self._lasted(worker, event.at, event.stats.wall_s))
            worker.warm = True

    def _committed(self, worker: _Worker, event: ev.BatchCommitted) -> None:
        cell = self._cells.get(event.point)
        if cell is None or event.stats is None or FLAG_SUSPENDED in event.flags:
            worker.at = event.at
            return
        seconds = self._lasted(worker, event.at, event.stats.wall_s)
        self._paces.took(Batch(cell.kind, len(event.prompts)), seconds)
        worker.warm = True

    def _lasted(self, worker: _Worker, at: float, wall_s: float) -> float:
        """The engine's time, and ours round it."""
        between_s = 0.0 if worker.at is None else at - worker.at - wall_s
        worker.at = at
        return wall_s + (between_s if 0 < between_s <= MOST_BETWEEN_S else 0.0)
