"""What can be exported, by name: columns, and the lines of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.exports import source as of
from orchestrator.exports.columns import ASKED, BATCHES, EVENTS, RECORDS, WORKER, Line, Table
from orchestrator.exports.rows import ROWS, rows
from orchestrator.exports.source import Source
from orchestrator.exports.values import fitted

TABLES: Final = {
    table.name: table
    for table in (
        Table("records", "one line for each output", RECORDS, (*WORKER, *ASKED), of.records),
        Table("rows", "one line for each method at one combination of settings", ROWS, ASKED, rows),
        Table(
            "batches",
            "one line for each batch that gave records",
            BATCHES,
            (*WORKER, *ASKED),
            of.batches,
        ),
        Table("events", "one line for each event of the journal", EVENTS, (), of.events),
    )
}


def lines_of(table: Table, sources: Iterable[Source], lost: Counter[str]) -> Iterator[Line]:
    """As every format can take them; see `fitted` for `lost`. Raises JournalError on damage."""
    fit, fit_shared = fitted(table.own, lost), fitted(table.shared, lost)
    last, shared = None, fit_shared((None,) * len(table.shared))
    for source in sources:
        for line in table.lines(source):
            if line.shared is not last:
                last, shared = line.shared, fit_shared(line.shared)
            yield Line(fit(line.own), shared)
