"""How long the rest of a run takes, from what its batches and worker starts took so far, and those of earlier runs.

Nothing is known before something was measured: then there is no forecast. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final, Literal, NamedTuple

from orchestrator import events as ev
from orchestrator.definition.durations import duration_text
from orchestrator.plan import Plan, WorkerStart
from orchestrator.run.paces import Batch, Cell, Inputs, Paces, Phase, Time, batch_time, load_time
from orchestrator.run.timing import Listener
from orchestrator.view.wording import counted, seconds_text

#: Half of all times are longer than their median.
MARGIN: Final = 1.2


@dataclass(frozen=True)
class Remaining:
    """What is left of one worker start.

    batches  how many of each
    lead     what runs until the first measured batch is done
    begun    its worker is loaded: it only has to work and to leave
    """

    cell: Cell
    batches: Mapping[Batch, int]
    lead: tuple[Batch, ...] = ()
    begun: bool = False


class Estimate(NamedTuple):
    """
    eta_s   until the last worker is gone
    work_s  what all workers take together
    sure    share of work_s that rests on what was measured of the same methods
    """

    eta_s: float
    work_s: float
    sure: float


# --- what is left -----------------------------------------------------------------


def cells_of(plan: Plan) -> dict[str, Cell]:
    """Of every point, by id."""
    inputs = Inputs(plan.model.digest, plan.prompts_digest, len(plan.prompt_ids))
    loads = ((start, start.load) for start in plan.starts)
    return {point.id: inputs.cell(point.config, load) for start, load in loads for point in start.points}


def remaining(
    start: WorkerStart,
    cells: Mapping[str, Cell],
    *,
    prompts: int,
    warmup: int,
    left: Mapping[str, int] | None = None,
    begun: bool = False,
) -> Remaining | None:
    """Of a start with so many prompts and warm-up batches for each point; None if nothing is left of it.
    `left`: how many prompts are to run of each point, 0 for those that have ended; None: all of all."""
    counts = {point.id: prompts if left is None else left.get(point.id, 0) for point in start.points}
    cells_left = [(cells[point], count) for point, count in counts.items() if count]
    if not cells_left:
        return None
    first, count = cells_left[0]
    warm_ups = 0 if begun and count < prompts else warmup
    phase: Phase = "warm" if begun else "first"
    warming = [Batch(first.kind, first.size, "warm" if n else phase) for n in range(warm_ups)]
    batches = Counter(warming)
    for (cell, many), times in Counter(cells_left).items():
        whole, rest = divmod(many, cell.size)
        batches[Batch(cell.kind, cell.size)] += whole * times
        batches[Batch(cell.kind, rest)] += times if rest else 0
        batches[Batch(cell.kind, cell.size, "warm")] += warmup * (times - ((cell, many) == (first, count)))
    lead = (*warming, Batch(first.kind, min(count, first.size)))
    return Remaining(first, +batches, lead[-1:] if begun else lead, begun)


# --- what is to be expected -----------------------------------------------------------


class Forecast:
    """`cells`: of the points of this run. What it measures itself counts before what earlier runs did."""

    def __init__(self, cells: Mapping[str, Cell]) -> None:
        self._own, self._before = Paces(), Paces()
        self._listener = Listener(cells, self._own)
        self._known: dict[Batch, Time | None] = {}  # until the next event: thousands of starts are much alike

    def heed(self, event: ev.Event) -> None:
        """What happens in this run, and in the order of the journal what happened in its earlier lives."""
        self._known.clear()
        self._listener.heed(event)

    def recall(self, cells: Mapping[str, Cell], events: Iterable[ev.Event]) -> None:
        """An earlier run's points and journal."""
        self._known.clear()
        listener = Listener(cells, self._before)
        for event in events:
            listener.heed(event)

    def eta_s(self, left: Sequence[Remaining], slots: int) -> Estimate | None:
        """Of all that is `left`, in this order, each on the slot that is free first; None where one of them is like
        nothing that was measured."""
        ends = [0.0] * max(1, slots)
        sure_s = 0.0
        for one in left:
            times = _all_known(self._times(one))
            if times is None:
                return None
            sure_s += sum(time.seconds for time in times if time.same_method)
            heapreplace(ends, ends[0] + sum(time.seconds for time in times))
        work_s = sum(ends)
        return Estimate(max(ends), work_s, min(1.0, sure_s / work_s) if work_s else 1.0)

    def would_fit(self, one: Remaining, left_s: float) -> bool | None:
        """Whether its first measured batch is likely to be done within `left_s`; None where nothing is known."""
        loading = [] if one.begun else [self._load("up", one.cell)]
        times = _all_known([*loading, *map(self._batch, one.lead)])
        return None if times is None else sum(time.seconds for time in times) * MARGIN <= left_s

    def _times(self, one: Remaining) -> Iterator[Time | None]:
        if not one.begun:
            yield self._load("up", one.cell)
        # Before any worker has left it is not known how long that takes, and it is the least of all.
        yield self._load("down", one.cell) or Time(0.0, True)
        for batch, count in one.batches.items():
            time = self._batch(batch)
            yield None if time is None else Time(time.seconds * count, time.same_method)

    def _batch(self, batch: Batch) -> Time | None:
        if batch not in self._known:
            self._known[batch] = batch_time((self._own, self._before), batch)
        return self._known[batch]

    def _load(self, what: Literal["up", "down"], cell: Cell) -> Time | None:
        return load_time((self._own, self._before), what, cell)


def _all_known(times: Iterable[Time | None]) -> list[Time] | None:
    found = list(times)
    known = [time for time in found if time is not None]
    return known if len(known) == len(found) else None


def stopped_text(stop_after_s: float, points_left: int, work_s: float | None, eta_s: float | None = None) -> str:
    """ "stop_after 8h: 12 points left, about 40 min of work"; without the last where it can't be told. `eta_s`: how
    long that takes where several slots share it."""
    about = "" if work_s is None else f", about {_roughly(work_s)} of work"
    about += "" if eta_s is None else f" in {_roughly(eta_s)}, on all slots at once"
    return f"stop_after {duration_text(stop_after_s)}: {counted(points_left, 'point')} left{about}"


def _roughly(value_s: float) -> str:
    """To the minute, where it is some minutes."""
    return seconds_text(value_s) if value_s < 120 else seconds_text(60 * round(value_s / 60)).removesuffix(" 00 s")
