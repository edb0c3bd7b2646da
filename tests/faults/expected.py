"""What must come of each cell, by rule and not by list: a surprise in one cell is a fault, not a new line here. Pure.

1. Whoever dies, hangs or talks nonsense is named for it, in the phase where it shows; asked to leave, nobody is.
2. The first cause wins: a worker that is being ended may do what it likes.
3. Only the batch that was out is blamed. What was committed stays, the rest is run again, nothing twice.
4. A fresh worker mends what a second try can mend, so the method ends ok; a load that ran out of memory would again.
5. What comes without a valid Hello, or with another's token, is dropped, and means nothing.
6. Whoever goes by itself is gone with all its children a second later; whoever does not, a second after the grace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.faults.cells import DEAF, FAULTY, PROMPTS, SHORT_S, TERMINATE_S, Cell
from tests.faults.found import Ended, Found

#: (exit status, signal) of a worker.
Exit = tuple[int | None, str | None]
LEFT, FATAL, TERMINATED, KILLED = (0, None), (70, None), (143, None), (None, "SIGKILL")

DEATHS: dict[str, Exit] = {
    "exit0": LEFT,
    "exit1": (1, None),
    "segv": (None, "SIGSEGV"),
    "sigkill": KILLED,
    "memory_killed": KILLED,
}
SPOKEN = ("garbage", "wrong_protocol", "out_of_turn", "late", "oversized_frame")
#: Beyond the grace that the ladder gives.
TEARDOWN_S = 1.0
#: The batch in hand at the fault, by the states in which there is one.
STRUCK = ["2", "3"]


@dataclass(frozen=True)
class Expected:
    """`cls` and `phase` of the struck worker's cause, empty where nobody is to blame; `lost` is the
    class under which the batch in hand is lost."""

    cls: str = ""
    phase: str = ""
    outcome: str = "ok"
    workers: int = 1
    lost: str = ""
    exit: Exit = LEFT
    rung: str = "shutdown"
    strays: int = 0
    grace_s: float = 0.0


def expected(cell: Cell, *, kernel: bool = False) -> Expected:
    """`kernel`: it is the kernel that kills for memory, and says so to those who ask."""
    by_state = {"draining": _draining, "terminating": _terminating}
    found = by_state.get(cell.state, _working)(cell)
    if kernel and cell.fault == "memory_killed" and found.cls == "engine_crash":
        found = _unloadable(cell, replace(found, cls="oom", lost=found.lost and "oom"))
    return replace(found, strays=int(cell.fault.startswith("child_") and cell.fault != "child_dies"))


def _draining(cell: Cell) -> Expected:
    if cell.fault in DEAF:
        return Expected(exit=KILLED, rung="kill", grace_s=SHORT_S["drain_s"] + TERMINATE_S)
    return Expected(exit=_exit(cell, LEFT))


def _terminating(cell: Cell) -> Expected:
    base = Expected("protocol", "busy", workers=2, lost="protocol", exit=_exit(cell, TERMINATED))
    if cell.fault in DEAF:
        return replace(base, exit=KILLED, rung="kill", grace_s=TERMINATE_S)
    return replace(base, rung="terminate")


def _exit(cell: Cell, otherwise: Exit) -> Exit:
    return FATAL if cell.fault == "memory_limit" else DEATHS.get(cell.fault, otherwise)


def _working(cell: Cell) -> Expected:
    if cell.fault in DEATHS:
        return _blamed(cell, "engine_crash", cell.state, DEATHS[cell.fault], "exit")
    if cell.fault in DEAF:
        shows_in = {"standby": "loading", "ready": "busy"}.get(cell.state, cell.state)
        return replace(_blamed(cell, "hang", shows_in, KILLED, "kill"), grace_s=TERMINATE_S)
    if cell.fault == "memory_limit":
        return _out_of_memory(cell)
    if cell == Cell("busy", "late"):
        return _blamed(cell, "hang", "busy", TERMINATED, "terminate")
    if cell.state == "launching":
        is_told = cell.fault in ("wrong_protocol", "wrong_token")  # instead of the Hello, not beside it
        return _blamed(cell, "protocol", "launching", TERMINATED, "terminate") if is_told else Expected()
    if cell.fault in SPOKEN:
        return _blamed(cell, "protocol", cell.state, TERMINATED, "terminate")
    return Expected()


def _blamed(cell: Cell, cls: str, phase: str, exit_: Exit, rung: str) -> Expected:
    lost = cls if "busy" in (phase, cell.state) else ""
    return Expected(cls, phase, workers=2, lost=lost, exit=exit_, rung=rung)


def _out_of_memory(cell: Cell) -> Expected:
    if cell.state == "busy":  # the batch alone has failed; in halves it goes through
        return Expected(lost="oom")
    phase = "importing" if cell.state == "launching" else cell.state  # there is nobody to tell before the Hello
    return _unloadable(cell, Expected("oom", phase, workers=2, exit=FATAL, rung="exit"))


def _unloadable(cell: Cell, found: Expected) -> Expected:
    """A load that ran out of memory would do so again."""
    return found if cell.state in ("ready", "busy") else replace(found, workers=1, outcome="failed:oom")


def expected_always(cell: Cell) -> tuple[str, int]:
    """Outcome and number of workers where a fault strikes every time: one more try, and the method is given up."""
    if cell.state == "draining" or (cell.state, cell.fault) == ("launching", "garbage"):
        return "ok", 1
    if cell.state in ("busy", "terminating"):  # the second batch of each worker: no prompt fails alone in a fresh one
        return "ok", 3
    return f"failed:{'protocol' if cell.fault == 'garbage' else 'engine_crash'}", 2


# --- the verdict ------------------------------------------------------------


def failures(cell: Cell, found: Found) -> list[str]:
    """What is not as it must be, a sentence each."""
    if found.trouble:
        return [found.trouble]
    if found.first is None:
        return ["the faulty worker has no proof of release"]
    want = expected(cell, kernel=found.kernel)
    pairs = {**_of_the_run(want, found), **_of_the_worker(cell, want, found.first)}
    wrong = [f"{what} is {is_!r}, not {must!r}" for what, (is_, must) in pairs.items() if is_ != must]
    return [*wrong, *_slow(want, found), *(f"left behind: {kind} {what}" for kind, what in found.left.items())]


def failures_always(cell: Cell, found: Found) -> list[str]:
    """Of a cell that strikes always: what it comes to, and that nothing is left of any worker."""
    if found.trouble:
        return [found.trouble]
    outcome, workers = expected_always(cell)
    run = _of_the_run(Expected(outcome=outcome, workers=workers), found)
    for free in (
        "times the fault struck",
        "lost batches",
        "prompts with a good record",
        "prompts with an error record",
    ):
        del run[free]
    wrong = [f"{what} is {is_!r}, not {must!r}" for what, (is_, must) in run.items() if is_ != must]
    return wrong + [f"left behind: {kind} {what}" for kind, what in found.left.items()]


def only_slow(cell: Cell, found: Found) -> bool:
    """Whether nothing is wrong but the time that a teardown took: it may be this machine that was slow."""
    wrong = failures(cell, found)
    return bool(wrong) and not found.trouble and wrong == _slow(expected(cell, kernel=found.kernel), found)


def _slow(want: Expected, found: Found) -> list[str]:
    wrong = []
    if found.beyond_s > TEARDOWN_S:
        wrong.append(f"a teardown took {found.beyond_s:.2f} s beyond the worker's own exit")
    if want.grace_s and found.slowest_s > want.grace_s + TEARDOWN_S:
        wrong.append(f"a teardown took {found.slowest_s:.2f} s, at a grace of {want.grace_s:g} s")
    return wrong


def _of_the_run(want: Expected, found: Found) -> dict[str, tuple[object, object]]:
    is_ok = want.outcome == "ok"
    return {
        "times the fault struck": (found.struck, 1),
        "exit code": (found.exit_code, 0 if is_ok else 1),
        f"outcome of {FAULTY}": (found.faulty, want.outcome),
        "outcome of the method after it": (found.healthy, "ok"),
        "workers it took": (found.workers, want.workers),
        "lost batches": (found.lost, [(want.lost, STRUCK)] if want.lost else []),
        "prompts with a good record": (found.good, [str(n) for n, _ in enumerate(PROMPTS)] if is_ok else []),
        "prompts with an error record": (found.errors, {}),
        "records that are there twice": (found.twice, []),
        "workers whose release is not clean": (found.not_back, []),
    }


def _of_the_worker(cell: Cell, want: Expected, ended: Ended) -> dict[str, tuple[object, object]]:
    count = len(ended.strays)
    return {
        "class of its cause": (ended.cls, want.cls),
        "phase of its cause": (ended.phase, want.phase),
        "its exit": ((ended.exit_status, ended.signal), want.exit),
        "rung of the ladder": (ended.rung, want.rung),
        "children left behind": (count if count == want.strays else ended.strays, want.strays),
        "segments removed": (ended.shm_removed, int(cell.lays_segment)),
    }
