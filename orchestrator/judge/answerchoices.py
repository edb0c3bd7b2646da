"""Which of several labels an output chooses. Pure.

The first line is the label and no more: "B", "**(b)**". Else what it says is its answer, "answer is B", "Answer: (B)",
and the label that a line begins with, "B) Paris", unless lines begin with several, as where the options are told again:
all must be the same label. Else one label stands in it as a word of its own, and no other one. Two are no choice, and
neither is one that another one follows: "Answer: A or B". What is "not B" is no B.

Signs round a label are decoration, but for those that tell labels apart, as -1 from 1 and C# from C, and those that
make another number of one: neither -1 nor 1.5 is 1.
"""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from orchestrator.definition.judging import AS_MINUS

_AROUND: Final = string.punctuation + string.whitespace
#: At a label's ends no part of it, where no other label is the same without.
_QUOTING: Final = "()[]{}<>\"'`*_.,:;!?" + string.whitespace
_WORDS: Final = ("A", "I")
_ENDS: Final = ("", ".", "!", "?", ":", "\n")
_NEAR: Final = 10
_denied: Final = re.compile(
    r"(?:(?i:(?:\bnot|n['’]t|\bneither|\bnor)\s{1,3}(?:(?:the|(?-i:an?)|option|choice|answer)\s{1,3}){0,2})"
    r"|[不非][是为為选選]?(?:选项|選項)?\s?)[^\w\s.,:;?!。，、：；？！]{0,3}\Z"
).search
_FAR: Final = 40
#: Scripts that set no space between a word and a label: 答案是B, 정답은 B입니다.
_UNSPACED: Final = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_AND: Final = "或和与與及跟、"
#: "is not", which stands behind the label in Japanese and Korean.
_DENYING: Final = r"(?![^\w\s]{0,3}\s?(?:(?:では|でも|じゃ)(?:な|あり)|[가이은는도]?\s?아[니닌닐닙]))"
#: What "answer is" is there.
_ANSWER: Final = (
    r"|(?:答案|正答|正解|答え|정답|(?<![不非])[选選][择擇]?(?![项項]))"
    r"(?:应该|應該|应|應)?[是为為选選は은는]?[\s:：]{0,3}(?:选项|選項)?\s{0,3}"
)


class _Signs:
    """Those that are no decoration `before` a label, and `behind` one."""

    def __init__(self, labels: Sequence[str]) -> None:
        alike = defaultdict(list)
        for label in labels:
            alike[label.strip(_AROUND).casefold()].append(label)
        apart = {label for bare, those in alike.items() if len(those) > 1 or not bare for label in those}
        ends = [(_ends(label), label in apart) for label in labels]
        self._before = _marking((before, whole) for (before, _), whole in ends)
        self.behind = _marking((behind, whole) for (_, behind), whole in ends)
        self.before = self._before | (set("-.") if any(bare[:1].isdecimal() for bare in alike) else set())

    def bare(self, text: str) -> str:
        return text.lstrip(_without(self.before)).rstrip(_without(self.behind))

    def pattern(self, label: str) -> str:
        """A word may be written in any case, a letter only as it is."""
        own = re.escape(label) if len(label) == 1 else f"(?i:{re.escape(label)})"
        signs, behind = _class(self._before), _class(self.behind)
        guards = [f"(?<!{signs})(?<!{signs}[ ])"] if signs else []
        guards += [r"(?<![-.])(?<![0-9][,/:])"] if label[0].isdecimal() else []
        after = [f"(?!{behind})"] if behind else []
        after += [r"(?![-.,:/][0-9])"] if label[-1].isdecimal() else []
        after += ["(?![ ]%)"] if "%" in self.behind else []
        if len(label) > 1 and label.isalpha():  # non-toxic, no-one
            guards, after = [*guards, r"(?<!\w-)"], [*after, r"(?!-\w)"]
        return "".join((*guards, own, *after))


def _ends(label: str) -> tuple[str, str]:
    """The signs that it begins with, and those that it ends with."""
    return label[: len(label) - len(label.lstrip(_AROUND))], label[len(label.rstrip(_AROUND)) :]


def _marking(ends: Iterable[tuple[str, bool]]) -> set[str]:
    """Those that mean something there; with `whole` all of them."""
    every = chain.from_iterable(signs if whole else signs.strip(_QUOTING) for signs, whole in ends)
    return set(every) - set(string.whitespace)


def _without(signs: set[str]) -> str:
    return "".join(sign for sign in _AROUND if sign not in signs)


def _class(signs: set[str]) -> str:
    return f"[{_escaped(signs)}]" if signs else ""


def _escaped(signs: set[str]) -> str:
    return re.escape("".join(sorted(signs)))


