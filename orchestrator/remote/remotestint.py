"""A worker start that an outpost works off, as the loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from orchestrator.events import Event, PointEnded, PointStarted, SlotQuarantined, Waited, Waiting, WorkerLaunched
from orchestrator.outcomes import Cause
from orchestrator.progress import WorkerProgress
from orchestrator.record.output import Record
from orchestrator.remote.messages import Assign, Finished, Logged, Told, Wrote
from orchestrator.run.docket import Job
from orchestrator.run.ledger import Ledger
from orchestrator.run.life import State
from orchestrator.run.recording import Beside
from orchestrator.run.slots import Slot
from orchestrator.run.tally import Earlier

_event = msgspec.json.Decoder(Event)
_record = msgspec.json.Decoder(Record)


@dataclass
class RemoteStint:
    """
    keep_log  writes a worker's log into the run directory
    assign    what its outpost was told
    trouble   why nothing more is to be had from its slot, "" while there may be
    """

    job: Job
    slot: Slot
    assign: Assign
    ledger: Ledger
    keep_log: Callable[[str, bytes], None]
    host: str
    trouble: str = ""
    over: bool = False
    called: bool = True
    _cause: Cause | None = None
    _now: WorkerProgress | None = None
    _beside: set[str] = field(default_factory=set)
    _done: dict[str, set[str]] = field(default_factory=dict)
    _bad: dict[str, dict[str, Cause]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done = {point: set(ids) for point, ids in self.assign.done.items()}
        self._bad = {point: dict(causes) for point, causes in self.assign.bad.items()}
        self.ledger.lend(point.id for point in self.assign.start.points)

    # --- what its outpost tells -------------------------------------------------------

    def take(self, message: Told | Wrote | Logged | Finished) -> None:
        match message:
            case Told():
                self._told(_event.decode(message.event))
            case Wrote():
                self._wrote(message)
            case Logged():
                self.keep_log(message.name, message.text)
            case Finished():
                self._finished(message)

    def _told(self, event: Event) -> None:
        """As it happened there; slots have another name here."""
        match event:
            case WorkerLaunched() | SlotQuarantined() | Waiting() | Waited():
                self.ledger.emit(replace(event, slot=self.slot.name))
            case PointStarted() | PointEnded():
                self._done.setdefault(event.point, set())
                self.ledger.emit(event)
            case _:
                self.ledger.emit(event)

    def _wrote(self, message: Wrote) -> None:
        records = [_record.decode(line) for line in message.records]
        self.ledger.commit(
            point=message.point,
            batch=message.batch,
            incarnation=message.incarnation,
            records=records,
            stats=message.stats,
            flags=message.flags,
            beside=Beside(message.host, tuple(sorted(self._beside))),
        )
        self._beside.clear()
        self._done.setdefault(message.point, set()).update(record.prompt_id for record in records)
        errors = {record.prompt_id: record.error for record in records if record.error}
        self._bad.setdefault(message.point, {}).update(errors)

    def _finished(self, message: Finished) -> None:
        if message.assignment == self.assign.assignment:
            self.trouble, self._cause, self.over = message.trouble, message.cause, True

    def ticked(self, progress: WorkerProgress | None) -> None:
        self._now = progress

    def lose(self, why: str) -> None:
        """Its outpost is not to be heard from again. What it committed stays."""
        self.trouble, self.over = why, True

    # --- as an occupant -----------------------------------------------------------------

    @property
    def name(self) -> str:
        """The yard takes what comes for it."""
        return ""

    @property
    def label(self) -> str:
        return f"{self.slot.name}: {self.job.start.config.method.name}"

    @property
    def state(self) -> State:
        return State(self._now.state) if self._now else State.LAUNCHING

    def wake_in_s(self, _now: float) -> float:
        return float("inf")

    def fds(self) -> Sequence[int]:
        return ()

    def find_segments(self, names: Iterable[str]) -> None:
        """They are of this machine."""

    def take_frames(self, parts: list[bytes]) -> None:
        """Never called: it has no name of its own."""

    def take_news(self) -> None: ...

    def check_clock(self) -> None: ...

    def suspended(self, for_s: float) -> None:
        """The outpost goes on without us, and measures nothing wrong."""

    def advance(self) -> None:
        """The yard tells its outpost when to leave."""

    def call(self) -> None:
        """It never stands by."""

    def send_away(self, reason: str) -> None:
        """Nor does it wait."""

    def meet(self, others: Iterable[str]) -> None:
        if self.state is State.BUSY:
            self._beside.update(others)

    def progress(self) -> WorkerProgress:
        found = self._now or WorkerProgress(method=self.job.start.config.method.name, state="preparing")
        return replace(found, slot=self.slot.name)

    def end(self) -> None:
        """What it did stays; the rest of the job begins where it ended."""
        points = [point.id for point in self.assign.start.points]
        self.ledger.take_back(points)
        for point in points:
            if point in self._done and point not in self.ledger.ended:
                bad = self._bad.get(point, {})
                self.ledger.earlier[point] = Earlier(frozenset(self._done[point]), bad)
        self.job.catch_up()
        if self._cause:
            self.job.course.give_up(self._cause)

    def close(self) -> None: ...


def assigned(job: Job, ledger: Ledger, number: int, left_s: float | None) -> Assign:
    """What is left of the job, for an outpost."""
    points = tuple(p for p in job.start.points if p.id not in ledger.ended and p.id not in ledger.skipped)
    earlier = {point.id: ledger.earlier[point.id] for point in points if point.id in ledger.earlier}
    return Assign(
        assignment=number,
        start=replace(job.start, points=points),
        fingerprint=job.env.fingerprint.digest,
        done={point: sorted(one.done) for point, one in earlier.items()},
        bad={point: dict(one.bad) for point, one in earlier.items()},
        left_s=left_s,
    )
