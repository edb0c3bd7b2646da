"""What makes figures incomparable, as lines for a terminal and as the section of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from orchestrator.judge.findings import Finding
from orchestrator.view.agreement import label
from orchestrator.view.marks import before, findings
from orchestrator.view.markup import cell
from orchestrator.view.runview import RunView
from orchestrator.view.summary import varying
from orchestrator.view.wording import clean


def lines(found: Iterable[Finding]) -> list[str]:
    return [f"fairness: {clean(one.line)}" for one in found]


def warning_lines(view: RunView) -> list[str]:
    """What may not be compared after a run, a sentence each. Raises JournalError if records are damaged."""
    names = varying(view.plan)
    rows = [row for row in view.agreements.rows if row.bad]
    bad = [f"{label(view, row, names)}: outputs {row.verdict}: {clean(row.why)}" for row in rows]
    standing = [f"{clean(one.line)}; what ran: {clean(one.ran)}" for one in before(view) if one.points]
    return [*bad, *standing, *(clean(one.line) for one in findings(view) if one.level == "warning")]


def values(view: RunView) -> dict[str, Any]:
    """Plain JSON values. Raises JournalError if records are damaged."""
    stages = {"before": before(view), "after": findings(view)}
    return {stage: [{**to_builtins(one), "text": one.text} for one in found] for stage, found in stages.items()}


def markdown(view: RunView) -> Iterator[str]:
    if view.plan.points:
        yield "Before, in what was asked of the methods:"
        yield ""
        yield from _markdown(before(view))
        yield ""
    if any(worker.ready for worker in view.workers.values()):
        yield "After, in what the engines say they ran with:"
        yield ""
        yield from _markdown(findings(view))


def _markdown(found: Sequence[Finding]) -> Iterator[str]:
    for one in found:
        advice = f" ({cell(one.advice)})" if one.advice else ""
        text = f"{cell(one.text)}: {cell(one.why)}{advice}"
        ran = f" Asked: differs; what ran: {cell(one.ran)}." if one.ran else ""
        yield f"- **{text}**{ran}" if one.level == "warning" else f"- {text}"
    if not found:
        yield "- no difference that matters"