@lru_cache
def chooser(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Gives those that an output names, each once: exactly one is a choice."""
    labels = {label.translate(AS_MINUS).strip() or label: label for label in choices}
    signs = _Signs(list(labels))
    known = {form.casefold(): label for written, label in labels.items() for form in (signs.bare(written), written)}
    exact = _alternatives(labels, signs)
    any_case = f"(?i:{exact})"
    # Decoration, of one sign.
    before, behind = (rf"[^\w\s{_escaped(those)}]" for those in (signs.before, signs.behind))
    heads = re.compile(
        rf"^\s{{0,9}}{before}{{0,3}}({any_case})(?:{behind}|[ \t]{{0,9}}(?:\n|\Z)|[ \t]{{1,9}}-)", re.MULTILINE
    )
    plain = all(map(str.isascii, labels))
    letter = rf"[^\W{_UNSPACED}]" if plain else r"\w"
    says = re.compile(
        r"(?:(?i:answer(?:\s{1,3}(?:is|should\sbe|would\sbe))?\s{0,3}[:=]?\s{0,3}(?:(?:option|choice)\s{1,3})?)"
        rf"{_ANSWER if plain else ''}){before}{{0,5}}(?:boxed{{|text{{)?{before}{{0,3}}"
        rf"({exact}(?!{letter}){_DENYING}|{any_case}(?=\s{{0,3}}(?:\Z|\n|[^\w\s])){_DENYING})"
    )
    # After a comma a word may begin what goes on, as in "yes, no doubt".
    along = re.compile(
        rf"{behind}{{0,3}}\s{{0,3}}(?:(?:[/&+{_AND}]|(?:and|or)\b)\s{{0,3}}"
        rf"{before}{{0,3}}({exact})(?!{letter}|['’]|\s{{1,3}}(?:is|was|are)\b)"
        rf"|[,;]\s{{0,3}}(?:(?:and|or)\s{{1,3}})?{before}{{0,3}}({exact})(?=\s{{0,3}}(?:\Z|[^\w\s'’]|\n|(?:and|or)\b)))"
    )
    alone = re.compile(rf"(?:(?<!{letter})(?<!['’])({exact})(?!{letter}|['’])|\(({any_case})\)){_DENYING}")
    one = rf"(?:\({any_case}\)|{before}{{0,3}}{exact}(?!{letter}|['’]))"
    # "not A, B or C" denies three, and "not A, B" one.
    also = re.compile(
        rf"(?:(?:{behind}{{0,3}}\s{{0,3}},\s{{0,3}}{one}){{0,9}}{behind}{{0,3}}\s{{0,3}}"
        rf"(?:[/&+{_AND}]|(?:and|n?or)\b)\s{{0,3}}{one}(?!\s{{1,3}}(?:is|was|are)\b))+"
    )

    def named(match: re.Match[str]) -> list[str]:
        other = along.match(match.string, match.end(1))
        return [match[1], *([other[1] or other[2]] if other else [])]

    def standing(output: str) -> Iterator[str]:
        end = 0
        for match in alone.finditer(output):
            if match.start() >= end and _is_denied(match):
                more = also.match(output, match.end())
                end = more.end() if more else match.end()
            elif match.start() >= end and not _is_word(match):
                yield match[1] or match[2]

    def chosen(output: str) -> list[str]:
        output = output.translate(AS_MINUS)
        first = signs.bare(output.lstrip().partition("\n")[0])
        if first and (whole := known.get(first.casefold())):
            return [whole]
        begun = [named(match) for match in heads.finditer(output)]
        lone = begun if len({first for first, *_ in begun}) == 1 else []
        told = [label for labels in (*lone, *map(named, says.finditer(output))) for label in labels]
        told = told or list(standing(output))
        # A pattern that ignores case takes for an i what is none when it is folded.
        return list(dict.fromkeys(label for one in told if (label := known.get(one.casefold()))))

    return chosen


def _is_denied(match: re.Match[str]) -> bool:
    return bool(_denied(match.string[max(0, match.start() - _FAR) : match.start()]))


def _is_word(match: re.Match[str]) -> bool:
    """An article at the beginning of a sentence, or somebody who speaks of himself there."""
    if match[0] not in _WORDS:
        return False
    before, after = match.string[max(0, match.start() - _NEAR) : match.start()], match.string[match.end() :][:_NEAR]
    return before.rstrip()[-1:] in _ENDS and bool(re.match(r"\s(?!(?:is|because|or|and)\b)[a-z]", after))


def _alternatives(labels: Iterable[str], signs: _Signs) -> str:
    """The longest first."""
    return f"(?:{'|'.join(map(signs.pattern, sorted(labels, key=len, reverse=True)))})"
