"""prompts.jsonl against the plan: figures over a part of the prompts would pass for figures over all."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from orchestrator.errors import JournalError
from orchestrator.view.wording import clean, counted


def lacking(planned: Sequence[str], there: Container[str]) -> list[str]:
    """Ids of the plan that have no line."""
    return [one for one in planned if one not in there]


def lacking_text(path: Path, lost: Sequence[str], planned: Sequence[str]) -> str:
    return f"{path}: lacks {len(lost)} of the {counted(len(planned), 'prompt')} of the plan, first {clean(lost[0])}"


def require_all(path: Path, planned: Sequence[str], there: Container[str]) -> None:
    """Raises JournalError that tells what is missing."""
    if lost := lacking(planned, there):
        how = "put it back from a copy, or let sweep --resume write it again"
        raise JournalError(f"{lacking_text(path, lost, planned)}: {how}")
