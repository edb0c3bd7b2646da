"""What a run came to: the table, the Markdown report and the status. A pure read of the run directory.

RunView.load(run_dir)   everything below takes this
rows(view)              the figures, one row per method and settings (see `summary`)
table(rows)             for a terminal
markdown(view)          the whole report; `markdown_pieces` the same in pieces
results(view)           the whole report for scripts, JSON-able: every figure by name, and why a null is one;
                        `results_pieces` the same as JSON in pieces
status(view)            for scripts, JSON-able; `status_lines` says the same in words; `standing` without failures
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from orchestrator.called import COMMAND
from orchestrator.definition.variables import LEFT_OUT
from orchestrator.view import asked, failures, jsonout, rest
from orchestrator.view.markdown import SHOWN, markdown
from orchestrator.view.markdown import pieces as markdown_pieces
from orchestrator.view.results import Results
from orchestrator.view.rows import rows
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.summary import Row
from orchestrator.view.values import parts, results
from orchestrator.view.wording import clean, count_text

__all__ = [
    "Results",
    "Row",
    "RunView",
    "markdown",
    "markdown_pieces",
    "results",
    "results_pieces",
    "rows",
    "standing",
    "status",
    "status_lines",
    "table",
]

_COUNTED: Final[dict[str, tuple[PointState, ...]]] = {
    "done": ("ok",),
    "failed": ("failed",),
    "partial": ("partial", "incomplete"),
    "skipped": ("skipped",),
    "left": ("unfinished",),
}


def results_pieces(view: RunView, every: Sequence[Row] | None = None) -> Iterator[str]:
    """A run of many rows is never in memory as a whole. `every`: its rows, where they were made before."""
    return jsonout.pieces(parts(view, every))


def table(rows: Sequence[Row], words: Sequence[str] = ()) -> Results:
    """For a terminal: what is printed fits the width of the console it is printed on, and no figure is cut. As many
    rows as in the Markdown; of the others what it says there. `words`: sentences that are to stand below."""
    return Results(rows[:SHOWN], (*rest.lines(rows, SHOWN), *words))


def status(view: RunView) -> dict[str, Any]:
    """Where a run stands, and what failed in it, as plain JSON values."""
    return {
        **standing(view),
        "failures": list(failures.values(one for one in failures.failures(view) if one.bad)),
    }


def standing(view: RunView) -> dict[str, Any]:
    """`status` without the failures, which take reading records.

    state   running · finished · stopped (early) · interrupted · crashed (its coordinator ended without a word);
            the last three are resumable
    points  done: ok; partial: some prompts failed, or have no record though it was called ok; failed; skipped: repeats
            not needed; left: all others. They add up to total
    sweep   the file and the overrides of its last start, null where the journal does not tell
    """
    states = [view.state_of(point) for point in view.points]
    points = {name: sum(map(states.count, kinds)) for name, kinds in _COUNTED.items()}
    return {
        "name": view.plan.name,
        "run_dir": str(view.run_dir),
        "state": view.state,
        "coordinator": None if view.holder is None else {"pid": view.holder.pid, "host": view.holder.host},
        "starts": len(view.starts),
        "sweep": _sweep(view),
        "points": {"total": len(states), **points},
        "complete": view.complete,
        "workers": _workers(view),
        "records": view.replay.records,
        "records_planned": len(view.plan.prompt_ids) * (len(states) - points["skipped"]),
        "measured_s": view.measured_s,
        "last_event_at": view.last_at,
        "exit_code": view.exit_code,
        "reason": _reason(view),
        "waits": _waits(view),
        "torn": None if view.state == "running" else view.replay.torn,
    }


def _reason(view: RunView) -> str:
    """Why it ended, not why an earlier start did."""
    if view.state == "crashed":
        return "its coordinator ended without a word"
    return view.endings[-1].reason if view.endings and view.state != "running" else ""


def _sweep(view: RunView) -> dict[str, Any] | None:
    last = view.starts[-1] if view.starts else None
    if last is None or not last.file:
        return None
    return {"file": last.file, "overrides": asked.overrides(view.plan, last.overrides)}


def _waits(view: RunView) -> list[dict[str, Any]]:
    found = view.waiting.values() if view.state == "running" else ()
    return [{"what": one.what, "reason": one.reason, "most_s": one.most_s} for one in found]


def _workers(view: RunView) -> list[dict[str, Any]]:
    return [
        {
            "incarnation": worker.launched.incarnation,
            "method": worker.launched.method,
            "slot": worker.launched.slot,
            "state": worker.state,
            "point": worker.points[-1] if worker.points else None,
            "log": worker.launched.log,
        }
        for worker in (view.current if view.state == "running" else ())
    ]


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """The result of `status` in words, a line at a time."""
    points = {name: count_text(count) for name, count in found["points"].items()}
    yield clean(f"{found['name']}: {found['state']}{_exit(found)}{': ' if found['reason'] else ''}{found['reason']}")
    partial = f", {points['partial']} partial" if found["points"]["partial"] else ""
    skipped = f", {points['skipped']} not needed" if found["points"]["skipped"] else ""
    rest = f"{points['left']} left of {points['total']}"
    yield f"points: {points['done']} done, {points['failed']} failed{partial}{skipped}, {rest}"
    yield f"records: {count_text(found['records'])} of {count_text(found['records_planned'])}"
    if found["coordinator"]:
        yield f"coordinator: process {found['coordinator']['pid']} on {clean(found['coordinator']['host'])}"
    for worker in found["workers"]:
        yield clean(f"worker: {worker['incarnation']}, {worker['method']}, {worker['state']}, log {worker['log']}")
    for what in found["waits"]:
        yield clean(f"waiting for {what['what']}, at most {what['most_s']:g} s: {what['reason']}")
    if found["last_event_at"] is not None:
        yield f"last event: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found['last_event_at']))}"
    if found["torn"]:
        yield clean(f"left out: {found['torn']}")
    for failure in found["failures"]:
        why = f": {failure['summary']}" if failure["summary"] else ""
        yield clean(f"{failure['outcome']}: {failure['label']}{why}")
    if found["state"] in ("stopped", "interrupted", "crashed"):
        yield clean(f"to go on: {_resume(found)}")


def _resume(found: dict[str, Any]) -> str:
    """As a shell takes it. Without any override it goes on with those that it began with."""
    sweep = found["sweep"] or {"file": None, "overrides": ()}
    file = "…" if sweep["file"] is None else shlex.quote(sweep["file"])
    whole = not any(override.endswith(f"={LEFT_OUT}") for override in sweep["overrides"])
    settings = (word for override in sweep["overrides"] if whole for word in ("--set", shlex.quote(override)))
    end = ("--resume", "--run-dir", shlex.quote(found["run_dir"]))
    return " ".join([COMMAND, "sweep", file, *settings, *end])


def _exit(found: dict[str, Any]) -> str:
    return "" if found["exit_code"] is None else f", exit code {found['exit_code']}"
