"""Where a run stands, from its events alone: who works at what, how much of it is done, how long the rest may take.

For whoever watches a run from outside; each event costs the same, however large the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import events as ev
from orchestrator.plan import Plan, SweepPoint
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.provenance import Provenance
from orchestrator.run.history import Past
from orchestrator.run.life import State
from orchestrator.run.outlook import Outlook
from orchestrator.view.summary import settings_of, varying
from protocol.records import MemoryUse

#: In which a worker has its model, as the journal tells states: what ends "ready" is never a batch.
_LOADED = State.READY.value


@dataclass
class _Worker:
    """`start`: the key of its worker start, "" while that is not known."""

    launched: ev.WorkerLaunched
    start: str
    state: str = State.LAUNCHING.value
    point: str = ""
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def loaded(self) -> bool:
        return self.state == _LOADED


class Standing:
    """Tell it every event of a run, in order."""

    def __init__(self, plan: Plan, past: Iterable[Past] = ()) -> None:
        self._plan = plan
        self._outlook = Outlook(plan, most=1)
        self._outlook.recall(past)
        self._start_of = {point.id: start.key for start in plan.starts for point in start.points}
        self._points = {point.id: point for point in plan.points}
        self._names = varying(plan)
        self._left = {start.key: sum(map(self._batches_left, start.points)) for start in plan.starts}
        self._done = dict.fromkeys(self._left, 0)
        self._workers: dict[str, _Worker] = {}
        self._sizes: dict[str, int | None] = {}
        self._outcomes: dict[str, bool] = {}
        self._skipped: set[str] = set()

    # --- events in ------------------------------------------------------------------

    def heed(self, event: ev.Event) -> None:
        of = getattr(event, "point", "")
        point = self._points.get(of)
        if point is not None:
            before = self._batches_left(point)
            self._outlook.heed(event)
            self._left[self._start_of[point.id]] += self._batches_left(point) - before
            self._of_point(point, event)
        elif not of:
            self._outlook.heed(event)
        self._of_worker(event)

    def _of_point(self, point: SweepPoint, event: ev.Event) -> None:
        match event:
            case ev.PointStarted():
                self._outcomes.pop(point.id, None)
                self._skipped.discard(point.id)
                if worker := self._workers.get(event.incarnation):
                    worker.start = self._start_of[point.id]
            case ev.BatchCommitted(stats=stats) if stats is not None:
                self._done[self._start_of[point.id]] += 1
            case ev.PointEnded():
                self._outcomes[point.id] = event.outcome == "ok"
            case ev.PointSkipped():
                self._skipped.add(point.id)

    def _of_worker(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._workers.clear()
                self._done = dict.fromkeys(self._left, 0)
            case Provenance():
                self._sizes |= {device.uuid: device.memory_bytes for device in event.devices}
            case ev.WorkerLaunched():
                self._workers[event.incarnation] = _Worker(event, event.start)
                self._outlook.most = max(self._outlook.most, len({one.launched.slot for one in self._workers.values()}))
            case ev.WorkerReleased():
                self._workers.pop(event.incarnation, None)
            case _:
                worker = self._workers.get(getattr(event, "incarnation", ""))
                if worker is not None:
                    _note(worker, event)

    # --- what follows -----------------------------------------------------------------

    def progress(self) -> Progress:
        """Of now."""
        failed = sum(not ok for ok in self._outcomes.values())
        return Progress(
            workers=[self._progress_of(worker) for worker in self._workers.values()],
            points_done=len(self._outcomes) - failed,
            points_failed=failed,
            points_skipped=len(self._skipped),
            points_total=len(self._points),
            eta_s=self._eta_s(),
        )

    def _eta_s(self) -> float | None:
        loaded = {one.start for one in self._workers.values() if one.loaded}
        found = self._outlook.estimate(loaded & self._left.keys())
        return found.eta_s if found else None

    def _progress_of(self, worker: _Worker) -> WorkerProgress:
        launched, point = worker.launched, self._points.get(worker.point)
        done = self._done.get(worker.start, 0)
        return WorkerProgress(
            slot=launched.slot,
            incarnation=launched.incarnation,
            method=launched.method,
            state=State.BUSY.value if worker.loaded and point else worker.state,
            point=worker.point,
            settings=settings_of(point, self._names) if point else {},
            batches_done=done,
            batches_total=done + self._left.get(worker.start, 0),
            tokens_per_s=worker.tokens_per_s,
            memory_bytes=worker.memory_bytes,
            memory_total_bytes=self._size_bytes(worker.devices),
        )

    def _size_bytes(self, devices: Iterable[str]) -> int | None:
        sizes = [self._sizes.get(uuid) for uuid in devices]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    def _batches_left(self, point: SweepPoint) -> int:
        if point.id in self._outlook.over:
            return 0
        whole = len(self._plan.prompt_ids)
        left = max(0, whole - self._outlook.done.get(point.id, 0))
        return -(-left // point.config.batch_size)


def _note(worker: _Worker, event: ev.Event) -> None:
    match event:
        case ev.StateChanged():
            worker.state = event.state
            if not worker.loaded:
                worker.point = ""
        case ev.WorkerReady():
            worker.memory_bytes = _held(event.metadata.memory)
        case ev.PointStarted():
            worker.tokens_per_s = worker.tokens_per_s if worker.point == event.point else None
            worker.point = event.point
        case ev.DevicesUsed():
            worker.devices = tuple(one.uuid for one in event.devices)
        case ev.BatchCommitted(stats=stats) if stats is not None:
            worker.memory_bytes = stats.peak_memory_bytes or worker.memory_bytes
            timed = stats.wall_s > 0 and stats.generated_tokens > 0
            worker.tokens_per_s = stats.generated_tokens / stats.wall_s if timed else None


def _held(memory: MemoryUse) -> int | None:
    return memory.device_peak_bytes or memory.host_rss_bytes
