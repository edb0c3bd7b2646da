"""Which of several labels an output chooses. Pure.

The first line is the label and no more: "B", "**(b)**". Else what it says is its answer, "answer is B", "Answer: (B)",
and the label that a line begins with, "B) Paris", unless lines begin with several, as where the options are told again:
all must be the same label. Else one label stands in it as a word of its own, and no other one. Two are no choice, and
neither is one that another one follows: "Answer: A or B".
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

_AROUND: Final = string.punctuation + string.whitespace
_WORDS: Final = ("A", "I")
_ENDS: Final = ("", ".", "!", "?", ":", "\n")
_NEAR: Final = 10


@lru_cache
def chooser(labels: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Gives those that an output names, each once: exactly one is a choice."""
    known = {form.casefold(): label for label in labels for form in (label.strip(_AROUND), label) if form}
    exact, any_case = _alternatives(labels), f"(?i:{_alternatives(labels)})"
    heads = re.compile(rf"^\s{{0,9}}[^\w\s]{{0,3}}({any_case})(?:[^\w\s]|[ \t]{{0,9}}(?:\n|\Z|-))", re.MULTILINE)
    says = re.compile(
        r"(?i:answer(?:\s{1,3}(?:is|should\sbe|would\sbe))?\s{0,3}[:=]?\s{0,3}(?:(?:option|choice)\s{1,3})?)"
        rf"[^\w\s]{{0,5}}(?:boxed{{|text{{)?[^\w\s]{{0,3}}"
        rf"({exact}(?!\w)|{any_case}(?=\s{{0,3}}(?:\Z|\n|[^\w\s])))"
    )
    # After a comma a word may begin what goes on, as in "yes, no doubt".
    along = re.compile(
        rf"[^\w\s]{{0,3}}\s{{0,3}}(?:(?:[/&+]|(?:and|or)\b)\s{{0,3}}[^\w\s]{{0,3}}({exact})(?!\w|['’]|\s{{1,3}}(?:is|was|are)\b)"
        rf"|[,;]\s{{0,3}}(?:(?:and|or)\s{{1,3}})?[^\w\s]{{0,3}}({exact})(?=\s{{0,3}}(?:\Z|[^\w\s'’]|\n|(?:and|or)\b)))"
    )
    alone = re.compile(rf"(?<![\w'’])({exact})(?![\w'’])|\(({any_case})\)")

    def named(match: re.Match[str]) -> list[str]:
        other = along.match(match.string, match.end(1))
        return [match[1], *([other[1] or other[2]] if other else [])]

    def chosen(output: str) -> list[str]:
        first = output.lstrip().partition("\n")[0].strip(_AROUND)
        if whole := known.get(first.casefold()):
            return [whole]
        begun = [named(match) for match in heads.finditer(output)]
        lone = begun if len({first for first, *_ in begun}) == 1 else []
        told = [label for labels in (*lone, *map(named, says.finditer(output))) for label in labels]
        told = told or [match[1] or match[2] for match in alone.finditer(output) if not _is_word(match)]
        # A pattern that ignores case takes for an i what is none when it is folded.
        return list(dict.fromkeys(label for one in told if (label := known.get(one.casefold()))))

    return chosen


def _is_word(match: re.Match[str]) -> bool:
    """An article at the beginning of a sentence, or somebody who speaks of himself there."""
    if match[0] not in _WORDS:
        return False
    before, after = match.string[max(0, match.start() - _NEAR) : match.start()], match.string[match.end() :][:_NEAR]
    return before.rstrip()[-1:] in _ENDS and bool(re.match(r"\s(?!(?:is|because|or|and)\b)[a-z]", after))


def _alternatives(labels: Sequence[str]) -> str:
    """The longest first. A word may be written in any case, a letter only as it is."""
    ordered = sorted(labels, key=len, reverse=True)
    return "(?:" + "|".join(re.escape(one) if len(one) == 1 else f"(?i:{re.escape(one)})" for one in ordered) + ")"
