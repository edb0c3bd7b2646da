"""What a run came to: the table, the Markdown report and the status. A pure read of the run directory.

RunView.load(run_dir)   everything below takes this
rows(view)              the figures, one row per method and settings (see `summary`)
table(rows)             for a terminal
markdown(view)          the whole report
status(view)            for scripts, JSON-able; `status_lines` says the same in words
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins
from rich import box
from rich.table import Table
from rich.text import Text

from orchestrator.view.markdown import markdown
from orchestrator.view.narrator import cause_text
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row, rows, settings_of, varying
from orchestrator.view.wording import UNKNOWN, bytes_text, clean, or_unknown, seconds_text, setting_text, settings_text

__all__ = ["Row", "RunView", "markdown", "rows", "status", "status_lines", "table"]

_OUTCOME_STYLE = {"ok": "green", "failed": "red", "incomplete": "red", "partial": "yellow"}


def table(rows: Sequence[Row]) -> Table:
    """One line per row, for a terminal. The cause of a failure stands below its row's figures."""
    names = list(rows[0].settings) if rows else []
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("method", *names):
        found.add_column(Text(name), overflow="fold")
    for name in ("tokens/s", "TTFT", "TPOT", "load", "peak", "given back", "prompts"):
        found.add_column(Text(name), justify="right")
    found.add_column(Text("outcome"), overflow="fold")
    for row in rows:
        settings = [setting_text(value) for value in row.settings.values()]
        cells = [clean(row.method), *settings, *_figures(row)]
        found.add_row(*map(Text, cells), Text(_outcome(row), style=_OUTCOME_STYLE.get(row.outcome, "")))
    return found


def _figures(row: Row) -> list[str]:
    spread = "" if row.tokens_per_s_sd is None else f" ± {row.tokens_per_s_sd:.1f}"
    return [
        or_unknown(row.tokens_per_s, lambda v: f"{v:.1f}{spread}"),
        or_unknown(row.ttft_median_s, seconds_text),
        or_unknown(row.tpot_mean_s, seconds_text),
        or_unknown(row.load_s, seconds_text),
        or_unknown(row.peak_bytes, bytes_text),
        given_back(row),
        prompts_text(row),
    ]


def given_back(row: Row) -> str:
    if row.returned is None:
        return UNKNOWN
    amount = or_unknown(row.returned_bytes, bytes_text)
    return f"{amount} in {or_unknown(row.return_wait_s, seconds_text)}" if row.returned else "NOT RETURNED"


def prompts_text(row: Row) -> str:
    """ "12", or "10 ok, 1 failed, 1 missing" """
    parts = [(row.prompts_ok, "ok"), (row.prompts_failed, "failed"), (row.prompts_missing, "missing")]
    if not row.prompts_failed and not row.prompts_missing:
        return str(row.prompts_ok)
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def _outcome(row: Row) -> str:
    return f"{row.outcome_text}: {row.cause}" if row.cause else row.outcome_text


def status(view: RunView) -> dict[str, Any]:
    """Where a run stands, as plain JSON values.

    state   running · finished · interrupted (resumable) · crashed (its coordinator ended without a word; resumable)
    points  done: ok; failed: failed, partial or incomplete; left: all others
    """
    states = [view.state_of(point) for point in view.points]
    done, left = states.count("ok"), states.count("unfinished")
    return {
        "name": view.plan.name,
        "run_dir": str(view.run_dir),
        "state": view.state,
        "coordinator": None if view.holder is None else {"pid": view.holder.pid, "host": view.holder.host},
        "starts": len(view.starts),
        "points": {"total": len(states), "done": done, "failed": len(states) - done - left, "left": left},
        "complete": view.complete,
        "worker": _worker(view),
        "records": view.replay.records,
        "records_planned": len(view.plan.prompt_ids) * len(states),
        "measured_s": view.measured_s,
        "last_event_at": view.last_at,
        "exit_code": view.exit_code,
        "torn": None if view.state == "running" else view.replay.torn,
        "failures": _failures(view),
    }


def _worker(view: RunView) -> dict[str, Any] | None:
    worker = view.current
    if worker is None or view.state != "running":
        return None
    launched = worker.launched
    return {
        "incarnation": launched.incarnation,
        "method": launched.method,
        "state": worker.state,
        "point": worker.points[-1] if worker.points else None,
        "log": launched.log,
    }


def _failures(view: RunView) -> list[dict[str, Any]]:
    names = varying(view.plan)
    found = []
    for point in view.plan.points:
        state = view.state_of(point.id)
        if state not in ("failed", "partial", "incomplete"):
            continue
        cause = view.cause_of(point.id)
        found.append(
            {
                "point": point.id,
                "method": point.method,
                "settings": to_builtins(settings_of(point, names)),
                "repeat": point.repeat,
                "outcome": state,
                "missing": view.missing.get(point.id, 0),
                "cause": None if cause is None else to_builtins(cause),
                "summary": "" if cause is None else cause_text(cause),
            }
        )
    return found


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """The result of `status` in words, a line at a time."""
    points = found["points"]
    yield f"{clean(found['name'])}: {found['state']}{_exit(found)}"
    yield f"points: {points['done']} done, {points['failed']} failed, {points['left']} left of {points['total']}"
    yield f"records: {found['records']} of {found['records_planned']}"
    if found["coordinator"]:
        yield f"coordinator: process {found['coordinator']['pid']} on {clean(found['coordinator']['host'])}"
    if found["worker"]:
        worker = found["worker"]
        yield clean(f"worker: {worker['incarnation']}, {worker['method']}, {worker['state']}, log {worker['log']}")
    if found["last_event_at"] is not None:
        yield f"last event: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found['last_event_at']))}"
    if found["torn"]:
        yield clean(f"left out: {found['torn']}")
    for failure in found["failures"]:
        settings = settings_text(failure["settings"])
        why = f": {failure['summary']}" if failure["summary"] else ""
        yield clean(f"{failure['outcome']}: {failure['method']} {settings} repeat {failure['repeat']}{why}")
    if found["state"] in ("interrupted", "crashed"):
        yield "to go on: sweep … --resume"


def _exit(found: dict[str, Any]) -> str:
    return "" if found["exit_code"] is None else f", exit code {found['exit_code']}"
