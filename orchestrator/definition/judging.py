"""The section `answers:` of a sweep file: how outputs are judged by what their prompts have as `expected`.

    answers:
      judge: numeric                # or several, each a judgement of its own: [exact, contains]
      normalise: {punctuation: keep}

It decides nothing of what runs, only how outputs are read: no id of a point depends on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from msgspec import Meta, Struct

from orchestrator.definition.fields import missing, parts
from orchestrator.definition.sweepfile import Node, Problems

JudgeName = Literal["exact", "contains", "numeric", "choice", "regex", "rouge_l", "bleu"]
JUDGES: Final[tuple[str, ...]] = get_args(JudgeName)
#: Hyphens and dashes that stand for a minus, the plain one first.
MINUS: Final = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
#: For str.translate.
AS_MINUS: Final = dict.fromkeys(map(ord, MINUS), "-")
#: Score outputs between right and wrong.
GRADED: Final = ("rouge_l", "bleu")
#: Compare texts as `normalise` leaves them.
TEXTUAL: Final = ("exact", "contains", "regex")


class Normalise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a text is left out of comparison; on both sides alike."""

    case: Annotated[Literal["fold", "keep"], Meta(description="fold: upper and lower case are the same")] = "fold"
    spaces: Annotated[
        Literal["collapse", "keep"],
        Meta(description="collapse: runs of spaces and line ends are one space, and none at the ends"),
    ] = "collapse"
    punctuation: Annotated[
        Literal["drop", "keep"],
        Meta(description="drop: without punctuation, but for . , : / - + directly before a digit"),
    ] = "drop"


class Answers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`judge`: the first is the one that the results show."""

    judge: Annotated[
        tuple[JudgeName, ...],
        Meta(description="what an output must do to be right; of several each is told, and the first is the main one"),
    ]
    normalise: Annotated[Normalise, Meta(description="of exact, contains and regex")] = Normalise()
    pattern: Annotated[
        str | None,
        Meta(description="of regex, in RE2's syntax: the answer is the group `answer`, the first group or all of it"),
    ] = None
    choices: Annotated[tuple[str, ...], Meta(description="of choice: the labels to choose from")] = ("A", "B", "C", "D")
    tolerance: Annotated[
        float, Meta(ge=0, description="of numeric: by how much a number may differ from the one expected")
    ] = 0.0
    threshold: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="of rouge_l and bleu: from this score on, of at most 1, an output is right; null: the score"),
    ] = None


#: Option → the judges that heed it.
_HEEDED: Final = {
    "normalise": TEXTUAL,
    "pattern": ("regex",),
    "choices": ("choice",),
    "tolerance": ("numeric",),
    "threshold": GRADED,
}


def is_listed(steps: list[str]) -> bool:
    """Whether `--set` of this path gives a list, whose commas need no brackets."""
    return steps in (["answers", "judge"], ["answers", "choices"])


def read_answers(node: Node, problems: Problems) -> Answers | None:
    """None where something is wrong with it: nothing is judged by the rest."""
    before, types = problems.said, get_type_hints(Answers, include_extras=True)
    alone = _stands_alone(node)
    given = parts(node, "answers", types | ({"judge": JudgeName} if alone else {}), problems)
    if alone and "judge" in given:
        given["judge"] = (given["judge"],)
    if not isinstance(node.value, dict):
        return None
    if missing(node.value, ["judge"], Answers.__struct_fields__):
        problems.add(node.where, "answers", "lacks judge", f"for example judge: exact; valid: {', '.join(JUDGES)}")
    if "judge" not in given:
        return None
    found = Answers(**given)
    for name, message, hint in _faults(found, given):
        problems.add(node.value.get(name, node).where, f"answers.{name}", message, hint)
    return found if problems.said == before else None


def _stands_alone(node: Node) -> bool:
    """A judge that does is a list of one."""
    judge = node.value.get("judge") if isinstance(node.value, dict) else None
    return judge is not None and not isinstance(judge.value, list)


def _faults(found: Answers, given: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, message and suggestion of each."""
    if not found.judge:
        yield "judge", "is empty", f"valid: {', '.join(JUDGES)}"
    if twice := [name for name in dict.fromkeys(found.judge) if found.judge.count(name) > 1]:
        yield "judge", f"{', '.join(twice)} is given twice", ""
    for name, judges in _HEEDED.items():
        if name in given and not set(judges) & set(found.judge):
            yield name, f"means nothing to {', '.join(found.judge)}", f"it is for {', '.join(judges)}"
    if "regex" in found.judge and not found.pattern:
        yield "pattern", "regex needs one", "for example 'answer is (\\w+)'"
    labels = [told_apart(label) for label in found.choices]
    if len(labels) < 2 or "" in labels or len(set(labels)) < len(labels):
        yield "choices", "must be two labels or more, none of them empty or twice", "for example [A, B, C, D]"


def told_apart(label: str) -> str:
    """What of a label of `choice` tells it from others: neither its case nor which hyphen stands in it."""
    return label.translate(AS_MINUS).casefold().strip()


def schema(of_struct: dict[str, Any]) -> dict[str, Any]:
    """For editors, from the schema of `Answers`: a judge may stand alone."""
    judge = of_struct["properties"]["judge"]
    one = {"enum": list(JUDGES)}
    either = {"anyOf": [one, judge | {"minItems": 1, "uniqueItems": True}], "description": judge["description"]}
    return of_struct | {"properties": of_struct["properties"] | {"judge": either}}
