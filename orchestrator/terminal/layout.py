"""The live view as lines that fit a window of any size, and the same as one line of plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from orchestrator.progress import Progress, WorkerProgress
from orchestrator.view.wording import bytes_text, clean, count_text, counted, rate_text, seconds_text, settings_text

#: A narrower window has no bars.
BARS_FROM: Final = 60
BAR_WIDTH: Final = 30
_FULL, _EMPTY = "━", "╌"
#: The slot of a machine that has but one is not worth naming.
_ONLY_SLOT: Final = ("", "slot0")


def frame(snapshot: Progress, columns: int, rows: int) -> list[Text]:
    """Lines no wider than the window but for a column, which some terminals wrap at, and one fewer than it has rows:
    below them is the cursor. What has no room is counted."""
    width, height = max(1, columns - 1), max(1, rows - 1)
    several = len(snapshot.workers) > 1
    last = _overall(snapshot, width)
    detailed = [line for worker in snapshot.workers for line in _paragraph(worker, several, width)]
    if len(detailed) < height:
        return [*detailed, last]
    brief = [Text(_brief(worker, several)) for worker in snapshot.workers]
    return [_cut(line, width) for line in _listed(brief, height - 1)] + [last]


def _listed(lines: Sequence[Text], room: int) -> list[Text]:
    if len(lines) <= room:
        return list(lines)
    shown = max(0, room - 1)
    return [*lines[:shown], Text(f"and {counted(len(lines) - shown, 'more worker')}", "dim")] if room else []


def _paragraph(worker: WorkerProgress, several: bool, width: int) -> Iterator[Text]:
    yield _cut(Text(_where(worker, several), "bold"), width)
    bar = _bar(worker.batches_done, worker.batches_total, width)
    yield _cut(Text.assemble(*bar, _fitting(width - sum(len(part) for part, _ in bar), *_paces(worker))), width)


def _overall(snapshot: Progress, width: int) -> Text:
    over = snapshot.points_done + snapshot.points_failed + snapshot.points_skipped
    bar = _bar(over, snapshot.points_total, width)
    return _cut(Text.assemble(*bar, _fitting(width - sum(len(part) for part, _ in bar), *_points(snapshot))), width)


def _bar(done: int, total: int, width: int) -> list[tuple[str, str]]:
    if width < BARS_FROM:
        return []
    full = min(BAR_WIDTH, BAR_WIDTH * done // max(total, 1))
    return [(_FULL * full, "green"), (_EMPTY * (BAR_WIDTH - full) + " ", "dim")]


def _fitting(width: int, *texts: str) -> str:
    """The first that fits, else the last."""
    return next((text for text in texts if cell_len(text) <= width), texts[-1])


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def progress_text(snapshot: Progress) -> str:
    several = len(snapshot.workers) > 1
    told = [part for one in snapshot.workers for part in (_where(one, several), _batches(one), _pace(one))]
    return ", ".join(part for part in (*told, _points(snapshot)[0]) if part)


def _where(worker: WorkerProgress, several: bool) -> str:
    slot = f"{worker.slot}:" if several or worker.slot not in _ONLY_SLOT else ""
    parts = (slot, worker.method, worker.state, settings_text(worker.settings))
    return clean(" ".join(part for part in parts if part))


def _brief(worker: WorkerProgress, several: bool) -> str:
    slot = f"{worker.slot}:" if several or worker.slot not in _ONLY_SLOT else ""
    parts = (slot, worker.method, worker.state, _done(worker), _pace(worker))
    return clean(" ".join(part for part in parts if part))


def _batches(worker: WorkerProgress) -> str:
    return f"batch {_done(worker)}"


def _done(worker: WorkerProgress) -> str:
    return f"{count_text(worker.batches_done)}/{count_text(worker.batches_total)}"


def _paces(worker: WorkerProgress) -> tuple[str, ...]:
    pace = _pace(worker)
    return "  ".join(part for part in (_batches(worker), pace) if part), _batches(worker)


def _pace(worker: WorkerProgress) -> str:
    speed = None if worker.tokens_per_s is None else f"{rate_text(worker.tokens_per_s)} tokens/s"
    return ", ".join(part for part in (speed, _memory(worker)) if part)


def _memory(worker: WorkerProgress) -> str | None:
    if worker.memory_bytes is None:
        return None
    of = f" of {bytes_text(worker.memory_total_bytes)}" if worker.memory_total_bytes else ""
    return f"{bytes_text(worker.memory_bytes)}{of}"


def _points(snapshot: Progress) -> tuple[str, ...]:
    """From all there is to the shortest."""
    stand = f"{count_text(snapshot.points_done)}/{count_text(snapshot.points_total)}"
    failed = f", {count_text(snapshot.points_failed)} failed" if snapshot.points_failed else ""
    skipped = f", {count_text(snapshot.points_skipped)} not needed" if snapshot.points_skipped else ""
    left = "" if snapshot.eta_s is None else f", about {seconds_text(snapshot.eta_s)} left"
    return (
        f"points {stand} done{failed}{skipped}{left}",
        f"{stand}{failed}{left}",
        f"{stand}{failed}",
    )
