"""All that the report of a run says, for other programs: plain JSON values, with the unit in each name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from orchestrator.view import (
    agreement,
    asked,
    failures,
    fairness,
    memory,
    notes,
    origins,
    teardown,
    timeline,
    whatran,
    words,
)
from orchestrator.view.figures import drift_figures, row_figures
from orchestrator.view.jsonout import whole
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row, drifts, labels, reference_of


def results(view: RunView) -> dict[str, Any]:
    """All at once."""
    found: dict[str, Any] = whole(parts(view))
    return found


def parts(view: RunView, every: Sequence[Row] | None = None) -> dict[str, Any]:
    """Made by the same functions as the Markdown. What there may be much of are iterators, for `jsonout`. `every`: the
    rows, where they were made before. Raises JournalError if records are damaged."""
    found, named = rows(view) if every is None else every, labels(view.plan)
    return {
        "name": view.plan.name,
        "summary": words.summary(view, found),
        "run_dir": str(view.run_dir),
        "plan": view.plan.digest,
        "state": view.state,
        "exit_code": view.exit_code,
        "complete": view.complete,
        "open_points": [
            {"point": point, "label": named[point], "state": state, "missing": missing}
            for point, state, missing in view.open
        ],
        "starts": to_builtins([asked.started(view.plan, one) for one in view.starts]),
        "endings": to_builtins(view.endings),
        "measured_s": view.measured_s,
        "slots": view.most_slots,
        "methods_ran": view.order,
        "asked": asked.values(view.plan),
        "reference": reference_of(view.plan),
        "rows": map(row_figures, found),
        "drift": [drift_figures(row, drift) for row, drift in drifts(found)],
        "memory": memory.compared(view),
        "agreement": agreement.json_parts(view.agreements),
        "fairness": fairness.values(view),
        "workers": teardown.workers(view),
        **teardown.incidents(view),
        "timeline": timeline.values(view.replay.events()),
        "environments": whatran.environments(view),
        "provenance": to_builtins(view.origins),
        "provenance_changes": [
            {"start": life, "what": what, "before": before, "after": after}
            for life, what, before, after in origins.changes(view.plan, view.origins)
        ],
        "failures": failures.values(failures.failures(view)),
        "notes": [{"of": whose, "note": note} for whose, note in notes.notes(view)],
    }
