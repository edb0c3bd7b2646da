"""Events as one line of plain English each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from orchestrator import events as ev
from orchestrator.outcomes import Cause
from orchestrator.view.phrases import artefacts_text, cause_text, given_back_text, waited_text
from orchestrator.view.wording import clean, counted, engine_text, seconds_text


@dataclass(frozen=True)
class Line:
    text: str
    bad: bool = False


class Narrator:
    """Names points as people do, by the labels it was told (see `summary.labels`). Remembers which method
    an incarnation and an unlabelled point belong to: later events name only those. A cause is told in full once of a
    point, and by its class and the batch that it was told of where it comes again."""

    def __init__(self) -> None:
        self._methods: dict[str, str] = {}
        self._points: dict[str, str] = {}
        self._told: dict[str, dict[str, str]] = {}
        self._labels_of: Callable[[], Mapping[str, str]] = dict

    def know(self, labels_of: Callable[[], Mapping[str, str]]) -> None:
        """It is asked once, and not before a point is named: the labels of many points take a while to make."""
        self._labels_of = cache(labels_of)

    def line(self, event: ev.Event) -> Line | None:
        """None for what is not worth a line."""
        match event:
            case ev.RunStarted():
                again = f", start {event.life} of this run" if event.life > 1 else ""
                return Line(clean(f"run of {counted(event.points, 'point')} on {event.host}{again}"))
            case ev.SurvivorsReaped():
                return Line(clean(f"ended processes of an earlier start: {', '.join(event.processes)}"), bad=True)
            case ev.PointStarted():
                self._points[event.point] = self._method(event.incarnation)
                return Line(clean(f"{self.point(event.point)}: {counted(event.prompts, 'prompt')}"))
            case ev.PointEnded():
                return self._point_ended(event)
            case ev.PointSkipped():
                return Line(clean(f"{self.point(event.point)}: not needed, {event.reason}"))
            case ev.BatchLost():
                return self._batch_lost(event)
            case ev.Probed(ok=False):
                return Line(clean(f"{self.point(event.point)}: the engine fails at other prompts too"), bad=True)
            case ev.SlotQuarantined():
                return Line(clean(f"{event.slot} is out of use: {event.reason}"), bad=True)
            case ev.Waiting():
                goal = f"slot {event.slot}" if event.what == "slot" else "room"
                return Line(clean(f"waiting for {goal}, at most {event.most_s:g} s: {event.reason}"), bad=True)
            case ev.Waited():
                return Line(clean(waited_text(event)), bad=not event.over)
            case ev.Notified():
                return Line(clean(_notified(event)), bad=not event.ok)
            case ev.RunEnded():
                return Line(clean(_run_ended(event)), bad=event.exit_code != 0)
        return self._of_worker(event)

    def _of_worker(self, event: ev.Event) -> Line | None:
        match event:
            case ev.WorkerLaunched():
                self._methods[event.incarnation] = event.method
                warm = f", {event.artefacts}" if event.artefacts else ""
                return Line(clean(f"{event.method}: worker {event.incarnation} started in {event.env}{warm}"))
            case ev.Artefacts():
                text = f"{self._method(event.incarnation)}: {artefacts_text(event)}"
                return Line(clean(text), bad=event.what != "kept")
            case ev.WorkerReady():
                return Line(clean(f"{self._method(event.incarnation)}: {_ready(event)}"))
            case ev.WorkerReleased():
                proof = event.reclaim
                text = f"{self._method(event.incarnation)}: {_released(event)}"
                return Line(clean(text), bad=bool(event.cause) or bool(proof.processes_left) or not proof.returned)
        return None

    def _batch_lost(self, event: ev.BatchLost) -> Line:
        what = f"{self.point(event.point)}: batch {_number(event.batch)} gave nothing"
        line = Line(clean(f"{what}: {self._why(event.point, event.cause)}"), bad=True)
        self._told.setdefault(event.point, {}).setdefault(cause_text(event.cause), _number(event.batch))
        return line

    def _why(self, point: str, cause: Cause) -> str:
        text = cause_text(cause)
        batch = self._told.get(point, {}).get(text)
        return text if batch is None else f"{cause.cls}, as told of batch {batch}"

    def _point_ended(self, event: ev.PointEnded) -> Line:
        why = f": {self._why(event.point, event.cause)}" if event.cause else ""
        self._told.pop(event.point, None)
        return Line(clean(f"{self.point(event.point)}: {event.outcome}{why}"), bad=event.outcome != "ok")

    def _method(self, incarnation: str) -> str:
        return self._methods.get(incarnation, incarnation)

    def point(self, point: str) -> str:
        """What it is called."""
        return self._labels_of().get(point) or f"{self._points.get(point, '')} {point}".strip()


def _number(batch: str) -> str:
    """Of a batch inside its point, counted from 0: "3f9a01bc-7.0" → "7.0"."""
    return batch.rpartition("-")[2]


def _ready(event: ev.WorkerReady) -> str:
    found = event.metadata
    parts = [
        engine_text(found.engine, found.engine_version),
        found.attention_backend and f"attention {found.attention_backend}",
    ]
    return f"ready after {seconds_text(found.load.total_s)}: {', '.join(p for p in parts if p)}"


def _released(event: ev.WorkerReleased) -> str:
    proof = event.reclaim
    strays = f", {counted(len(proof.strays_killed), 'stray')} killed" if proof.strays_killed else ""
    if proof.processes_left:
        return f"worker not gone: {counted(proof.processes_left, 'process', 'processes')} left{strays}"
    gone = f"worker gone after {seconds_text(proof.teardown_s)} by {proof.rung}{strays}"
    if not proof.returned:
        return f"{gone}; its memory did not come back in {seconds_text(proof.wait_s)}"
    return f"{gone}; {given_back_text(proof)}"


def _notified(event: ev.Notified) -> str:
    what = event.occasion.replace("_", " ")
    return f"{event.to} was told: {what}" if event.ok else f"{event.to} could not be told ({what}): {event.said}"


def _run_ended(event: ev.RunEnded) -> str:
    dropped = ", ".join(f"{count} × {what}" for what, count in event.dropped.items())
    said = [event.reason, f"dropped from the wire: {dropped}" if dropped else ""]
    why = f" ({'; '.join(part for part in said if part)})" if any(said) else ""
    return f"ended with exit code {event.exit_code} after {seconds_text(event.wall_s)}{why}"
