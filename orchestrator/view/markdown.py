"""The whole report of one run as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from orchestrator.view import (
    agreement,
    answered,
    asked,
    failures,
    fairness,
    memory,
    notes,
    origins,
    rest,
    tables,
    teardown,
    whatran,
    words,
)
from orchestrator.view.markup import SHOWN_ROWS, cell, grid
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row, drifts, labels
from orchestrator.view.wording import count_text, counted, seconds_text

#: Of the rows of a run, in each table of them: four times in that of latencies.
SHOWN: Final = SHOWN_ROWS // 4


def markdown(view: RunView) -> str:
    """All at once."""
    return "".join(pieces(view))


def pieces(view: RunView, every: Sequence[Row] | None = None) -> Iterator[str]:
    """Text that is the report once it stands together. `every`: its rows, where they were made before. Raises
    JournalError if records are damaged."""
    between = ""
    for title, lines in sections(view, rows(view) if every is None else every):
        for number, line in enumerate(_without_end(lines)):
            if not number:
                yield f"{between}## {title}\n\n" if title else between
                between = "\n"
            yield f"{line}\n"


def sections(view: RunView, every: Sequence[Row]) -> Sequence[tuple[str, Iterable[str]]]:
    """The title of each, the summary's being empty, and its lines."""
    found = every[:SHOWN]
    return (
        ("", _summary(view, every)),
        ("Results", tables.results(found, rest.lines(every, SHOWN))),
        ("Answers", answered.markdown(view.plan, found)),
        ("Latency", tables.latency(found)),
        ("Throughput", tables.throughput(found, view.plan.measurement)),
        ("Load", tables.load(found)),
        ("Memory", tables.memory(found)),
        ("Memory, estimated and told", grid(memory.HEADER, memory.estimates_told(view))),
        ("Energy, clocks and heat", tables.hardware(found)),
        ("The host", tables.host(found)),
        ("Counters of the engines", tables.counters(found)),
        ("Spread", tables.spread(found, drifts(found))),
        ("Agreement", agreement.markdown(view)),
        ("What was asked", asked.markdown(view.plan)),
        ("Fairness", fairness.markdown(view)),
        ("What ran", whatran.what_ran(view)),
        ("Where it comes from", _origins(view)),
        ("Teardown", teardown.markdown(view)),
        ("Failures", failures.markdown(view)),
        ("Environments", _environments(view)),
        ("Flags and notes", notes.markdown(view, found)),
        ("Not known", tables.unknown(found)),
        ("Completeness", _completeness(view)),
    )


def _without_end(lines: Iterable[str]) -> Iterator[str]:
    """The blank ones at the end left out."""
    held: list[str] = []
    for line in lines:
        if line.strip():
            yield from held
            held = []
        held.append(line)
    if any(line.strip() for line in held[:1]):
        yield held[0].rstrip()


def _summary(view: RunView, every: Sequence[Row]) -> Iterator[str]:
    yield f"# {cell(view.plan.name)}"
    yield ""
    if not view.complete:
        yield f"**INCOMPLETE: {gap(view)}. Do not read this as a finished comparison.**"
        yield ""
    yield from (f"- {cell(sentence)}" for sentence in words.summary(view, every))
    yield ""
    yield "The run:"
    yield ""
    yield from facts(view)


def facts(view: RunView) -> Iterator[str]:
    """What was run, and how far: a list."""
    plan, states = view.plan, [view.state_of(point) for point in view.points]
    counts = ", ".join(f"{count_text(states.count(s))} {s}" for s in dict.fromkeys(states))
    yield f"- state: {view.state}" + ("" if view.exit_code is None else f", exit code {view.exit_code}{_reason(view)}")
    yield f"- points: {count_text(len(states))} ({counts}); repeats {plan.repeats}, warm-up batches {plan.warmup}"
    yield f"- prompts: {count_text(len(plan.prompt_ids))}, digest {cell(plan.prompts_digest)}"
    yield f"- sampling: {cell(asked.sampling_text(plan))}"
    yield f"- model: {cell(plan.model.name)}, digest {cell(plan.model.digest)}"
    yield (
        f"- plan: {cell(plan.digest)}; order {plan.measurement.order_text}, methods first ran as "
        f"{', '.join(map(cell, view.order)) or 'none ran'}"
    )
    if view.starts:
        first = view.starts[0]
        began = f"{teardown.moment(first.at)} on {cell(first.host)} with Airlock {cell(first.airlock)}"
        yield f"- began {began}; {_lives(view)}"
    yield f"- {_share(view)}"


