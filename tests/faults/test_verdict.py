"""That a cell which goes wrong is found to have gone wrong, and that what is left behind is seen."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faults import matrix
from tests.faults.cells import CELLS, FAULTS, PROMPTS, STATES, Cell, Places, sweep
from tests.faults.expected import STRUCK, expected, failures, only_slow
from tests.faults.found import Ended, Found
from tests.faults.leaks import SEGMENTS, Snapshot, left_since
from tests.faults.table import FAIL, GAP, table

BUSY = Cell("busy", "exit1")
TAG = "0123456789abcdef"
WORKER = f"w1-{TAG}"


def right(cell: Cell, *, kernel: bool = False) -> Found:
    """A Found just as it must be."""
    want = expected(cell, kernel=kernel)
    status, signal = want.exit
    ended = Ended(
        cls=want.cls,
        phase=want.phase,
        message="",
        exit_status=status,
        signal=signal,
        rung=want.rung,
        teardown_s=0.1,
        strays=["python"] * want.strays,
        shm_removed=int(cell.lays_segment),
    )
    is_ok = want.outcome == "ok"
    return Found(
        cell=str(cell),
        struck=1,
        kernel=kernel,
        exit_code=int(not is_ok),
        faulty=want.outcome,
        healthy="ok",
        first=ended,
        workers=want.workers,
        lost=[(want.lost, STRUCK)] if want.lost else [],
        good=[str(n) for n, _ in enumerate(PROMPTS)] if is_ok else [],
    )


def test_what_is_right_fails_nothing() -> None:
    for kernel in (False, True):
        assert [wrong for cell in CELLS for wrong in failures(cell, right(cell, kernel=kernel))] == []


WRONG: list[dict[str, Any]] = [
    {"struck": 0},
    {"struck": 2},
    {"exit_code": 1},
    {"faulty": "failed:engine_crash"},
    {"healthy": "failed:engine_crash"},
    {"healthy": ""},
    {"first": None},
    {"workers": 1},
    {"lost": []},
    {"lost": [("engine_crash", ["0", "1"])]},
    {"lost": [("hang", STRUCK)]},
    {"good": ["0", "1"]},
    {"errors": {"3": "bad_prompt"}},
    {"twice": ["faulty 0"]},
    {"not_back": [WORKER]},
    {"beyond_s": 1.01},
    {"left": {"pids": ["77"]}},
    {"trouble": "it did not run"},
]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_what_is_wrong_is_found(change: dict[str, Any]) -> None:
    assert len(failures(BUSY, replace(right(BUSY), **change))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"cls": "hang"},
        {"phase": "ready"},
        {"exit_status": 0},
        {"signal": "SIGTERM"},
        {"rung": "kill"},
        {"strays": ["python"]},
        {"shm_removed": 0},
    ],
    ids=str,
)
def test_a_worker_that_ended_otherwise_is_found(change: dict[str, Any]) -> None:
    found = right(BUSY)
    assert found.first is not None
    assert len(failures(BUSY, replace(found, first=replace(found.first, **change)))) == 1


def test_a_worker_that_outlives_its_grace_is_found() -> None:
    deaf = Cell("draining", "hang_ignore_term")
    most_s = expected(deaf).grace_s + 1
    assert failures(deaf, replace(right(deaf), slowest_s=most_s)) == []
    assert len(failures(deaf, replace(right(deaf), slowest_s=most_s + 0.01))) == 1


# --- the matrix ---------------------------------------------------------------


def test_the_matrix_has_every_pair_once() -> None:
    assert len(CELLS) == len(set(map(str, CELLS))) == len(STATES) * len(FAULTS)
    assert {Cell.named(str(cell)) for cell in CELLS} == set(CELLS)


def test_no_two_cells_of_a_fault_run_the_same_sweep() -> None:
    places = Places(Path("/nowhere"))
    sweeps = [{**sweep(cell, places), "name": ""} for cell in CELLS]
    assert all(one not in sweeps[:n] for n, one in enumerate(sweeps))


def test_gaps_and_failures_show_in_the_table() -> None:
    fine, wrong, missing = BUSY, Cell("ready", "exit1"), Cell("busy", "segv")
    found = {fine: right(fine), wrong: replace(right(wrong), healthy="")}
    lines = table([fine, wrong, missing], found).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["exit", "1", FAIL, "crash*", "ok", "0.10"],
        ["segfault", GAP],
    ]


# --- what is left behind --------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path)
    made.tmp.mkdir()
    made.run_dir.mkdir()
    return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def a_descriptor(stack: ExitStack, _places: Places) -> None:
    stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))


def a_thread(stack: ExitStack, _places: Places) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    stack.callback(thread.join)
    stack.callback(end.set)


def start_child(stack: ExitStack, **env: str) -> int:
    code = "import os, signal; os.write(1, b'.'); signal.pause()"
    command = [sys.executable, "-I", "-S", "-c", code]
    child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=env))
    stack.callback(child.kill)
    assert child.stdout
    assert child.stdout.read(1) == b"."
    return child.pid


def a_child(stack: ExitStack, _places: Places) -> None:
    start_child(stack)


def a_tagged_process(stack: ExitStack, _places: Places) -> None:
    start_child(stack, AIRLOCK_RUN=TAG)


def a_port(stack: ExitStack, places: Places) -> None:
    stack.enter_context(socket.create_server((places.address, 0)))


def a_socket(stack: ExitStack, places: Places) -> None:
    one = stack.enter_context(socket.socket(socket.AF_UNIX))
    one.bind(str(places.tmp / "s"))


def a_segment(stack: ExitStack, _places: Places) -> None:
    path = Path(f"/dev/shm/{SEGMENTS}{WORKER}")
    path.touch()
    stack.callback(path.unlink)


def a_file(_stack: ExitStack, places: Places) -> None:
    (places.tmp / "file").touch()


def a_held_lock(stack: ExitStack, places: Places) -> None:
    file = stack.enter_context((places.run_dir / "lock").open("w"))
    fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.parametrize(
    ("leave", "kind"),
    [
        (a_descriptor, "descriptors"),
        (a_thread, "threads"),
        (a_child, "children"),
        (a_tagged_process, "tagged"),
        (a_port, "ports"),
        (a_socket, "sockets"),
        (a_segment, "shm"),
        (a_file, "files"),
        (a_held_lock, "lock"),
    ],
)
def test_what_is_left_behind_is_seen(
    places: Places, stack: ExitStack, leave: Callable[[ExitStack, Places], None], kind: str
) -> None:
    before = Snapshot.take()
    assert left_since(before, places, TAG, [WORKER], []) == {}
    leave(stack, places)
    assert left_since(before, places, TAG, [WORKER], [])[kind]


def test_a_process_that_told_of_itself_is_looked_for_by_its_number(places: Places, stack: ExitStack) -> None:
    pid = start_child(stack)
    assert left_since(Snapshot.take(), places, TAG, [WORKER], [pid]) == {"pids": [str(pid)]}


# --- how the cells are run --------------------------------------------------------


def test_what_was_only_slow_is_run_once_more_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, slow = Cell("ready", "exit1"), replace(right(BUSY), beyond_s=1.5)
    rounds: list[tuple[list[Cell], int]] = []

    def runs(cells: Iterable[Cell], _prefix: object, jobs: int, _keep: bool) -> Iterator[Found]:
        rounds.append((list(cells), jobs))
        return iter([slow, right(fine)] if jobs > 1 else [right(BUSY)])

    monkeypatch.setattr(matrix, "_run", runs)
    found = list(matrix.run([BUSY, fine], jobs=3))
    assert rounds == [([BUSY, fine], 3), ([BUSY], 1)]
    assert found == [right(fine), replace(right(BUSY), again=True)]


def test_what_is_wrong_besides_is_not_run_again() -> None:
    slow = replace(right(BUSY), beyond_s=1.5)
    assert only_slow(BUSY, slow)
    assert not only_slow(BUSY, right(BUSY))
    assert not only_slow(BUSY, replace(slow, twice=["faulty 0"]))
    assert not only_slow(BUSY, Found(cell=str(BUSY), trouble="it did not run", beyond_s=1.5))


def test_a_coordinator_that_ends_costs_its_cell_alone(tmp_path: Path) -> None:
    """The first one is killed by what it is started through; the next is none the worse."""
    once = tmp_path / "once"
    script = f'[ -e {once} ] && exec "$@"; touch {once}; read line; exit 7'
    cells = [Cell("loading", "exit1"), Cell("loading", "exit0")]
    found = {one.cell: one for one in matrix.run(cells, prefix=["sh", "-c", script, "sh"], jobs=1)}
    assert found["loading-exit1"].trouble.startswith("the coordinator ended (status 7)")
    assert failures(cells[1], found["loading-exit0"]) == []
