"""A run directory as one value: what was planned, what happened, what was measured. A pure read."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from orchestrator import events as ev
from orchestrator.errors import JournalError
from orchestrator.plan import Plan, SweepPoint
from orchestrator.record.disk import read_regular
from orchestrator.record.lock import Holder, holder
from orchestrator.record.replay import Replay, read_records, replay
from protocol.records import FLAG_DEGENERATE, FLAG_NO_TIMING, FLAG_SURPLUS_RESULTS

RunState = Literal["running", "finished", "stopped", "interrupted", "crashed"]
PointState = Literal["ok", "partial", "failed", "incomplete", "unfinished"]

#: One token id making up more than this share of an output that ran to its full length.
_DEGENERATE_SHARE = 0.95
_DEGENERATE_TOKENS = 8
#: Exit codes from here on mean "ended by signal (code - 128)".
_SIGNALLED = 128
#: Flags that no record of the batch carries.
_OF_BATCHES = frozenset({FLAG_SURPLUS_RESULTS, FLAG_NO_TIMING})
#: Causes of failed prompts kept for the report, per point.
_KEPT_ERRORS = 20


@dataclass
class Worker:
    """One incarnation. What never happened is None."""

    launched: ev.WorkerLaunched
    ready: ev.WorkerReady | None = None
    released: ev.WorkerReleased | None = None
    state: str = "launching"
    points: list[str] = field(default_factory=list)


@dataclass
class Measures:
    """What the records of one point add up to. Only prompts without an error count in the figures.

    tokens, wall_s  over the measured batches: those with timings and no record that was replaced later
    ttft_s, tpot_s  one value per prompt, where the engine tells; see `summary` for the formulas
    """

    ok: int = 0
    failed: int = 0
    tokens: int = 0
    wall_s: float = 0.0
    peak_bytes: int | None = None
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))
    flags: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[str, ev.Cause]] = field(default_factory=list)


@dataclass
class RunView:
    """The journal of a run, sorted by what a reader asks. `load` reads it once."""

    run_dir: Path
    plan: Plan
    replay: Replay
    holder: Holder | None
    workers: dict[str, Worker] = field(default_factory=dict)
    starts: list[ev.RunStarted] = field(default_factory=list)
    endings: list[ev.RunEnded] = field(default_factory=list)
    lost: list[ev.BatchLost] = field(default_factory=list)
    survivors: list[ev.SurvivorsReaped] = field(default_factory=list)
    quarantined: list[ev.SlotQuarantined] = field(default_factory=list)
    waits: list[ev.Waited] = field(default_factory=list)
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
        """Per point how many of its prompts have no record. Points with none missing are left out."""
        planned = set(self.plan.prompt_ids)
        counts = {point: len(planned - self.replay.committed.get(point, set())) for point in self.points}
        return {point: count for point, count in counts.items() if count}

    @property
    def complete(self) -> bool:
        """Every prompt of every point has a record and every point has ended."""
        return not self.missing and all(self.state_of(point) in ("ok", "partial", "failed") for point in self.points)

    def state_of(self, point: str) -> PointState:
        """How a point stands. "incomplete": it was called ok, and yet prompts have no record."""
        ended = self.replay.outcomes.get(point)
        if ended is None:
            return "unfinished"
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

    @cached_property
    def measures(self) -> dict[str, Measures]:
        """Per planned point. Reads every record, one batch at a time. Raises JournalError on damage."""
        found = {point: Measures() for point in self.points}
        measured = set()
        for part in self.replay.ranges:
            commit = part.commit
            of_point = found.setdefault(commit.point, Measures())
            of_point.flags.update(flag for flag in commit.flags if flag in _OF_BATCHES)
            if commit.stats is not None:
                peaks = (of_point.peak_bytes, commit.stats.peak_memory_bytes)
                of_point.peak_bytes = max((p for p in peaks if p is not None), default=None)
                if not part.overtaken:
                    of_point.wall_s += commit.stats.wall_s
                    measured.add((commit.point, commit.batch))
        for record in read_records(self.run_dir, self.replay):
            _add(found[record.point], record, (record.point, record.batch) in measured)
        return found

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
            case ev.WorkerLaunched():
                self.workers[event.incarnation] = Worker(event)
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


def _add(of_point: Measures, record: ev.Record, measured: bool) -> None:
    of_point.flags.update(record.flags)
    if record.error is not None:
        of_point.failed += 1
        if len(of_point.errors) < _KEPT_ERRORS:
            of_point.errors.append((record.prompt_id, record.error))
        return
    of_point.ok += 1
    if FLAG_DEGENERATE not in record.flags and _is_degenerate(record):
        of_point.flags[FLAG_DEGENERATE] += 1
    if measured:
        of_point.tokens += record.generated_tokens
    if record.ttft_s is not None:
        of_point.ttft_s.append(record.ttft_s)
        if record.latency_s is not None and record.generated_tokens > 1:
            of_point.tpot_s.append((record.latency_s - record.ttft_s) / (record.generated_tokens - 1))


def _is_degenerate(record: ev.Record) -> bool:
    """An engine that repeats one token to the end is broken or badly set; it is told, and nothing is dropped.
    The worker flags it in longer outputs."""
    if record.finish_reason != "length" or len(record.token_ids) < _DEGENERATE_TOKENS:
        return False
    (_, most), *_ = Counter(record.token_ids).most_common(1)
    return most > _DEGENERATE_SHARE * len(record.token_ids)


def read_plan(run_dir: Path) -> Plan:
    """Raises JournalError naming the file."""
    path = run_dir / "plan.json"
    try:
        return msgspec.json.decode(read_regular(path), type=Plan)
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}: not a run directory, or one whose start was cut short") from exc
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: is not a plan of this version of Airlock: {exc}") from exc