def gap(view: RunView) -> str:
    """What is missing, in words."""
    needed = len(view.points.keys() - view.replay.skipped.keys())
    missing, total = sum(view.missing.values()), len(view.plan.prompt_ids) * needed
    open_points = sum(view.state_of(point) == "unfinished" for point in view.points)
    records = f"{count_text(missing)} of {counted(total, 'record is', 'records are')} missing" if missing else ""
    points = f"{counted(open_points, 'point has', 'points have')} not ended" if open_points else ""
    return " and ".join(part for part in (records, points) if part)


def _lives(view: RunView) -> str:
    count = len(view.starts)
    if count == 1:
        return "in one go" if view.state == "finished" else "not resumed"
    return f"resumed {'once' if count == 2 else f'{count - 1} times'}"


def _share(view: RunView) -> str:
    """Of the lives that ended with a word; the wall time of a killed one is not known."""
    wall, measured = (sum(getattr(e, name) for e in view.endings) for name in ("wall_s", "measured_s"))
    if wall <= 0:
        return f"measurement: {seconds_text(view.measured_s)} so far"
    silent = max(0, len(view.starts) - len(view.endings) - (view.state == "running"))
    note = f" (without {counted(silent, 'start')} that ended without a word)" if silent else ""
    slots = max(1, view.most_slots)  # measured seconds are of all slots together
    several = f" on {slots} slots at once" if slots > 1 else ""
    share = measured / (wall * slots)
    return f"measurement: {seconds_text(measured)} of {seconds_text(wall)} wall time{several}, {share:.0%}{note}"


def _reason(view: RunView) -> str:
    ended = view.endings[-1]
    dropped = ", ".join(f"{count} × {what}" for what, count in ended.dropped.items())
    said = [ended.reason, f"dropped from the wire: {dropped}" if dropped else ""]
    return "".join(f"; {cell(part)}" for part in said if part)


def _origins(view: RunView) -> Iterator[str]:
    """Of the first life; then what was different in later ones, and what could not be had."""
    if view.origins:
        yield from grid(["what", "which"], list(origins.lines(view.origins[0])))
        yield ""
        for life, what, before, after in origins.changes(view.plan, view.origins):
            yield f"- start {life}: {cell(what)} was {cell(before)}, then {cell(after)}"
        yield from (f"- {cell(note)}" for note in origins.notes(view.origins))


def _environments(view: RunView) -> Iterator[str]:
    """A line per environment and fingerprint, so that a change between starts shows."""
    used = whatran.environments(view)
    yield from grid(
        ["environment", "fingerprint", "methods"],
        [(one["environment"], one["fingerprint"], ", ".join(one["methods"])) for one in used],
    )
    names = [one["environment"] for one in used]
    for env in sorted({name for name in names if names.count(name) > 1}):
        yield ""
        yield f"**{cell(env)} changed while this run was under way: its figures mix {names.count(env)} environments.**"


def _completeness(view: RunView) -> Iterator[str]:
    if view.complete:
        points, records = counted(len(view.points), "point"), counted(view.replay.records, "record")
        yield f"All {points} have ended and all {records} are there."
        return
    yield f"INCOMPLETE: {gap(view)}."
    yield ""
    named = labels(view.plan)
    open_ = [(named[point], point, state, missing) for point, state, missing in view.open]
    yield from grid(["point", "id", "state", "records missing"], open_)
