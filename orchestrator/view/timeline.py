"""When each slot did what: the spans of a run, from its events alone. Pure.

Wall clocks step and coordinators are away for a night: time here never runs backwards, and the hours between two starts
of a run are cut out and told as breaks. However long a run is, no more than about MOST_SPANS are kept: past that,
neighbours of one method on one slot become one as long as all of them together are shorter than a resolution that
doubles until they are few enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import to_builtins

from orchestrator import events as ev

Phase = Literal["start", "import", "held", "load", "warm-up", "generate", "teardown", "waiting"]
#: In the order in which a worker passes them; "held": its engine is imported, its slot not free yet.
PHASES: Final[tuple[Phase, ...]] = ("start", "import", "held", "load", "warm-up", "generate", "teardown", "waiting")
MOST_SPANS: Final = 2000
#: Between a coordinator's last word and the next one's first; what is shorter is no break to speak of.
LEAST_BREAK_S: Final = 1.0
_OF_STATE: Final[dict[str, Phase]] = {
    "importing": "import",
    "standby": "held",
    "loading": "load",
    **dict.fromkeys(("draining", "terminating", "killing", "reaped"), "teardown"),
}


@dataclass(frozen=True)
class Span:
    """Seconds from the run's first event, breaks left out. `count`: how many spans it stands for; its phase is then
    the one that took the longest of them."""

    slot: str
    method: str
    phase: Phase
    begin_s: float
    end_s: float
    count: int = 1


@dataclass(frozen=True)
class Break:
    """Nobody was there from `at_s` on, for `away_s` seconds that the timeline leaves out."""

    at_s: float
    away_s: float


@dataclass
class _Worker:
    slot: str
    method: str
    phase: Phase | None = "start"
    since_s: float = 0.0


@dataclass
class Timeline:
    """Takes the events of a run in order. `spans` are complete after `close`."""

    spans: list[Span] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    began_at: float | None = None
    length_s: float = 0.0
    resolution_s: float | None = None
    _away_s: float = 0.0
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _runs_in: dict[str, str] = field(default_factory=dict)

    def add(self, event: ev.Event) -> None:
        self._tick(event)
        match event:
            case ev.WorkerLaunched():
                self._workers[event.incarnation] = _Worker(event.slot, event.method, since_s=self.length_s)
            case ev.StateChanged():
                self._turn(event.incarnation, _OF_STATE.get(event.state))
            case ev.PointStarted():
                self._runs_in[event.point] = event.incarnation
                self._turn(event.incarnation, "generate")
            case ev.WarmupDone():
                self._warmed(self._runs_in.get(event.point, ""), event.stats.wall_s)
            case ev.PointEnded():
                self._rest(self._runs_in.pop(event.point, ""))
            case ev.WorkerReleased():
                self._turn(event.incarnation, None)
                self._workers.pop(event.incarnation, None)
            case ev.Waited():
                self._keep(Span(event.slot, "", "waiting", max(0.0, self.length_s - event.wait_s), self.length_s))

    def close(self) -> None:
        """What is still under way has lasted until now."""
        for name in list(self._workers):
            self._turn(name, None)
        self._workers.clear()
        self._runs_in.clear()
        if len(self.spans) > MOST_SPANS:
            self._coarsen()

    def _tick(self, event: ev.Event) -> None:
        if self.began_at is None:
            self.began_at = event.at
        now_s = event.at - self.began_at - self._away_s
        if isinstance(event, ev.RunStarted) and event.life > 1:
            for name in list(self._workers):
                self._turn(name, None)
            self._workers.clear()
            if now_s - self.length_s >= LEAST_BREAK_S:
                self.breaks.append(Break(self.length_s, now_s - self.length_s))
                self._away_s += now_s - self.length_s
                return
        self.length_s = max(self.length_s, now_s)

    def _turn(self, name: str, phase: Phase | None) -> None:
        worker = self._workers.get(name)
        if worker is None or worker.phase == phase:
            return
        if worker.phase is not None and self.length_s > worker.since_s:
            self._keep(Span(worker.slot, worker.method, worker.phase, worker.since_s, self.length_s))
        worker.phase, worker.since_s = phase, self.length_s

    def _warmed(self, name: str, wall_s: float) -> None:
        worker = self._workers.get(name)
        if worker is None or worker.phase != "generate":
            return
        begin_s = max(worker.since_s, self.length_s - wall_s)
        if begin_s > worker.since_s:
            self._keep(Span(worker.slot, worker.method, "generate", worker.since_s, begin_s))
        self._keep(Span(worker.slot, worker.method, "warm-up", begin_s, self.length_s))
        worker.since_s = self.length_s

    def _rest(self, name: str) -> None:
        worker = self._workers.get(name)
        if worker is not None and worker.phase == "generate":
            self._turn(name, None)

    def _keep(self, span: Span) -> None:
        self.spans.append(span)
        if len(self.spans) >= 2 * MOST_SPANS:
            self._coarsen()

    def _coarsen(self) -> None:
        resolution_s = max(self.resolution_s or 0.0, self.length_s / MOST_SPANS)
        while len(self.spans) > MOST_SPANS:
            before = len(self.spans)
            self.spans = merged(self.spans, resolution_s)
            self.resolution_s = resolution_s
            if resolution_s > self.length_s and len(self.spans) == before:
                return  # one for each method on each slot
            resolution_s *= 2


def merged(spans: Iterable[Span], resolution_s: float) -> list[Span]:
    """Neighbours of one method on one slot, made one where they take no longer than `resolution_s` together."""
    lanes: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda one: one.begin_s):
        lanes.setdefault((span.slot, span.method), []).append(span)
    found = [one for lane in lanes.values() for one in _merged(lane, resolution_s)]
    return sorted(found, key=lambda one: (one.begin_s, one.end_s))


def _merged(lane: Iterable[Span], resolution_s: float) -> Iterable[Span]:
    group: list[Span] = []
    end_s = 0.0
    for span in lane:
        end_s = max(end_s, span.end_s)
        if group and end_s - group[0].begin_s > resolution_s:
            yield _one(group)
            group, end_s = [], span.end_s
        group.append(span)
    if group:
        yield _one(group)


def _one(group: list[Span]) -> Span:
    first, end_s = group[0], max(span.end_s for span in group)
    taken = {phase: sum(one.end_s - one.begin_s for one in group if one.phase == phase) for phase in PHASES}
    longest = max(PHASES, key=lambda phase: taken[phase])
    return Span(first.slot, first.method, longest, first.begin_s, end_s, sum(span.count for span in group))


def timeline(events: Iterable[ev.Event]) -> Timeline:
    found = Timeline()
    for event in events:
        found.add(event)
    found.close()
    return found


def values(events: Iterable[ev.Event]) -> dict[str, Any]:
    """Plain JSON values. `merged`: how many spans are not told one by one; `resolution_s`: none that is longer is
    among them."""
    found = timeline(events)
    return {
        "began_at": found.began_at,
        "length_s": found.length_s,
        "slots": list(dict.fromkeys(span.slot for span in found.spans if span.slot)),
        "breaks": to_builtins(found.breaks),
        "merged": sum(span.count for span in found.spans if span.count > 1),
        "resolution_s": found.resolution_s,
        "spans": to_builtins(found.spans),
    }
