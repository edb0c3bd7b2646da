"""Every fault in every state of a worker, on real processes. `scripts/faults` prints the same as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.faults import matrix
from tests.faults.cells import ALWAYS, CELLS, Cell
from tests.faults.expected import failures, failures_always
from tests.faults.found import Found

PATIENCE_S = 240
#: One cell of each state, and of each way to die or to hide.
SAMPLE = (
    "launching-sigkill",
    "importing-child_double_fork",
    "standby-exit0",
    "loading-segv",
    "ready-child_clear_env",
    "busy-sigstop",
    "draining-hang_ignore_term",
    "terminating-child_setsid",
)
REFUSED = 2

Find = Callable[[Cell], Found]


@pytest.fixture(scope="module")
def find(request: pytest.FixtureRequest) -> Iterator[Find]:
    """What was found in a cell. Those that are selected run beside each other; each test waits for its own."""
    wanted = [cell for item in request.session.items if (cell := cell_of(item))]
    coming = matrix.run(wanted)
    found: dict[str, Found] = {}

    def wait_for(cell: Cell) -> Found:
        while str(cell) not in found:
            one = next(coming)
            found[one.cell] = one
        return found[str(cell)]

    yield wait_for
    coming.close()


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell that a selected test is about."""
    tests = (test_a_cell.__name__, test_a_fault_that_strikes_always_comes_to_an_end.__name__)
    if not isinstance(item, pytest.Function) or item.originalname not in tests:
        return None
    cell = item.callspec.params["cell"]
    return cell if isinstance(cell, Cell) else None


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_cell(find: Find, cell: Cell) -> None:
    assert failures(cell, found := find(cell)) == [], found


@pytest.mark.parametrize("cell", ALWAYS, ids=str)
def test_a_fault_that_strikes_always_comes_to_an_end(find: Find, cell: Cell) -> None:
    assert failures_always(cell, found := find(cell)) == [], found


@pytest.mark.parametrize(("options", "pid", "root"), [(["--pid1"], 1, None), (["--user", "65534"], None, False)])
def test_as_process_1_and_as_another_user(options: list[str], pid: int | None, root: bool | None) -> None:
    if options[0] == "--user" and os.geteuid() != 0:
        pytest.skip("only root can become another user, and what runs here is no root already")
    command = [sys.executable, "-m", "scripts.faults", "--json", *options, *SAMPLE]
    done = subprocess.run(
        command, cwd=matrix.REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode == REFUSED:
        pytest.skip(done.stderr.strip())
    cells = json.loads(done.stdout)
    assert [cell["failures"] for cell in cells] == [[]] * len(SAMPLE), done.stdout
    assert {cell["found"]["pid"] == 1 for cell in cells} == {pid == 1}
    assert root is None or {cell["found"]["uid"] == 0 for cell in cells} == {root}
    assert done.returncode == 0
