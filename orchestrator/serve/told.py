"""What the dashboard says of a run, as plain JSON values. A pure read.

live      where it stands and what its workers do, cheap enough for every other second
brief     the same for a list of runs, with the fastest method
figures   the table and the plots
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Any, Final

from msgspec import to_builtins

from orchestrator import events as ev
from orchestrator.outcomes import Cause
from orchestrator.progress import Progress
from orchestrator.report import standing
from orchestrator.view import leading, results
from orchestrator.view.phrases import cause_text, waited_text
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.wording import clean, counted, settings_text

#: Of what went wrong, the newest.
LISTED: Final = 50
#: Of a point whose cause its records alone tell.
UNTOLD: Final = "unknown"


def live(view: RunView, progress: Progress, labels: Mapping[str, str]) -> dict[str, Any]:
    """`labels`: of the plan's points, see `summary.labels`."""
    return {**_standing(view), **_workers(view, progress, labels), **_troubles(view, labels)}


def brief(view: RunView) -> dict[str, Any]:
    best = fastest(view)
    return {**_standing(view), "failures_by_class": _classes(view), "best": best}


def broken(reason: str) -> dict[str, Any]:
    """Of a folder that can't be read as a run."""
    return {"state": "broken", "reason": clean(reason)}


def _standing(view: RunView) -> dict[str, Any]:
    found: dict[str, Any] = _cleaned(standing(view))
    del found["workers"]  # `slots` says more
    return {
        **found,
        "sweep_name": found["name"],
        "generated_tokens": view.replay.generated_tokens,
        "started_at": view.starts[0].at if view.starts else None,
        "start_at": view.starts[-1].at if view.starts else None,
        "methods": list(dict.fromkeys(start.config.method.name for start in view.plan.starts)),
    }


def _cleaned(value: Any) -> Any:
    """What a run, or its folder's name, holds is shown as it is read, and may hold what turns text round."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(name): _cleaned(one) for name, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, list) else value


def _workers(view: RunView, progress: Progress, labels: Mapping[str, str]) -> dict[str, Any]:
    """As the live view in a terminal has them."""
    return {
        "eta_s": progress.eta_s,
        "slots": [
            _cleaned(
                {
                    **to_builtins(one),
                    "settings": settings_text(one.settings),
                    "point": labels.get(one.point, one.point),
                }
            )
            for one in progress.workers
        ],
        "quarantined": [{"slot": one.slot, "reason": clean(one.reason), "at": one.at} for one in view.quarantined],
        "failures_by_class": _classes(view),
    }


def _classes(view: RunView) -> dict[str, int]:
    """Points that did not end well, by the class of their cause."""
    return dict(Counter(_class(view, end) for end in view.replay.outcomes.values() if end.outcome != "ok"))


def _class(view: RunView, end: ev.PointEnded) -> str:
    cause = _cause(view, end)
    return UNTOLD if cause is None else cause.cls


def _cause(view: RunView, end: ev.PointEnded) -> Cause | None:
    """Without reading records."""
    if end.cause is not None:
        return end.cause
    return next((event.cause for event in view.lost.get(end.point, ())), None)


def _troubles(view: RunView, labels: Mapping[str, str]) -> dict[str, Any]:
    """The newest first."""
    found = list(_all_troubles(view))
    newest = nlargest(LISTED, found, key=lambda one: one[0])
    return {
        "troubles": [{"at": at, "text": clean(_told(view, event, labels))} for at, event in newest],
        "troubles_not_listed": len(found) - len(newest),
    }


def _all_troubles(view: RunView) -> Iterator[tuple[float, ev.Event]]:
    yield from ((end.at, end) for end in view.replay.outcomes.values() if end.outcome != "ok")
    yield from ((event.at, event) for events in view.lost.values() for event in events)
    yield from ((event.at, event) for event in view.quarantined)
    yield from ((event.at, event) for event in view.waits if not event.over)
    yield from ((event.at, event) for event in view.survivors)


def _told(view: RunView, event: ev.Event, labels: Mapping[str, str]) -> str:
    match event:
        case ev.PointEnded():
            cause, stand = _cause(view, event), view.replay.stands.get(event.point)
            why = cause_text(cause) if cause else counted(stand.errors if stand else 0, "prompt") + " failed"
            return f"{labels.get(event.point, event.point)}: {event.outcome}: {why}"
        case ev.BatchLost():
            return f"{labels.get(event.point, event.point)}: a batch gave nothing: {cause_text(event.cause)}"
        case ev.SlotQuarantined():
            return f"{event.slot} is out of use: {event.reason}"
        case ev.Waited():
            return waited_text(event)
        case ev.SurvivorsReaped():
            return f"ended processes of an earlier start: {', '.join(event.processes)}"
    return type(event).__name__


def fastest(view: RunView) -> dict[str, Any] | None:
    """The row with the highest estimate among those that may be compared. Raises JournalError on damage."""
    comparable = [row for row in rows(view) if leading.comparable(row)]
    best = max(comparable, key=lambda row: row.rate.value if row.rate else 0, default=None)
    if best is None:
        return None
    return {
        "label": results.label(best),
        "tokens_per_s": results.speed_text(best),
        "warnings": [clean(one) for one in best.warnings],
    }
