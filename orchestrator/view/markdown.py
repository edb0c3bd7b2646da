"""The whole report of one run as Markdown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from orchestrator.events import Cause, Reclaim
from orchestrator.plan import SweepPoint
from orchestrator.view import agreement, fairness, memory, origins, tables
from orchestrator.view.markup import cell, fenced, grid
from orchestrator.view.narrator import cause_text, waited_text
from orchestrator.view.runview import RunView, Worker
from orchestrator.view.summary import Row, cache_drift, drifts, labels, rows
from orchestrator.view.whatran import what_ran
from orchestrator.view.wording import (
    UNKNOWN,
    bytes_text,
    counted,
    or_unknown,
    seconds_text,
    settings_text,
)

#: Of the different ways in which a point's batches were lost.
LISTED_CAUSES = 5


def markdown(view: RunView) -> str:
    """Raises JournalError if records are damaged."""
    found = rows(view)
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("", _summary(view)),
        ("Results", tables.results(found)),
        ("Latency", tables.latency(found)),
        ("Throughput", tables.throughput(found)),
        ("Load", tables.load(found)),
        ("Memory", tables.memory(found)),
        ("Memory, estimated and told", grid(memory.HEADER, list(memory.estimates_told(view)))),
        ("Energy, clocks and heat", tables.hardware(found)),
        ("Counters of the engines", tables.counters(found)),
        ("Spread", tables.spread(found, drifts(view, found))),
        ("Agreement", agreement.markdown(view)),
        ("Fairness", fairness.markdown(view)),
        ("What ran", what_ran(view)),
        ("Where it comes from", _origins(view)),
        ("Teardown", _teardown(view)),
        ("Failures", _failures(view)),
        ("Environments", _environments(view)),
        ("Flags and notes", _notes(view, found)),
        ("Not known", tables.unknown(found)),
        ("Completeness", _completeness(view)),
    )
    blocks = []
    for title, lines in sections:
        text = "\n".join(lines)
        if text:
            blocks.append(f"## {title}\n\n{text}" if title else text)
    return "\n\n".join(blocks) + "\n"


def _summary(view: RunView) -> Iterator[str]:
    plan, states = view.plan, [view.state_of(point) for point in view.points]
    yield f"# {cell(plan.name)}"
    yield ""
    if not view.complete:
        yield f"**INCOMPLETE: {_gap(view)}. Do not read this as a finished comparison.**"
        yield ""
    counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    yield f"- state: {view.state}" + ("" if view.exit_code is None else f", exit code {view.exit_code}{_reason(view)}")
    yield f"- points: {len(states)} ({counts}); repeats {plan.repeats}, warm-up batches {plan.warmup}"
    yield f"- prompts: {len(plan.prompt_ids)}, digest {cell(plan.prompts_digest)}"
    yield f"- model: {cell(plan.model.name)}, digest {cell(plan.model.digest)}"
    yield (
        f"- plan: {cell(plan.digest)}; order {plan.measurement.order_text}, methods first ran as "
        f"{', '.join(_order(view)) or 'none ran'}"
    )
    if view.starts:
        first = view.starts[0]
        yield f"- began {_moment(first.at)} on {cell(first.host)} with Airlock {cell(first.airlock)}; {_lives(view)}"
    yield f"- {_share(view)}"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))


def _gap(view: RunView) -> str:
    needed = len(view.points.keys() - view.replay.skipped.keys())
    missing, total = sum(view.missing.values()), len(view.plan.prompt_ids) * needed
    open_points = sum(view.state_of(point) == "unfinished" for point in view.points)
    records = f"{missing} of {counted(total, 'record is', 'records are')} missing" if missing else ""
    points = f"{counted(open_points, 'point has', 'points have')} not ended" if open_points else ""
    return " and ".join(part for part in (records, points) if part)


def _order(view: RunView) -> list[str]:
    """As it was, restarts left out: heat and clocks favour whoever came first."""
    return [cell(name) for name in dict.fromkeys(w.launched.method for w in view.workers.values())]


def _lives(view: RunView) -> str:
    count = len(view.starts)
    return "in one go" if count == 1 else f"resumed {'once' if count == 2 else f'{count - 1} times'}"


def _share(view: RunView) -> str:
    """Of the lives that ended with a word; the wall time of a killed one is not known."""
    wall, measured = (sum(getattr(e, name) for e in view.endings) for name in ("wall_s", "measured_s"))
    if wall <= 0:
        return f"measurement: {seconds_text(view.measured_s)} so far"
    silent = len(view.starts) - len(view.endings)
    note = f" (without {counted(silent, 'start')} that ended without a word)" if silent else ""
    return f"measurement: {seconds_text(measured)} of {seconds_text(wall)} wall time, {measured / wall:.0%}{note}"


def _reason(view: RunView) -> str:
    ended = view.endings[-1]
    dropped = ", ".join(f"{count} × {what}" for what, count in ended.dropped.items())
    said = [ended.reason, f"dropped from the wire: {dropped}" if dropped else ""]
    return "".join(f"; {cell(part)}" for part in said if part)


def _origins(view: RunView) -> Iterator[str]:
    """Of the first life; then what was different in later ones."""
    if view.origins:
        first, *later = view.origins
        yield from grid(["what", "which"], list(origins.lines(first)))
        for one in later:
            for what, before, after in origins.differences((view.plan, view.plan), (first, one)):
                yield f"- start {one.life}: {cell(what)} was {cell(before)}, then {cell(after)}"


def _teardown(view: RunView) -> Iterator[str]:
    head = ["worker", "method", "exit", "rung", "processes left", "strays killed", "held before", "left after"]
    head += ["returned", "back after", "teardown", "notes"]
    yield from grid(head, [_proof(worker) for worker in view.workers.values()])
    for reaped in view.survivors:
        yield ""
        yield f"Before start at {_moment(reaped.at)} ended: {', '.join(map(cell, reaped.processes))}."
    for wait in view.waits:
        yield f"- {cell(waited_text(wait))}"
    for slot in view.quarantined:
        after = f" (after {cell(slot.incarnation)})" if slot.incarnation else ""
        yield ""
        yield f"**{cell(slot.slot)} was taken out of use: {cell(slot.reason)}{after}.**"


def _proof(worker: Worker) -> list[object]:
    named = [worker.launched.incarnation, worker.launched.method]
    released = worker.released
    if released is None:
        return [*named, "no proof: still running, or its coordinator ended first", *[UNKNOWN] * 9]
    proof = released.reclaim
    end = released.signal or (UNKNOWN if released.exit_status is None else str(released.exit_status))
    held, after = (or_unknown(value, bytes_text) for value in (proof.held_bytes, proof.after_bytes))
    times = (seconds_text(proof.wait_s), seconds_text(proof.teardown_s))
    strays = ", ".join(proof.strays_killed) or "none"
    return [
        *named,
        end,
        proof.rung,
        proof.processes_left,
        strays,
        held,
        after,
        _returned(proof),
        *times,
        _proof_notes(proof),
    ]


def _returned(proof: Reclaim) -> str:
    return f"yes, within {bytes_text(proof.tolerance_bytes)}" if proof.returned else "NO"


def _proof_notes(proof: Reclaim) -> str:
    shm = [f"removed from /dev/shm: {', '.join(proof.shm_removed)}"] if proof.shm_removed else []
    return "; ".join([*shm, *proof.notes]) or UNKNOWN


def _failures(view: RunView) -> Iterator[str]:
    named = labels(view.plan)
    for point in view.plan.points:
        cause, errors = view.cause_of(point.id), view.measures[point.id].errors
        state = view.state_of(point.id)
        lost = [event for event in view.lost if event.point == point.id]
        if state in ("ok", "unfinished") and not errors and not lost:
            continue
        yield f"### {cell(f'{named[point.id]}, {point.id}')}: {state}"
        yield ""
        if cause is not None:
            yield from _cause(view, point, cause)
        if lost:
            yield f"- {counted(len(lost), 'batch', 'batches')} gave nothing at first:"
            causes = Counter(f"{cause_text(event.cause)}; {event.cause.policy}" for event in lost)
            yield from (f"  - {count} × {cell(text)}" for text, count in causes.most_common(LISTED_CAUSES))
        for prompt, error in errors:
            yield f"- prompt {cell(prompt)}: {cell(cause_text(error))}"
        more = view.measures[point.id].failed - len(errors)
        if more:
            yield f"- and {counted(more, 'more prompt')}"
        yield ""


def _cause(view: RunView, point: SweepPoint, cause: Cause) -> Iterator[str]:
    yield cell(cause_text(cause))
    told = {cause.incarnation, *(event.incarnation for event in view.lost if event.point == point.id)}
    of_point = {worker.launched.incarnation for worker in view.workers_of(point.id)}
    logs = [worker.launched.log for name, worker in view.workers.items() if name in told | of_point]
    if logs:
        yield ""
        yield f"Logs: {', '.join(map(cell, logs))}"
    traceback = cause.error.traceback if cause.error else ""
    if cause.policy:
        yield ""
        yield f"Policy: {cell(cause.policy)}"
    parts = {
        "Traceback": traceback,
        "What it was doing": cause.stacks,
        "First traceback of the log": cause.first_traceback,
        "End of the log": cause.log_tail,
    }
    for what, text in parts.items():
        if text.strip():
            yield ""
            yield f"{what}:"
            yield ""
            yield from fenced(text)
    yield ""


def _environments(view: RunView) -> Iterator[str]:
    """A line per environment and fingerprint, so that a change between starts shows."""
    used: dict[tuple[str, str], set[str]] = {}
    for worker in view.workers.values():
        launched = worker.launched
        used.setdefault((launched.env, launched.fingerprint), set()).add(launched.method)
    yield from grid(
        ["environment", "fingerprint", "methods"],
        [(env, digest, ", ".join(sorted(methods))) for (env, digest), methods in used.items()],
    )
    names = [env for env, _ in used]
    for env in sorted({name for name in names if names.count(name) > 1}):
        yield ""
        yield f"**{cell(env)} changed while this run was under way: its figures mix {names.count(env)} environments.**"


def _notes(view: RunView, found: list[Row]) -> Iterator[str]:
    for row in found:
        for flag, count in sorted(row.flags.items()):
            yield f"- {cell(f'{row.method} {settings_text(row.settings)}')}: {cell(flag)} × {count}"
    seen = dict.fromkeys(
        f"{worker.launched.method}: {note}"
        for worker in view.workers.values()
        if worker.ready
        for note in (*worker.ready.metadata.flags, *worker.ready.metadata.patches, *worker.ready.metadata.notes)
    )
    slow = dict.fromkeys(
        f"{worker.launched.method}: its log says: {line}"
        for worker in view.workers.values()
        if worker.released
        for line in worker.released.slow_paths
    )
    torn = [view.replay.torn] if view.replay.torn and view.state != "running" else []
    for note in (*view.plan.notes, *seen, *slow, *cache_drift(view), *torn):
        yield f"- {cell(note)}"


def _completeness(view: RunView) -> Iterator[str]:
    if view.complete:
        yield f"All {len(view.points)} points have ended and all {view.replay.records} records are there."
        return
    yield f"INCOMPLETE: {_gap(view)}."
    yield ""
    named = labels(view.plan)
    rows_ = [
        (named[p.id], p.id, view.state_of(p.id), view.missing.get(p.id, 0))
        for p in view.plan.points
        if p.id in view.missing or view.state_of(p.id) == "unfinished"
    ]
    yield from grid(["point", "id", "state", "records missing"], rows_)
