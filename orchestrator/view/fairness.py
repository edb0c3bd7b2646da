"""What makes figures incomparable, as lines for a terminal and as the section of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.judge.findings import Finding
from orchestrator.view.agreement import label
from orchestrator.view.marks import findings
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
    return [*bad, *(clean(one.line) for one in findings(view) if one.level == "warning")]


def markdown(view: RunView) -> Iterator[str]:
    for one in findings(view):
        advice = f" ({cell(one.advice)})" if one.advice else ""
        text = f"{cell(one.text)}: {cell(one.why)}{advice}"
        yield f"- **{text}**" if one.level == "warning" else f"- {text}"
