"""The one reading of all records of a run: row by row, and the rows that are held against one output of the reference
after each other. Of a run of any size one row and one point of the reference are in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.judge.agreement import Agreement, Agreements, Comparison, RowKey
from orchestrator.judge.reference import cell_of
from orchestrator.plan import SweepPoint
from orchestrator.record.bypoint import Part
from orchestrator.record.output import Record
from orchestrator.view.spool import Spool

if TYPE_CHECKING:
    from orchestrator.view.runview import RunView


class Look:
    """What else is made of the records of one row while they are read; here nothing.

    beside  points of no row that are read with it
    """

    beside: Sequence[str] = ()

    def begin(self, part: Part) -> None:
        """All its commits."""

    def add(self, record: Record) -> None: ...

    def end(self, agreement: Agreement) -> None: ...


Along = Callable[[Sequence[SweepPoint]], Look]


def judged(
    view: RunView,
    along: Along | None = None,
    *,
    against: RunView | None = None,
    cell: Callable[[SweepPoint], Hashable] = lambda point: cell_of(point.config),
    first: str = "",
) -> Agreements:
    """Rows of one `cell` are read together, that of the method `first` before the others. `against`: another run whose
    reference is taken. Raises JournalError on damage."""
    source = view if against is None else against
    found = Comparison(view.plan, against=None if against is None else against.plan, outputs=source.outputs)
    reading = _Reading(view, source, found, along or (lambda _: Look()))
    rows = dict(map(reading.row, _in_order(found, cell, first)))
    return found.result(rows[key] for key in found.rows)


def _in_order(found: Comparison, cell: Callable[[SweepPoint], Hashable], first: str) -> Iterator[RowKey]:
    """So that a point of the reference is read once for all that it is the base of."""
    rows = found.rows
    places: dict[Hashable, int] = {}
    for points in rows.values():
        base = found.base_of.get(points[0].id)
        places.setdefault(("base", base and base.id), len(places))
        places.setdefault(("cell", cell(points[0])), len(places))

    def place(key: RowKey) -> tuple[int, bool]:
        return places["cell", cell(rows[key][0])], rows[key][0].method != first

    def base_place(keys: Sequence[RowKey]) -> int:
        base = found.base_of.get(rows[keys[0]][0].id)
        return places["base", base and base.id]

    cells = [list(keys) for _, keys in groupby(sorted(rows, key=place), key=lambda key: place(key)[0])]
    for keys in sorted(cells, key=base_place):
        yield from keys


class _Reading:
    def __init__(self, view: RunView, source: RunView, found: Comparison, along: Along) -> None:
        self.view, self.source, self.found, self.along = view, source, found, along
        self.rows = found.rows
        self.spool = Spool()
        self.held: str | None = None

    def row(self, key: RowKey) -> tuple[RowKey, Agreement]:
        points = self.rows[key]
        self._hold(points)
        look = self.along(points)
        part = self.view.replay.part({*(point.id for point in points), *look.beside})
        look.begin(part)
        places = {
            (one.commit.point, one.commit.batch, one.commit.incarnation): one.commit.offset for one in part.ranges
        }
        begin = 0
        for number, record in enumerate(self.view.replay.records_of(part.ranges)):
            begin = places.get((record.point, record.batch, record.incarnation), begin)
            look.add(record)
            self.found.add(record, begin + number)
        agreement = self.found.row(key, self.spool.keep)
        look.end(agreement)
        return key, agreement

    def _hold(self, points: Sequence[SweepPoint]) -> None:
        base = self.found.base_of.get(points[0].id)
        compares = base is not None and (self.source is not self.view or any(point.id != base.id for point in points))
        if base is not None and compares and base.id != self.held:
            self.found.hold(self.source.records_of([base.id]))
            self.held = base.id
