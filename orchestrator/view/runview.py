"""A run directory as one value: what was planned, what happened, what was measured. A pure read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from orchestrator import events as ev
from orchestrator.errors import JournalError
from orchestrator.judge.agreement import Agreements, agreements, base_points
from orchestrator.plan import Plan, SweepPoint
from orchestrator.provenance import Provenance
from orchestrator.record.disk import read_regular
from orchestrator.record.lock import Holder, holder
from orchestrator.record.replay import Replay, read_records, replay
from orchestrator.view.hardware import Uses
from orchestrator.view.measures import Measures

RunState = Literal["running", "finished", "stopped", "interrupted", "crashed"]
PointState = Literal["ok", "partial", "failed", "incomplete", "unfinished", "skipped"]

#: Exit codes from here on mean "ended by signal (code - 128)".
_SIGNALLED = 128


@dataclass
class Worker:
    """One incarnation. What never happened is None."""

    launched: ev.WorkerLaunched
    ready: ev.WorkerReady | None = None
    released: ev.WorkerReleased | None = None
    state: str = "launching"
    points: list[str] = field(default_factory=list)


@dataclass
class RunView:
    """The journal of a run, sorted by what a reader asks. `load` reads it once."""

    run_dir: Path
    plan: Plan
    replay: Replay
    holder: Holder | None
    workers: dict[str, Worker] = field(default_factory=dict)
    starts: list[ev.RunStarted] = field(default_factory=list)
    origins: list[Provenance] = field(default_factory=list)
    uses: Uses = field(default_factory=dict)
    endings: list[ev.RunEnded] = field(default_factory=list)
    lost: list[ev.BatchLost] = field(default_factory=list)
    survivors: list[ev.SurvivorsReaped] = field(default_factory=list)
    quarantined: list[ev.SlotQuarantined] = field(default_factory=list)
    waits: list[ev.Waited] = field(default_factory=list)
    warmups: list[ev.WarmupDone] = field(default_factory=list)
    waiting: ev.Waiting | None = None
    last_at: float | None = None
    ended_last: bool = False

    @classmethod
    def load(cls, run_dir: Path) -> RunView:
        """Raises JournalError if `run_dir` holds no run or a damaged one."""
        # The holder first: a run that ends in between is then called crashed never, running at worst.
        holds = holder(run_dir)
        view = cls(run_dir, read_plan(run_dir), replay(run_dir), holds)
        for event in view.replay.events():
            view._note(event)
        return view

    @property
    def state(self) -> RunState:
        if self.holder is not None:
            return "running"
        if not self.ended_last:
            return "crashed"
        code = self.endings[-1].exit_code
        return "interrupted" if code >= _SIGNALLED else "stopped" if code == ev.EXIT_STOPPED_EARLY else "finished"

    @property
    def exit_code(self) -> int | None:
        return self.endings[-1].exit_code if self.ended_last else None

    @cached_property
    def points(self) -> dict[str, SweepPoint]:
        return {point.id: point for point in self.plan.points}

    @cached_property
    def missing(self) -> dict[str, int]:
        """Per point how many of its prompts have no record. Points with none missing are left out, and skipped ones."""
        planned = set(self.plan.prompt_ids)
        needed = (point for point in self.points if point not in self.replay.skipped)
        counts = {point: len(planned - self.replay.committed.get(point, set())) for point in needed}
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

    def cause_of(self, point: str) -> ev.Cause | None:
        """Why a point did not end well: its own cause, else that of its first lost batch or failed prompt."""
        ended = self.replay.outcomes.get(point)
        if ended is None or ended.outcome == "ok":
            return None
        if ended.cause is not None:
            return ended.cause
        lost = (event.cause for event in self.lost if event.point == point)
        errors = (cause for _, cause in self.measures[point].errors)
        return next(lost, None) or next(errors, None)

    def workers_of(self, point: str) -> list[Worker]:
        """The incarnations that a point ran in, in order."""
        return [worker for worker in self.workers.values() if point in worker.points]

    @property
    def order(self) -> list[str]:
        """Methods as they first ran: heat and clocks favour whoever came first."""
        return list(dict.fromkeys(worker.launched.method for worker in self.workers.values()))

    @cached_property
    def measures(self) -> dict[str, Measures]:
        """Per planned point. Reads every record, one batch at a time. Raises JournalError on damage."""
        found = {point: Measures() for point in self.points}
        # A retry runs what is left of a batch under the batch's own name, in another worker.
        measured = set()
        for part in self.replay.ranges:
            commit = part.commit
            found.setdefault(commit.point, Measures()).add_batch(commit, part.measured)
            if part.measured:
                measured.add((commit.point, commit.batch, commit.incarnation))
        for record in read_records(self.run_dir, self.replay):
            key = (record.point, record.batch, record.incarnation)
            found[record.point].add_record(record, key in measured, self.plan.measurement)
        return found

    @cached_property
    def agreements(self) -> Agreements:
        """How the outputs agree. Reads every record, those of the reference at first. Raises JournalError on damage."""
        references = self.records_of(base_points(self.plan, outputs=self.outputs))
        return agreements(self.plan, references, read_records(self.run_dir, self.replay), outputs=self.outputs)

    @property
    def outputs(self) -> dict[str, int]:
        """Point → of how many prompts it has a record that is no error."""
        errors = self.replay.errors
        return {point: len(done) - errors.get(point, 0) for point, done in self.replay.committed.items()}

    def records_of(self, points: Collection[str]) -> Iterator[ev.Record]:
        """The records of these points, one batch in memory at a time. Raises JournalError on damage."""
        ranges = [part for part in self.replay.ranges if part.commit.point in points]
        return read_records(self.run_dir, replace(self.replay, ranges=ranges))

    @property
    def measured_s(self) -> float:
        """Seconds inside engines' generate calls whose results count, warm-up excluded."""
        return sum(part.commit.stats.wall_s for part in self.replay.ranges if part.commit.stats)

    @property
    def current(self) -> Worker | None:
        """The worker that is in the slot now, or was when the coordinator ended."""
        return next((w for w in reversed(self.workers.values()) if w.released is None), None)

    def _note(self, event: ev.Event) -> None:
        self.last_at = event.at
        self.ended_last = isinstance(event, ev.RunEnded)
        match event:
            case ev.RunStarted():
                self.starts.append(event)
            case ev.RunEnded():
                self.endings.append(event)
            case ev.BatchLost():
                self.lost.append(event)
            case ev.SurvivorsReaped():
                self.survivors.append(event)
            case ev.SlotQuarantined():
                self.quarantined.append(event)
            case ev.Waiting():
                self.waiting = event
            case ev.Waited():
                self.waits.append(event)
                self.waiting = None
            case ev.WarmupDone():
                self.warmups.append(event)
            case ev.WorkerLaunched():
                self.workers[event.incarnation] = Worker(event)
            case Provenance():
                self.origins.append(event)
            case ev.DevicesUsed():
                self.uses[event.incarnation, event.batch] = event.devices
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
            case ev.PointStarted() | ev.BatchCommitted():
                if event.point not in worker.points:
                    worker.points.append(event.point)


def read_plan(run_dir: Path) -> Plan:
    """Raises JournalError naming the file."""
    path = run_dir / "plan.json"
    try:
        return msgspec.json.decode(read_regular(path), type=Plan)
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}: not a run directory, or one whose start was cut short") from exc
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: is not a plan of this version of Airlock: {exc}") from exc
