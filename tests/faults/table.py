"""The matrix as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.faults.cells import FAULTS, STATES, Cell
from tests.faults.expected import failures
from tests.faults.found import Found

#: The class of a cause, short.
WORDS = {"": "-", "engine_crash": "crash", "protocol": "proto", "environment": "env"}
GAP, FAIL = "GAP", "FAIL"
LEGEND = """
Each cell: the class that the struck worker's end is put down to (- nobody's fault, * the batch in hand was
blamed and run again), how its method ended, seconds from the wish to be rid of the worker to its last process.
The fault strikes once, in the first worker of its method, in the state that the coordinator has it in.

 launching    before the Hello: what is no valid Hello is dropped there. With a wrong token or number in place
              of the right Hello, the launch ends by its deadline, or at once.
 standby      held there by the test, as by a slot that is not free; ready, between two batches, likewise.
              Of a worker that stops or hangs there nothing is heard, so it shows in loading, or busy.
 draining     after Shutdown was received: nobody is blamed any more, the results are in.
 terminating  one message out of turn in the second batch, so SIGTERM; the first cause wins.
 memory       hit: RLIMIT_AS. In a batch it costs the batch, in a load the method, as a second load would end alike.
              killed: by the kernel, in the memory cgroup (limit under 1 GiB) that AIRLOCK_FAULTS_CGROUP names;
              without one by a SIGKILL of its own, which is all that is to be seen of the kernel's.
 late result  busy: the batch's own answer, in full, after its deadline; else an answer that is long over.
 oversized    past the worker's own check: the wire drops the connection.
"""


def table(chosen: Sequence[Cell], found: Mapping[Cell, Found]) -> str:
    """Rows are faults, columns states; a cell that was not chosen is empty."""
    states = [state for state in STATES if any(cell.state == state for cell in chosen)]
    rows = [["", *states]]
    for name, fault in FAULTS.items():
        if any(cell.fault == fault for cell in chosen):
            cells = [Cell(state, fault) for state in states]
            rows.append([name, *(_word(cell, found) if cell in chosen else "" for cell in cells)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def _word(cell: Cell, found: Mapping[Cell, Found]) -> str:
    one = found.get(cell)
    if one is None:
        return GAP
    if failures(cell, one) or one.first is None:
        return FAIL
    blamed = "*" if one.lost else ""
    cls = one.first.cls or (one.lost[0][0] if one.lost else "")
    return f"{WORDS.get(cls, cls)}{blamed} {one.faulty.partition(':')[0]} {one.first.teardown_s:.2f}"


def summary(found: Mapping[Cell, Found], gaps: int, wall_s: float) -> str:
    wrong = sum(bool(failures(cell, one)) for cell, one in found.items())
    slowest = max(found.values(), key=lambda one: one.slowest_s, default=None)
    who = sorted({f"process {one.pid}, user {one.uid}" for one in found.values() if one.pid})
    lines = [f"{len(found)} cells in {wall_s:.0f} s: {wrong} failed, {gaps} left out"]
    if slowest:
        lines.append(f"slowest teardown {slowest.slowest_s:.2f} s, in {slowest.cell}")
    if again := sum(one.again for one in found.values()):
        lines.append(f"{again} of them run twice: beside the others a teardown took too long, alone it counts")
    lines.append(f"coordinators: {'; '.join(who)}")
    return "\n".join(lines)
