"""Events as one line of plain English each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import events as ev
from orchestrator.view.wording import bytes_text, clean, first_line, seconds_text


@dataclass(frozen=True)
class Line:
    text: str
    bad: bool = False


class Narrator:
    """Remembers which method an incarnation and a point belong to: later events name only those."""

    def __init__(self) -> None:
        self._methods: dict[str, str] = {}
        self._points: dict[str, str] = {}

    def line(self, event: ev.Event) -> Line | None:
        """None for what is not worth a line."""
        match event:
            case ev.RunStarted():
                again = f", start {event.life} of this run" if event.life > 1 else ""
                return Line(clean(f"run of {event.points} points on {event.host}{again}"))
            case ev.SurvivorsReaped():
                return Line(clean(f"ended processes of an earlier start: {', '.join(event.processes)}"), bad=True)
            case ev.PointStarted():
                self._points[event.point] = self._method(event.incarnation)
                return Line(clean(f"{self._point(event.point)}: {event.prompts} prompts"))
            case ev.PointEnded():
                return self._point_ended(event)
            case ev.BatchLost():
                what = f"{self._point(event.point)}: batch {event.batch} gave nothing"
                return Line(clean(f"{what}: {cause_text(event.cause)}"), bad=True)
            case ev.SlotQuarantined():
                return Line(clean(f"{event.slot} is out of use: {event.reason}"), bad=True)
            case ev.RunEnded():
                return Line(clean(_run_ended(event)), bad=event.exit_code != 0)
        return self._of_worker(event)

    def _of_worker(self, event: ev.Event) -> Line | None:
        match event:
            case ev.WorkerLaunched():
                self._methods[event.incarnation] = event.method
                return Line(clean(f"{event.method}: worker {event.incarnation} started in {event.env}"))
            case ev.WorkerReady():
                return Line(clean(f"{self._method(event.incarnation)}: {_ready(event)}"))
            case ev.WorkerReleased():
                proof = event.reclaim
                text = f"{self._method(event.incarnation)}: {_released(event)}"
                return Line(clean(text), bad=bool(event.cause) or bool(proof.processes_left) or not proof.returned)
        return None

    def _point_ended(self, event: ev.PointEnded) -> Line:
        why = f": {cause_text(event.cause)}" if event.cause else ""
        return Line(clean(f"{self._point(event.point)}: {event.outcome}{why}"), bad=event.outcome != "ok")

    def _method(self, incarnation: str) -> str:
        return self._methods.get(incarnation, incarnation)

    def _point(self, point: str) -> str:
        return f"{self._points.get(point, '')} {point}".strip()


def cause_text(cause: ev.Cause) -> str:
    """One line: the class, the message, and how the process ended where that tells more."""
    status = f"exit status {cause.exit_status}" if cause.exit_status is not None else ""
    extra = ", ".join(part for part in (cause.phase and f"while {cause.phase}", cause.signal or status) if part)
    text = f"{cause.cls}: {first_line(cause.message) or 'no message'}"
    return clean(f"{text} ({extra})" if extra else text)


def _ready(event: ev.WorkerReady) -> str:
    found = event.metadata
    parts = [
        f"{found.engine} {found.engine_version}",
        found.attention_backend and f"attention {found.attention_backend}",
    ]
    return f"ready after {seconds_text(found.load.total_s)}: {', '.join(p for p in parts if p)}"


def _released(event: ev.WorkerReleased) -> str:
    proof = event.reclaim
    strays = f", {len(proof.strays_killed)} strays killed" if proof.strays_killed else ""
    if proof.processes_left:
        return f"worker not gone: {proof.processes_left} processes left{strays}"
    gone = f"worker gone after {seconds_text(proof.teardown_s)} by {proof.rung}{strays}"
    if not proof.returned:
        return f"{gone}; its memory did not come back in {seconds_text(proof.wait_s)}"
    return f"{gone}; {given_back_text(proof)}"


def given_back_text(proof: ev.Reclaim) -> str:
    """ "3.2 GiB back in 0.4 s" """
    freed = given_back_bytes(proof)
    amount = "memory" if freed is None else bytes_text(freed)
    return f"{amount} back in {seconds_text(proof.wait_s)}"


def given_back_bytes(proof: ev.Reclaim) -> int | None:
    """What the worker held just before teardown minus what is left of it; None where either is unknown."""
    if proof.held_bytes is None or proof.after_bytes is None:
        return None
    return max(proof.held_bytes - proof.after_bytes, 0)


def _run_ended(event: ev.RunEnded) -> str:
    why = f" ({event.reason})" if event.reason else ""
    return f"ended with exit code {event.exit_code} after {seconds_text(event.wall_s)}{why}"
