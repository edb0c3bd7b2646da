"""The rows of a run, made one after another while its records are read: `summary` says what a row is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from orchestrator.judge.agreement import Agreement
from orchestrator.plan import SweepPoint
from orchestrator.record.bypoint import Part
from orchestrator.record.output import Record
from orchestrator.view import burden, losses, metrics, stats
from orchestrator.view.accuracy import Accuracy, Grading
from orchestrator.view.answerkey import key_of
from orchestrator.view.compare import Drift, Versus, drift_of, versus
from orchestrator.view.counters import together
from orchestrator.view.hardware import hardware
from orchestrator.view.host import host
from orchestrator.view.judged import Look, judged
from orchestrator.view.marks import marks, of_outputs
from orchestrator.view.measures import Measures, has_slo, of_warmup
from orchestrator.view.phrases import cause_text
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.samples import Samples, samples
from orchestrator.view.spool import Kept, Spool
from orchestrator.view.summary import Row, cut, labels, reference_of, settings_of, varying

#: The worst first: a row is as good as its worst repeat.
_WORST: tuple[PointState, ...] = ("failed", "incomplete", "partial", "unfinished", "ok", "skipped")


def rows(view: RunView) -> Sequence[Row]:
    """In the order of the sweep file, each read from a file when it is asked for. Reads every record once, by which it
    also finds out how the outputs agree. Raises JournalError if records are damaged."""
    table = _Table(view)
    view.agreements = judged(view, table.look, cell=table.cell, first=table.reference)
    return table.rows


class _Table:
    """What the rows need of each other and of the run. `usual`: the reference's row at the settings at hand."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.reference = reference_of(view.plan)
        self.names = varying(view.plan)
        self.marks = marks(view)
        self.losses = losses.Losses(view, self.cell)
        self.again = {(p.method, self.cell(p)): p for p in view.plan.points if p.role == "drift"}
        self.labels = labels(view.plan) if self.again else {}
        self.starts = {point.id: (n, start.key) for n, start in enumerate(view.plan.starts) for point in start.points}
        self.usual: tuple[bytes, Row, Grading | None] | None = None
        self.key = key_of(view)
        self._spool = Spool()
        self._made: dict[str, Kept[Row]] = {}

    def cell(self, point: SweepPoint) -> bytes:
        return msgspec.json.encode(settings_of(point, self.names))

    def look(self, row: Sequence[SweepPoint]) -> Look:
        return _Making(self, row)

    def keep(self, row: Row) -> None:
        self._made[row.points[0]] = self._spool.keep([row])

    @property
    def rows(self) -> Kept[Row]:
        ordered = (point.id for point in self.view.plan.listed if point.id in self._made)
        return Kept(self._spool, [place for point in ordered for place in self._made[point].places])


