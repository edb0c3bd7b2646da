"""What failed in a run, point by point: causes, batches that gave nothing, prompts with an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec import to_builtins

from orchestrator.outcomes import Cause
from orchestrator.plan import SweepPoint
from orchestrator.view.markup import cell, fenced
from orchestrator.view.phrases import cause_text
from orchestrator.view.runview import PointState, RunView
from orchestrator.view.summary import labels, settings_of, varying
from orchestrator.view.wording import count_text, counted

#: Of the different ways in which a point's batches were lost; `report --json` has all.
LISTED_CAUSES = 5
#: Points in the Markdown; `report --json` has all.
LISTED_POINTS = 200
BAD: tuple[PointState, ...] = ("failed", "partial", "incomplete")


@dataclass(frozen=True)
class Failure:
    """A point that did not end well, or that lost something on its way.

    lost      how batches of it that gave nothing were lost, with the policy applied → how many
    errors    prompts that have an error record, the first of them; `more` are not listed
    logs      of the workers that it ran in
    """

    point: SweepPoint
    label: str
    settings: dict[str, Any]
    state: PointState
    missing: int
    cause: Cause | None
    lost: Counter[str]
    errors: tuple[tuple[str, Cause], ...]
    more: int
    logs: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """It ended, and not well."""
        return self.state in BAD


def failures(view: RunView) -> Iterator[Failure]:
    """In the order in which points run; each is read when its turn comes. Raises JournalError on damage."""
    points = suspects(view)
    names, named = (varying(view.plan), labels(view.plan)) if points else ([], {})
    found = (_failure(view, point, named[point.id], names) for point in points)
    return (one for one in found if one.bad or one.errors or one.lost)


def suspects(view: RunView) -> list[SweepPoint]:
    """Without reading what their error records say."""
    return [
        point
        for point in view.plan.points
        if view.state_of(point.id) in BAD or point.id in view.lost or view.may_have_errors(point.id)
    ]


def _failure(view: RunView, point: SweepPoint, label: str, names: Iterable[str]) -> Failure:
    cause, (errors, failed) = view.cause_of(point.id), view.errors_of(point.id)
    lost = view.lost.get(point.id, [])
    blamed = {cause.incarnation if cause else "", *(event.incarnation for event in lost)}
    blamed |= {worker.launched.incarnation for worker in view.workers_of(point.id)}
    return Failure(
        point=point,
        label=label,
        settings=settings_of(point, names),
        state=view.state_of(point.id),
        missing=view.missing.get(point.id, 0),
        cause=cause,
        lost=Counter(f"{cause_text(event.cause)}; {event.cause.policy}" for event in lost),
        errors=tuple(errors),
        more=failed - len(errors),
        logs=tuple(
            view.workers[name].launched.log for name in sorted(blamed & view.places.keys(), key=view.places.__getitem__)
        ),
    )


def values(found: Iterable[Failure]) -> Iterator[dict[str, Any]]:
    """Plain JSON values."""
    for one in found:
        yield {
            "point": one.point.id,
            "label": one.label,
            "method": one.point.method,
            "settings": to_builtins(one.settings),
            "repeat": one.point.repeat,
            "outcome": one.state,
            "missing": one.missing,
            "cause": None if one.cause is None else to_builtins(one.cause),
            "summary": "" if one.cause is None else cause_text(one.cause),
            "batches_lost": [{"cause": text, "count": count} for text, count in one.lost.most_common()],
            "prompts": [{"prompt": prompt, "cause": to_builtins(error)} for prompt, error in one.errors],
            "prompts_not_listed": one.more,
            "logs": list(one.logs),
        }


def markdown(view: RunView) -> Iterator[str]:
    for one in islice(failures(view), LISTED_POINTS):
        yield f"### {cell(f'{one.label}, {one.point.id}')}: {one.state}"
        for lines in _paragraphs(one):
            yield ""
            yield from lines
        yield ""
    if (more := len(suspects(view)) - LISTED_POINTS) > 0:
        yield f"And {counted(more, 'more point')} that failed or lost something: `report --json` has all."


def _paragraphs(one: Failure) -> Iterator[Iterable[str]]:
    if one.cause is not None:
        yield [cell(cause_text(one.cause))]
    if one.logs:
        yield [f"Logs: {', '.join(map(cell, one.logs))}"]
    if one.cause is not None:
        yield from _evidence(one.cause)
    if one.lost or one.errors:
        yield [*_lost(one.lost), *_errors(one)]


def _evidence(cause: Cause) -> Iterator[Iterable[str]]:
    if cause.policy:
        yield [f"Policy: {cell(cause.policy)}"]
    parts = {
        "Traceback": cause.error.traceback if cause.error else "",
        "What it was doing": cause.stacks,
        "First traceback of the log": cause.first_traceback,
        "End of the log": cause.log_tail,
    }
    for what, text in parts.items():
        if text.strip():
            yield [f"{what}:"]
            yield fenced(text)


def _lost(lost: Counter[str]) -> Iterator[str]:
    if lost:
        yield f"- {counted(lost.total(), 'batch', 'batches')} gave nothing at first:"
    yield from (f"  - {count_text(count)} × {cell(text)}" for text, count in lost.most_common(LISTED_CAUSES))
    if rest := lost.most_common()[LISTED_CAUSES:]:
        yield f"  - {count_text(sum(count for _, count in rest))} × in {counted(len(rest), 'other way')}"


def _errors(one: Failure) -> Iterator[str]:
    for prompt, error in one.errors:
        yield f"- prompt {cell(prompt)}: {cell(cause_text(error))}"
    if one.more:
        yield f"- and {counted(one.more, 'more prompt')}"
