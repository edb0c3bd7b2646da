"""What happens in a run as JSON objects, one a line, for programs that watch. Pure.

Each has `type` and `at` (Unix seconds); the others by type:

    event     event (the journal's name for it), text (a line of English), bad; and of what it is about, as far as it
              says: point, label, incarnation, method, slot, outcome, reason, exit_code, cause {class, message, phase,
              exit_status, signal}
    progress  points {done, failed, skipped, total}, eta_s, workers [{slot, incarnation, method, state, point, settings,
              batches_done, batches_total, tokens_per_s, memory_bytes, memory_total_bytes}]
    note      text: what Airlock has to say beside that
    results   rows [{method, settings, outcome, tokens_per_s, low, high, outputs_ok, outputs_failed, outputs_missing,
              cause}], text; `low` and `high` are the ends of the interval, null where there is none
    dropped   lines: how many of these nobody read in time

What is not known is null. Fields may be added; none of these goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import to_builtins

from orchestrator.events import Event
from orchestrator.outcomes import Cause
from orchestrator.progress import Progress
from orchestrator.view.summary import Row
from orchestrator.view.wording import first_line

_SAID: Final = ("point", "incarnation", "method", "slot", "outcome", "reason", "exit_code")


def event_object(event: Event, text: str, bad: bool, label: str) -> dict[str, Any]:
    told = {name: value for name in _SAID if (value := getattr(event, name, None)) not in (None, "")}
    cause = getattr(event, "cause", None)
    return {
        "type": "event",
        "at": event.at,
        "event": event.__struct_config__.tag,
        "text": text,
        "bad": bad,
        **told,
        **({"label": label} if label else {}),
        **({"cause": _cause(cause)} if cause else {}),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "class": cause.cls,
        "message": first_line(cause.message, 500),
        "phase": cause.phase,
        "exit_status": cause.exit_status,
        "signal": cause.signal,
    }


def progress_object(snapshot: Progress, at: float) -> dict[str, Any]:
    points = {
        "done": snapshot.points_done,
        "failed": snapshot.points_failed,
        "skipped": snapshot.points_skipped,
        "total": snapshot.points_total,
    }
    workers = [to_builtins(worker) for worker in snapshot.workers]
    return {"type": "progress", "at": at, "points": points, "eta_s": snapshot.eta_s, "workers": workers}


def note_object(text: str, at: float) -> dict[str, Any]:
    return {"type": "note", "at": at, "text": text}


def results_object(rows: Iterable[Row], text: str, at: float) -> dict[str, Any]:
    return {"type": "results", "at": at, "rows": list(map(_row, rows)), "text": text}


def _row(row: Row) -> dict[str, Any]:
    rate = row.rate
    interval = rate.interval(row.confidence) if rate else None
    return {
        "method": row.method,
        "settings": to_builtins(row.settings),
        "outcome": row.outcome,
        "tokens_per_s": rate.value if rate else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "outputs_ok": row.outputs_ok,
        "outputs_failed": row.outputs_failed,
        "outputs_missing": row.outputs_missing,
        "cause": row.cause or None,
    }