class _Making(Look):
    """One row, all its repeats together; and its cell measured once more for drift, if it was."""

    def __init__(self, table: _Table, group: Sequence[SweepPoint]) -> None:
        self.table, self.group = table, group
        self.drift = table.again.get((group[0].method, table.cell(group[0])))
        self.beside = [self.drift.id] if self.drift else []
        self.measures = {point: Measures() for point in (*(point.id for point in group), *self.beside)}
        self.measured: set[tuple[str, str, str]] = set()
        judged = group[0].config.task == "generate"
        self.grading = Grading(table.key) if table.key and judged else None

    def begin(self, part: Part) -> None:
        self.part = part
        # A retry runs what is left of a batch under the batch's own name, in another worker.
        for one in part.ranges:
            self.measures[one.commit.point].add_batch(one.commit, one.measured)
            if one.measured:
                self.measured.add((one.commit.point, one.commit.batch, one.commit.incarnation))

    def add(self, record: Record) -> None:
        key = (record.point, record.batch, record.incarnation)
        self.measures[record.point].add_record(record, key in self.measured, self.table.view.plan.measurement)
        if self.grading and record.point not in self.beside:
            self.grading.add(record)

    def end(self, agreement: Agreement) -> None:
        table, row = self.table, self._row()
        cell = table.cell(self.group[0])
        if row.method == table.reference:
            table.usual = cell, row, self.grading
        theirs, grading = table.usual[1:] if table.usual and table.usual[0] == cell else (None, None)
        why = [why for point in row.points for why in table.marks.get(point, ())]
        table.keep(
            replace(
                row,
                drift=self._drift(row),
                versus=_versus(table.reference, row, theirs),
                answers=self._answers(row, grading),
                marks=(
                    *cut(row),
                    *table.losses.marks(row.method, cell),
                    *dict.fromkeys((*of_outputs(agreement), *why)),
                ),
            )
        )

    def _answers(self, row: Row, theirs: Grading | None) -> tuple[Accuracy, ...]:
        """`theirs`: of the reference's row."""
        if self.grading is None:
            return ()
        return self.grading.result(row.confidence, len(row.points) - row.skipped, self.table.reference, theirs)

    def _drift(self, row: Row) -> Drift | None:
        if self.drift is None:
            return None
        again = metrics.speed({self.drift.repeat: self.measures[self.drift.id]}, row.scores, False)
        pending = self.table.view.state_of(self.drift.id) == "unfinished"
        return drift_of(self.table.labels[self.drift.id], row.speed, again, pending)

    def _row(self) -> Row:
        view, group = self.table.view, self.group
        ids = tuple(point.id for point in group)
        states = [view.state_of(point) for point in ids]
        worst = min(states, key=_WORST.index)
        causes = (view.cause_of(point) for point, state in zip(ids, states, strict=True) if state == worst)
        workers = list({w.launched.incarnation: w for point in ids for w in view.workers_of(point)}.values())
        warmups_s = [wall_s for point in ids for wall_s in view.warmups_s.get(point, ())]
        lost = [event for point in ids for event in view.lost.get(point, ())]
        ranges = [one for one in self.part.ranges if one.commit.point in ids]
        uses = {(one.incarnation, one.batch): one.devices for one in self.part.devices}
        return Row(
            config=group[0].config,
            settings=settings_of(group[0], self.table.names),
            points=ids,
            outcome=worst,
            worst_count=states.count(worst),
            skipped=states.count("skipped"),
            cause=next((cause_text(cause) for cause in causes if cause), ""),
            confidence=view.plan.measurement.confidence,
            load=burden.load(workers, warmups_s, sum(of_warmup(event.batch) for event in lost)),
            memory=burden.memory(workers, [self.measures[point].peak_bytes for point in ids]),
            returned=burden.returned(workers),
            hardware=hardware(uses, ranges),
            host=host(ranges),
            company=Counter(name for one in ranges if one.measured for name in set(one.commit.neighbours)),
            crowded=sum(one.measured and one.commit.crowded for one in ranges),
            warmed=view.plan.warmup > 0,
            batches_lost=len(lost),
            outputs_missing=sum(view.missing.get(point, 0) for point in ids),
            starts=self._starts(),
            samples=self._samples(),
            **self._figures(),
        )

    def _figures(self) -> dict[str, Any]:
        repeats = {point.repeat: self.measures[point.id] for point in self.group}
        scores = self.group[0].config.task == "score"
        speed = metrics.speed(repeats, scores, has_slo(self.table.view.plan.measurement))
        outliers, compared = metrics.outliers(repeats, scores)
        times = {
            name: metrics.spread({repeat: getattr(one, f"{name}_s") for repeat, one in repeats.items()}, speed.unit)
            for name in ("ttft", "itl", "tpot", "latency")
        }
        return {
            "speed": speed,
            **times,
            "counters": together(one.counters for one in repeats.values()),
            "outliers": outliers,
            "compared": compared,
            "sizes": sum((one.sizes for one in repeats.values()), Counter[int]()),
            "outputs_ok": sum(one.ok for one in repeats.values()),
            "outputs_failed": sum(one.failed for one in repeats.values()),
            "flags": sum((one.flags for one in repeats.values()), Counter[str]()),
        }

    def _starts(self) -> stats.Pairs:
        """Tokens and seconds by the start of a worker, those of the cell measured once more too."""
        scores = self.group[0].config.task == "score"
        places = self.table.starts
        found: stats.Pairs = {}
        for point in sorted(self.measures, key=lambda point: places[point][0]):
            pair = metrics.pair(self.measures[point], scores)
            if pair:
                before = found.get(places[point][1], (0.0, 0.0))
                found[places[point][1]] = before[0] + pair[0], before[1] + pair[1]
        return found

    def _samples(self) -> Samples:
        by_start: dict[str, list[Measures]] = {}
        for point, one in self.measures.items():
            by_start.setdefault(self.table.starts[point][1], []).append(one)
        workers = (worker for point in self.measures for worker in self.table.view.workers_of(point))
        return samples(by_start, workers)


def _versus(name: str, row: Row, theirs: Row | None) -> Versus:
    """`name`: of the reference."""
    split = row.split or (theirs is not None and theirs.split)
    lost = "" if theirs is None else losses.doubt(row, theirs)
    doubt = "one of the two ran in smaller batches than asked" if split else lost
    return versus(name, row.method, row.speed, None if theirs is None else theirs.speed, doubt)
