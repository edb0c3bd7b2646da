"""Holds the coordinator in a state that it would leave at once, until the fault of a cell has struck.

The hold is the test's; all that happens meanwhile is the coordinator's own doing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

from orchestrator.run import assembly
from orchestrator.run.course import Course
from orchestrator.run.incarnation import Incarnation
from orchestrator.run.occupant import Occupant
from orchestrator.run.stint import Stint
from orchestrator.run.vigil import VIEW_INTERVAL_S
from orchestrator.supervisor import Supervisor
from tests.faults.cells import FAULTY, GATED, HELD, Cell, Places

FIRST_WORKER = "w1-"
#: How often a held coordinator looks whether the fault has struck; no event of its own would tell.
LOOK_S = 0.02


class Hold:
    """`struck`: (moment, pid) of each fault that has fired, in order."""

    def __init__(self, cell: Cell, places: Places) -> None:
        self.cell = cell
        self.struck: list[tuple[str, int]] = []
        self._gate = places.gate
        self._opened_for = ""
        os.mkfifo(places.touch)
        os.mkfifo(places.gate)
        self._touch = os.open(places.touch, os.O_RDWR | os.O_NONBLOCK)
        self._heard = b""

    def close(self) -> None:
        self.listen()
        os.close(self._touch)

    def listen(self) -> None:
        with suppress(BlockingIOError):
            self._heard += os.read(self._touch, 1 << 16)
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            moment, _, pid = line.decode().rpartition(" ")
            self.struck.append((moment, int(pid)))

    def holds(self, worker: Incarnation, course: Course) -> bool:
        """Whether the coordinator stays in the present state. READY means the one between two batches."""
        if worker.life.state != self.cell.state or not self._is_struck(worker):
            return False
        if self.cell.state == "ready" and not (course.batches_done or self.cell.always):
            return False
        self._let_it_strike(worker.name)
        if self.cell.state not in HELD:
            return self._opened_for != worker.name
        self.listen()
        return not (self.struck and self.cell.silent)

    def _is_struck(self, worker: Incarnation) -> bool:
        is_first = worker.name.startswith(FIRST_WORKER)
        return self.cell.state in GATED and (is_first or self.cell.always) and worker.start.config.method.name == FAULTY

    def _let_it_strike(self, worker: str) -> None:
        if self._opened_for == worker:
            return
        with suppress(OSError):  # ENXIO: nobody waits at the gate yet
            os.close(os.open(self._gate, os.O_WRONLY | os.O_NONBLOCK))
            self._opened_for = worker


@contextmanager
def holding(hold: Hold) -> Iterator[None]:
    """Every sweep that runs inside is supervised by a coordinator that `hold` can hold."""

    class Held(Supervisor):
        held = False

        def _advance(self, stint: Occupant) -> None:
            assert isinstance(stint, Stint)
            self.held = hold.holds(stint.worker, stint.job.course)
            self.vigil.view_s = LOOK_S if self.held else VIEW_INTERVAL_S
            if not self.held:
                super()._advance(stint)

    with mock.patch.object(assembly, "Supervisor", Held):
        yield
