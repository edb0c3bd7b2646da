"""A run directory as one value: what was planned, what happened, what was measured. A pure read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from orchestrator import events as ev
from orchestrator.exits import ended_as
from orchestrator.judge.agreement import Agreements
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, SweepPoint
from orchestrator.provenance import Provenance
from orchestrator.record.bypoint import ByPoint
from orchestrator.record.cutoff import Rewound, cut_off
from orchestrator.record.lock import Holder, holder
from orchestrator.record.output import Record
from orchestrator.record.planfile import read_plan
from orchestrator.view.judged import judged
from orchestrator.view.measures import KEPT_ERRORS

__all__ = ["PointState", "RunState", "RunView", "Worker", "read_plan"]

Heed = Callable[[ev.Event], None]
RunState = Literal["running", "finished", "stopped", "interrupted", "crashed"]
PointState = Literal["ok", "partial", "failed", "incomplete", "unfinished", "skipped"]

#: What is found once, until more is read.
_GROWING = ("missing", "places", "agreements", "_servers")


@dataclass
class Worker:
    """One incarnation. What never happened is None."""

    launched: ev.WorkerLaunched
    ready: ev.WorkerReady | None = None
    released: ev.WorkerReleased | None = None
    state: str = "launching"
    served: dict[str, None] = field(default_factory=dict)

    @property
    def points(self) -> list[str]:
        """In the order in which it began them."""
        return list(self.served)


@dataclass
class RunView:
    """The journal of a run, sorted by what a reader asks. `load` reads it once; records are read point by point, when
    they are asked for, and nothing here grows with their number. Nor does anything take it that one worker ends before
    the next begins.

    warmups_s   of each point
    lost        of each point
    most_slots  how many slots were held at once, at most
    """

    run_dir: Path
    plan: Plan
    replay: ByPoint
    holder: Holder | None
    workers: dict[str, Worker] = field(default_factory=dict)
    starts: list[ev.RunStarted] = field(default_factory=list)
    origins: list[Provenance] = field(default_factory=list)
    endings: list[ev.RunEnded] = field(default_factory=list)
    lost: dict[str, list[ev.BatchLost]] = field(default_factory=dict)
    survivors: list[ev.SurvivorsReaped] = field(default_factory=list)
    quarantined: list[ev.SlotQuarantined] = field(default_factory=list)
    waits: list[ev.Waited] = field(default_factory=list)
    warmups_s: dict[str, list[float]] = field(default_factory=dict)
    waiting: dict[tuple[str, str], ev.Waiting] = field(default_factory=dict)
    most_slots: int = 0
    last_at: float | None = None
    ended_last: bool = False
    _held: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, run_dir: Path) -> RunView:
        """Raises JournalError if `run_dir` holds no run or a damaged one."""
        plan = read_plan(run_dir)
        try:
            return cls.begin(run_dir, plan)
        except Rewound:
            return cls.begin(run_dir, plan, cut_off(run_dir))

    @classmethod
    def begin(
        cls, run_dir: Path, plan: Plan, dropped: Mapping[int, int] | None = None, heed: Heed = lambda _event: None
    ) -> RunView:
        """`dropped`: see `cut_off`. Raises as `update` does."""
        view = cls(run_dir, plan, ByPoint(run_dir, plan.prompt_ids, dropped), None)
        view.update(heed)
        return view

    def update(self, heed: Heed = lambda _event: None) -> None:
        """Takes in what was written since it was last read; `heed` is told each event. Raises JournalError on damage,
        Rewound where a resume has cut off commits that were read: then it is of no more use."""
        # The holder first: a run that ends in between is then called crashed never, running at worst.
        self.holder = holder(self.run_dir)
        for name in _GROWING:
            self.__dict__.pop(name, None)
        for event in self.replay.read():
            self._note(event)
            heed(event)

    @property
    def state(self) -> RunState:
        if self.holder is not None:
            return "running"
        if not self.ended_last:
            return "crashed"
        return ended_as(self.endings[-1].exit_code)

    @property
    def exit_code(self) -> int | None:
        return self.endings[-1].exit_code if self.ended_last else None

    @cached_property
    def points(self) -> dict[str, SweepPoint]:
        return {point.id: point for point in self.plan.points}

    @cached_property
    def missing(self) -> dict[str, int]:
        """Per point how many of its prompts have no record. Points with none missing are left out, and skipped ones."""
        counts = {point: self.replay.missing(point) for point in self.points if point not in self.replay.skipped}
        return {point: count for point, count in counts.items() if count}

    @property
    def complete(self) -> bool:
        """Every prompt of every point has a record and every point has ended, those apart that were skipped."""
        ended = ("ok", "partial", "failed", "skipped")
        return not self.missing and all(self.state_of(point) in ended for point in self.points)

    @property
    def open(self) -> list[tuple[str, PointState, int]]:
        """Points that have not ended or lack records: which, how each stands, and how many records are missing."""
        stands = ((point, self.state_of(point), self.missing.get(point, 0)) for point in self.points)
        return [one for one in stands if one[1] == "unfinished" or one[2]]

    def state_of(self, point: str) -> PointState:
        """How a point stands. "incomplete": it was called ok, and yet prompts have no record. "skipped": a repeat
        that was not needed."""
        ended = self.replay.outcomes.get(point)
        if ended is None:
            return "skipped" if point in self.replay.skipped else "unfinished"
        return "incomplete" if ended.outcome == "ok" and point in self.missing else ended.outcome

    def cause_of(self, point: str) -> Cause | None:
        """Why a point did not end well: its own cause, else that of its first lost batch or failed prompt."""
        ended = self.replay.outcomes.get(point)
        if ended is None or ended.outcome == "ok":
            return None
        if ended.cause is not None:
            return ended.cause
        lost = (event.cause for event in self.lost.get(point, ()))
        return next(lost, None) or next((cause for _, cause in self.errors_of(point)[0]), None)

    def errors_of(self, point: str) -> tuple[list[tuple[str, Cause]], int]:
        """Prompts with an error record, the first KEPT_ERRORS of them; and how many there are. Raises JournalError on
        damage."""
        if not self.may_have_errors(point):
            return [], 0
        ranges = [part for part in self.replay.part([point]).ranges if part.commit.errors]
        failed = [(one.prompt_id, one.error) for one in self.replay.records_of(ranges) if one.error is not None]
        return failed[:KEPT_ERRORS], len(failed)

    def may_have_errors(self, point: str) -> bool:
        """What an error record says can only be read; where there is none the journal tells."""
        stand = self.replay.stands.get(point)
        return stand is not None and (stand.errors > 0 or stand.again)

    def peaks(self, points: Iterable[str]) -> list[int | None]:
        """Of memory, as the batches told it."""
        return [stand.peak_bytes for point in points if (stand := self.replay.stands.get(point))]

    def workers_of(self, point: str) -> list[Worker]:
        """The incarnations that a point ran in, in order."""
        return self._servers.get(point, [])

    @cached_property
    def places(self) -> dict[str, int]:
        """Incarnation → which of them it was, from 0."""
        return {name: number for number, name in enumerate(self.workers)}

    @cached_property
    def _servers(self) -> Mapping[str, list[Worker]]:
        found: dict[str, list[Worker]] = {}
        for worker in self.workers.values():
            for point in worker.served:
                found.setdefault(point, []).append(worker)
        return found

    @property
    def order(self) -> list[str]:
        """Methods as they first ran: heat and clocks favour whoever came first."""
        return list(dict.fromkeys(worker.launched.method for worker in self.workers.values()))

    @cached_property
    def agreements(self) -> Agreements:
        """How the outputs agree. Reads every record. Raises JournalError on damage."""
        return judged(self)

    @property
    def outputs(self) -> dict[str, int]:
        """Point → of how many prompts it has a record that is no error."""
        return {point: stand.records - stand.errors for point, stand in self.replay.stands.items() if stand.records}

    def records_of(self, points: Collection[str]) -> Iterator[Record]:
        """The records of these points, one batch in memory at a time. Raises JournalError on damage."""
        return self.replay.records_of(self.replay.part(points).ranges)

    @property
    def measured_s(self) -> float:
        """Seconds inside engines' generate calls whose results count, warm-up excluded, over all slots."""
        return self.replay.measured_s

    @property
    def current(self) -> list[Worker]:
        """The workers that are there now, or were when the coordinator ended."""
        return [self.workers[name] for name in self._held]

    def _note(self, event: ev.Event) -> None:
        self.last_at = event.at
        if not isinstance(event, ev.Notified):
            self.ended_last = isinstance(event, ev.RunEnded)
        match event:
            case ev.RunStarted():
                self.starts.append(event)
                self.waiting.clear()
                self._held.clear()
            case ev.RunEnded():
                self.endings.append(event)
            case ev.BatchLost():
                self.lost.setdefault(event.point, []).append(event)
            case ev.SurvivorsReaped():
                self.survivors.append(event)
            case ev.SlotQuarantined():
                self.quarantined.append(event)
            case ev.Waiting():
                self.waiting[event.what, event.slot] = event
            case ev.Waited():
                self.waits.append(event)
                self.waiting.pop((event.what, event.slot), None)
            case ev.WarmupDone():
                self.warmups_s.setdefault(event.point, []).append(event.stats.wall_s)
            case ev.WorkerLaunched():
                self.workers[event.incarnation] = Worker(event)
                self._hold(event)
            case Provenance():
                self.origins.append(event)
            case _:
                self._note_of_worker(event)

    def _note_of_worker(self, event: ev.Event) -> None:
        worker = self.workers.get(getattr(event, "incarnation", ""))
        if worker is None:
            return
        match event:
            case ev.StateChanged():
                worker.state = event.state
            case ev.WorkerReady():
                worker.ready = event
            case ev.WorkerReleased():
                worker.released = event
                self._held.pop(event.incarnation, None)
            case ev.PointStarted() | ev.BatchCommitted():
                worker.served[event.point] = None

    def _hold(self, event: ev.WorkerLaunched) -> None:
        """One that is started early shares its slot with the one before it."""
        self._held[event.incarnation] = event.slot
        self.most_slots = max(self.most_slots, len(set(self._held.values())))
