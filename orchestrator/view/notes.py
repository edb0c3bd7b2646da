"""What a reader should know beside the figures: what the plan decided, and what engines, logs and files say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.events import WorkerLaunched, is_standby
from orchestrator.view.markup import cell
from orchestrator.view.results import label
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.wording import count_text


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
        yield from ((worker.launched.method, note) for note in _of_launch(worker.launched))
    for worker in view.workers.values():
        if worker.released:
            slow = worker.released.slow_paths
            yield from ((worker.launched.method, f"its log says: {line}") for line in slow)
    if view.replay.torn and view.state != "running":
        yield "journal", view.replay.torn


def _of_launch(launched: WorkerLaunched) -> Iterator[str]:
    if launched.cpus:
        yield f"held to CPUs {launched.cpus}"
    if launched.early:
        before = {"standby": "was at work", "teardown": "was being taken down"}[launched.early]
        yield f"imported its engine, in some worker, while the one before it {before}: that was timed beside others"


def _company(row: Row) -> Iterator[str]:
    who, batches = row.company.most_common(), count_text(sum(row.sizes.values()))
    if row.crowded:
        names = ", ".join(f"{name} during {count_text(count)}" for name, count in who if not is_standby(name))
        crowded = f"{count_text(row.crowded)} of {batches} measured batches"
        yield f"other slots were at work during {crowded}: {names}"
    for name, count in who:
        if is_standby(name):
            during = f"{count_text(count)} of {batches} measured batches"
            yield f"the next worker imported its engine or waited, {name}, during {during}"


def markdown(view: RunView, found: Sequence[Row]) -> Iterator[str]:
    for row in found:
        for line in _company(row):
            yield f"- {cell(label(row))}: {cell(line)}"
        for flag, count in sorted(row.flags.items()):
            yield f"- {cell(label(row))}: {cell(flag)} × {count_text(count)}"
    yield from (f"- {cell(f'{whose}: {note}')}" for whose, note in notes(view))
