"""What the outputs of a run are worth, in a sentence or two: by how they agree, and by how many answers are right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from orchestrator.judge.agreement import Agreement, Agreements
from orchestrator.judge.verdict import BAD, Verdict
from orchestrator.view.facts import Right
from orchestrator.view.scores import MEASURES, number_text, value_text
from orchestrator.view.wording import counted, listed, percent_text

_NAMED: Final = 4
#: The worst first.
_VERDICTS: Final[tuple[Verdict, ...]] = (
    *BAD,
    "unknown",
    "agrees within ties",
    "agrees",
)


def outputs(found: Agreements) -> Iterator[str]:
    """Of the methods beside the reference's."""
    others = [row for row in found.rows if row.method != found.reference or row.bad]
    parts = [text for verdict in _VERDICTS if (text := _told(others, verdict))]
    if parts:
        yield f"Outputs beside those of {found.reference}: {'; '.join(parts)}."


def _told(rows: Iterable[Agreement], verdict: Verdict) -> str:
    """ "diverges: vllm_eager (1 of 2 settings)", "unknown: hf_eager; ask for logprobs" """
    of_method: dict[str, list[Agreement]] = {}
    for row in rows:
        of_method.setdefault(row.method, []).append(row)
    hits = {name: [one for one in own if one.verdict == verdict] for name, own in of_method.items()}
    names = [_at(name, len(hit), len(of_method[name])) for name, hit in hits.items() if hit]
    why = next((one.why for hit in hits.values() for one in hit if verdict == "unknown"), "")
    return f"{verdict}: {listed(names, _NAMED)}{f' [{why}]' if why else ''}" if names else ""


def _at(name: str, hit: int, total: int) -> str:
    return name if hit == total else f"{name} ({hit} of {counted(total, 'setting')})"


def accuracy(found: Sequence[Right]) -> Iterator[str]:
    """Nothing where no answers are judged."""
    if not found:
        return
    worst, best = (pick(found, key=lambda one: one.value) for pick in (min, max))
    reach = _value(worst)
    if worst.value != best.value:
        reach = f"from {_value(worst)} ({worst.label}) to {_value(best)} ({best.label})"
    count = counted(max(one.prompts for one in found), "prompt")
    yield f"{MEASURES[best.kind].capitalize()} by {best.judge}, of {count}: {reach}; {_told_apart(found)}."


def _value(one: Right) -> str:
    """Never "100 %" or "0 %" of what is not quite that."""
    return percent_text(one.value) if one.kind == "share" else value_text(one.kind, one.value)


def _gap(one: Right) -> str:
    """ "-30.0 points", of scores "+0.120" """
    return number_text(one.kind, one.gap or 0.0, "+") + ("" if one.kind == "mean" else " points")


def _told_apart(found: Sequence[Right]) -> str:
    reference = next((one.reference for one in found if one.reference), "")
    if not reference:
        return "there is no other method to compare with"
    apart = sorted((one for one in found if one.gap), key=lambda one: -abs(one.gap or 0))
    if not apart:
        return f"by that no row can be told apart from {reference}"
    named = listed([f"{one.label} ({_gap(one)})" for one in apart], _NAMED)
    return f"told apart from {reference}: {named}"
