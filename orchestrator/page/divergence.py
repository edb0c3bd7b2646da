"""Where outputs first part from the reference's, side by side with what stands around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.judge.agreement import Agreement
from orchestrator.judge.distance import Distance, common
from orchestrator.record.output import Record
from orchestrator.view.agreement import difference_text, label
from orchestrator.view.runview import RunView
from orchestrator.view.summary import varying
from orchestrator.view.wording import clean

#: Rows of which one is shown: what is worst first.
MOST: Final = 8
_BEFORE, _AFTER = 160, 240
_TOKENS = 6
#: Nothing stands side by side there.
_NO_TEXT: Final = ("scored", "other prompt")
_WORST: Final = ("garbage", "diverges", "unknown", "agrees within ties")


@dataclass(frozen=True)
class Side:
    """`before`: what both say; `after`: how it goes on. The same in token ids, `token` being the first that differs."""

    name: str
    before: str
    after: str
    ids_before: str
    token: str
    ids_after: str


@dataclass(frozen=True)
class Example:
    label: str
    verdict: str
    told: str
    reference: Side
    method: Side


def examples(view: RunView) -> Iterator[Example]:
    """Raises JournalError if records are damaged."""
    names = varying(view.plan)
    rows = [row for row in view.agreements.rows if row.base is not None and _first(row)]
    rows.sort(key=lambda row: _WORST.index(row.verdict) if row.verdict in _WORST else len(_WORST))
    for row in rows[:MOST]:
        one = _first(row)
        pair = one and _records(view, row, one)
        if one and pair:
            reference, method = pair
            at = one.at or 0
            base = f"{clean(reference.method)} (reference)"
            yield Example(
                label(view, row, names),
                row.verdict,
                difference_text(one),
                _side(base, reference, method, at),
                _side(clean(method.method), method, reference, at),
            )


def _first(row: Agreement) -> Distance | None:
    return next((one for one in row.differences if one.at is not None and one.kind not in _NO_TEXT), None)


def _records(view: RunView, row: Agreement, one: Distance) -> tuple[Record, Record] | None:
    """The reference's output and the one that parts from it there; of repeats the first that does."""
    assert row.base is not None
    reference = _of(view, row.base, one.prompt_id)
    for point in row.points:
        method = None if point == row.base else _of(view, point, one.prompt_id)
        if reference and method and common(reference.token_ids, method.token_ids) == one.at:
            return reference, method
    return None


def _of(view: RunView, point: str, prompt: str) -> Record | None:
    return next((one for one in view.records_of([point]) if one.prompt_id == prompt and one.error is None), None)


def _side(name: str, mine: Record, other: Record, at: int) -> Side:
    parting = common(mine.text, other.text)
    begin = max(0, parting - _BEFORE)
    ids = mine.token_ids
    return Side(
        name,
        ("…" if begin else "") + _shown(mine.text[begin:parting]),
        _shown(mine.text[parting : parting + _AFTER]) + ("…" if len(mine.text) > parting + _AFTER else ""),
        _ids(ids[max(0, at - _TOKENS) : at]),
        str(ids[at]) if at < len(ids) else "(end)",
        _ids(ids[at + 1 : at + 1 + _TOKENS]),
    )


def _shown(text: str) -> str:
    """With its lines, and nothing that turns the reading order."""
    return "\n".join(map(clean, text.split("\n")))


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
