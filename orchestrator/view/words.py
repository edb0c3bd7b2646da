"""What a run came to, in words: a few sentences that claim no more than the intervals allow.

summary(view, rows)   for a report: MOST_SENTENCES at most, whatever the size of the run
brief(…)              four of them at most, for the end of a sweep

Plain text on one line each, `clean`ed; who puts it into Markdown or HTML escapes it. Rows that are marked win nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from orchestrator.view import leading, stats
from orchestrator.view.facts import Facts, gather
from orchestrator.view.leading import Lead
from orchestrator.view.pareto import Candidate, front
from orchestrator.view.runview import RunView
from orchestrator.view.stats import LEAST_UNITS
from orchestrator.view.summary import Row
from orchestrator.view.verdicts import accuracy, outputs
from orchestrator.view.wording import (
    clean,
    count_text,
    counted,
    first_line,
    joined,
    listed,
    percent_text,
    rate_text,
    seconds_text,
)

MOST_SENTENCES: Final = 12
#: Rows that are set against each other; a ratio's interval takes a good part of a millisecond.
MOST_ROWS: Final = 10_000
#: Of settings, methods, rows or reasons that are named one by one.
_NAMED: Final = 3
_FRONT: Final = 4
#: Behind the point of a ratio.
_MOST_DIGITS: Final = 7
#: Characters of a cause or a reason.
_CAUSE: Final = 120
#: Between parts of the CPU time that others used beside rows that are set against each other.
_UNLIKE: Final = 0.1


def summary(view: RunView, rows: Sequence[Row]) -> list[str]:
    """`rows`: all of the run, as `rows.rows(view)` gave them."""
    found = gather(rows)
    parts = (
        _gap(view),
        _fastest(found, rows),
        _front(found),
        outputs(view.agreements),
        accuracy(found.answers),
        _failed(found),
        _marked(found),
        _unlike(found),
        _unrest(found),
        _certainty(view, found),
        _missing(found),
    )
    return list(islice((clean(sentence) for part in parts for sentence in part), MOST_SENTENCES))


def brief(view: RunView, rows: Sequence[Row], shown: int) -> list[str]:
    """Who is the fastest, and what went wrong. `shown`: so many of the rows stand above, with the causes of those that
    failed."""
    found = gather(rows)
    told = frozenset(row.cause for row in rows[:shown] if row.cause)
    sentences = [*islice(_fastest(found, rows), 2), *islice(_wrong(view, found, told), 1), *_unlike(found)]
    return [clean(sentence) for sentence in sentences]


def _wrong(view: RunView, found: Facts, told: Collection[str]) -> Iterator[str]:
    yield from _failed(found, told)
    yield from _marked(found)
    yield from _gap(view)


def _gap(view: RunView) -> Iterator[str]:
    if not view.complete:
        count = f"{count_text(len(view.open))} of {counted(len(view.points), 'point')}"
        how = "has not ended or lacks records" if len(view.open) == 1 else "have not ended or lack records"
        yield f"The run is not complete: {count} {how}, and all that is said is of what is there."


# --- speed ---------------------------------------------------------------------------


def _fastest(found: Facts, rows: Sequence[Row]) -> Iterator[str]:
    if len(found.methods) == 1:
        yield from _only(found)
    elif not found.places:
        yield "No row has a speed that may be compared."
    elif len(found.rates) > MOST_ROWS:
        count = count_text(len(found.rates))
        yield f"{count} rows are too many to say in words who is the fastest where: `report --json` has all."
    else:
        yield from _led(found, list(leading.leads(rows, found.places.values())))


def _only(found: Facts) -> Iterator[str]:
    (method,) = found.methods
    if not found.rates:
        yield f"{method} is the only method, and has no speed that may be compared."
        return
    (low, least), (high, most) = min(found.rates), max(found.rates)
    reach = f"{rate_text(low)} {found.speed}"
    if len(found.works) > 1:
        reach = f"its work is of {len(found.works)} kinds, whose speeds are in the table"
    elif low != high:
        reach = f"from {rate_text(low)} {found.speed} ({least}) to {rate_text(high)} ({most})"
    yield f"{method} is the only method, so there is nothing to compare it with: {reach}."


def _led(found: Facts, every: Sequence[Lead]) -> Iterator[str]:
    """Winners first, those of most settings before the others."""
    alone = _grouped(((one.best,), one) for one in every if one.alone)
    for (method, *_), leads in islice(alone, _NAMED):
        yield _winner(found, method, leads)
    if rest := alone[_NAMED:]:
        are = "is" if len(rest) == 1 else "are"
        yield f"{counted(len(rest), 'more method')} {are} the fastest at other settings: the table has them."
    yield from _tied(found, [one for one in every if one.equal])
    untold = [one for one in every if one.untold and not one.equal]
    if untold:
        why = "there are too few repeats or batches for an interval"
        yield f"{_where(found, untold)} nothing tells which method is the fastest: {why}."
    if lone := [one for one in every if one.next is None]:
        methods, places = listed(list(dict.fromkeys(one.best for one in lone)), _NAMED), [one.place for one in lone]
        so_far = " so far" if found.pending(places) else ""
        yield f"{found.where(places)} only one method has a speed that may be compared{so_far}: {methods}."


def _winner(found: Facts, method: str, leads: Sequence[Lead]) -> str:
    level = percent_text(found.confidence)
    if len(leads) == 1:
        (one,) = leads
        interval = f" ({_span(one.interval)} at {level})" if one.interval else ""
        told = f"{rate_text(one.rate)} {found.speed}, {_times(one.ratio or 0)} times {one.next}, the next{interval}"
        return f"{_where(found, leads)} {method} is the fastest: {told}."
    ratios = [one.ratio for one in leads if one.ratio]
    reach = " to ".join(dict.fromkeys(map(_times, (min(ratios), max(ratios)))))
    return f"{_where(found, leads)} {method} is the fastest, by {reach} times the next, each told apart at {level}."


def _span(interval: stats.Interval) -> str:
    return f"{_times(interval.low)} to {_times(interval.high)}"


def _times(ratio: float) -> str:
    """2.0 → "2.00", 1.0004 → "1.0004": never one of what is not."""
    if round(ratio, 2) != 1:
        return rate_text(ratio)
    texts = (f"{ratio:.{digits}f}" for digits in range(3, _MOST_DIGITS))
    return next((one for one in texts if float(one) != 1), rate_text(ratio))


def _tied(found: Facts, ties: Sequence[Lead]) -> Iterator[str]:
    level = percent_text(found.confidence)
    groups = _grouped(((one.best, *sorted(one.equal)), one) for one in ties)
    if not groups:
        return
    (best, *equal), leads = groups[0]
    names = listed(equal, _NAMED)
    are = "is" if len(equal) == 1 else "are"
    yield (
        f"{_where(found, leads)} no method can be called the fastest: {names} {are} not distinguishable at {level} "
        f"from {best}, which has the highest estimate."
    )
    if rest := groups[1:]:
        lead = [
            f"{listed(names, _NAMED)} lead" + (f" {_where(found, more, begin=False)}" if len(rest) > 1 else "")
            for names, more in rest
        ]
        where = _where(found, [one for _, more in rest for one in more])
        told = listed(lead, _NAMED, "; ")
        yield f"{where} there is no single fastest either: {told}, not distinguishable at {level}."


_Methods = tuple[str, ...]


def _grouped(pairs: Iterable[tuple[_Methods, Lead]]) -> list[tuple[_Methods, list[Lead]]]:
    """The largest group first."""
    found: dict[_Methods, list[Lead]] = {}
    for key, lead in pairs:
        found.setdefault(key, []).append(lead)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _where(found: Facts, leads: Sequence[Lead], *, begin: bool = True) -> str:
    """And who is compared there, where that is not all of them yet."""
    places = [one.place for one in leads]
    if not begin or not found.pending(places):
        return found.where(places, begin=begin)
    counts = {found.settled[place] for place in places}
    who = "{} of {} methods".format(*counts.pop()) if len(counts) == 1 else "methods"
    return f"Of the {who} measured so far {found.where(places, begin=False)},"


def _front(found: Facts) -> Iterator[str]:
    """Speed against latency, where all rows do the same work."""
    if len(found.candidates) < 2 or len(found.works) > 1:
        return
    best = front(found.candidates)
    named = listed([_standing(one) for one in best], _FRONT)
    others = "; every other row that may be compared is beaten in one and not better in the other"
    beaten = others if len(best) < len(found.candidates) else ""
    untimed = f" ({counted(found.untimed, 'row')} without a TTFT left out)" if found.untimed else ""
    untimed += " so far" if found.pending(found.settled) else ""
    if len(best) == 1:
        yield f"By the estimates no row has more {found.speed} or a shorter TTFT than {named}{untimed}."
    else:
        yield f"Between {found.speed} and TTFT the choice is, by the estimates: {named}{beaten}{untimed}."


def _standing(one: Candidate) -> str:
    return f"{one.label} ({rate_text(one.rate)} tokens/s, {seconds_text(one.time_s)})"


# --- what went wrong, and what is not sure -------------------------------------------


def _failed(found: Facts, told: Collection[str] = ()) -> Iterator[str]:
    """`told`: causes that stand above."""
    groups = sorted(found.failed.items(), key=lambda item: -len(item[1]))
    for (method, outcome, cause), places in groups[:_NAMED]:
        why = f": {first_line(cause, _CAUSE)}" if cause else ""
        why = ", the cause stands above" if cause in told else why
        how = {"failed": "failed", "partial": "lost some prompts", "incomplete": "lacks records"}[outcome]
        yield f"{method} {how} {found.where(places, begin=False)}{why.rstrip('.…')}{'…' if why.endswith('…') else '.'}"
    if rest := groups[_NAMED:]:
        yield f"{counted(sum(len(places) for _, places in rest), 'more row')} did not end well."
    if found.skipped:
        yield f"Not measured, as less had run out of memory before: {counted(found.skipped, 'row')}."


def _marked(found: Facts) -> Iterator[str]:
    groups = sorted(found.marked.items(), key=lambda item: -len(item[1]))
    if groups:
        told = "; ".join(f"{listed(labels, _NAMED)}: {first_line(why, _CAUSE)}" for why, labels in groups[:2])
        more = f"; and {counted(len(groups) - 2, 'more reason')}" if len(groups) > 2 else ""
        count = sum(len(labels) for _, labels in groups)
        yield f"Not to be compared as {'it is' if count == 1 else 'they are'}: {counted(count, 'row')} ({told}{more})."


def _unlike(found: Facts) -> Iterator[str]:
    """Where others took more of the machine beside one row than beside another, which no interval holds."""
    uneven = {place: all_ for place, all_ in found.others.items() if round(max(all_) - min(all_), 9) >= _UNLIKE}
    if uneven:
        shares = [share for one in uneven.values() for share in one]
        span = f"{min(shares) * 100:.0f} to {max(shares) * 100:.0f} %"
        yield (
            f"{found.where(list(uneven))} others used {span} of the CPU time beside these rows, not alike: their "
            "ratios are of the machine too."
        )


def _unrest(found: Facts) -> Iterator[str]:
    if found.warned:
        label, why = found.warned[0]
        which = f"{count_text(len(found.warned))} of {counted(found.count, 'row')}"
        were = "was" if len(found.warned) == 1 else "were"
        yield f"{which} {were} disturbed while measured, for example {label}: {why}."


def _certainty(view: RunView, found: Facts) -> Iterator[str]:
    if not found.rates:
        return
    repeats, order = view.plan.repeats, view.plan.measurement.order
    if repeats == 1:
        yield "There is one repeat: intervals are over its batches, and say nothing of another run."
    elif order == "grouped" and len(view.plan.starts) == len(found.methods):
        yield (
            "All repeats of a method shared a worker, so that intervals hold nothing of what differs from one start to "
            "the next."
        )


def _missing(found: Facts) -> Iterator[str]:
    lacking = [
        f"{counted(found.speedless, 'row')} without a speed" if found.speedless else "",
        f"{counted(found.wide, 'row')} without an interval" if found.wide else "",
    ]
    told = [one for one in lacking if one]
    if told:
        yield f"Still missing: {joined(told)}{f'; {LEAST_UNITS} repeats or more give one' if found.wide else ''}."
