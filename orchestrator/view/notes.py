"""What a reader should know beside the figures: what the plan decided, and what engines, logs and files say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.view.markup import cell
from orchestrator.view.results import label
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row


def notes(view: RunView) -> list[tuple[str, str]]:
    """Whose, and what: "plan", a method's name or "journal"; each once."""
    return list(dict.fromkeys(_notes(view)))


def _notes(view: RunView) -> Iterator[tuple[str, str]]:
    yield from (("plan", note) for note in view.plan.notes)
    for worker in view.workers.values():
        if worker.ready:
            told = worker.ready.metadata
            yield from ((worker.launched.method, note) for note in (*told.flags, *told.patches, *told.notes))
    for worker in view.workers.values():
        if worker.released:
            slow = worker.released.slow_paths
            yield from ((worker.launched.method, f"its log says: {line}") for line in slow)
    if view.replay.torn and view.state != "running":
        yield "journal", view.replay.torn


def markdown(view: RunView, found: Sequence[Row]) -> Iterator[str]:
    for row in found:
        for flag, count in sorted(row.flags.items()):
            yield f"- {cell(label(row))}: {cell(flag)} × {count}"
    yield from (f"- {cell(f'{whose}: {note}')}" for whose, note in notes(view))
