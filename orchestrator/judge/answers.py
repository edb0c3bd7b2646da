"""Whether an output is the answer that its prompt expects: one small function for each way to judge. Pure.

judge_for(name, answers)(accepted)(output) → Verdict

Nothing that an engine writes makes a judge fail, or take longer than in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from orchestrator.definition.judging import Answers, JudgeName
from orchestrator.judge.answerchoices import chooser
from orchestrator.judge.answernumbers import near, number_of
from orchestrator.judge.answeroverlap import bleu, rouge_l, words
from orchestrator.judge.answertext import Normaliser, holds, normaliser

#: Named by a pattern.
_GROUP: Final = "answer"
#: What a pattern may take while it is matched: RE2 builds its automaton as it goes, and starts anew past that.
_PATTERN_BYTES: Final = 8 << 20


class Verdict(NamedTuple):
    """Of one output.

    score   1 right, 0 wrong; by rouge_l and bleu without a threshold anything between
    answer  what of the output was taken for its answer; None where there is none in it
    why     why there is none
    parts   of bleu, what adds up over outputs
    """

    score: float
    answer: str | None
    why: str = ""
    parts: tuple[int, ...] = ()


#: Of the outputs of one prompt.
Judge = Callable[[str], Verdict]
#: Of a prompt, by the texts that it accepts; None where they can't be judged by.
Prepare = Callable[[tuple[str, ...]], Judge | None]


def judge_for(name: JudgeName, answers: Answers) -> Prepare:
    """Raises ImportError where a package is missing that it needs, ValueError for a pattern that is none."""
    return _JUDGES[name](answers)


def _exact(answers: Answers) -> Prepare:
    plain = normaliser(answers.normalise)

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = _compared(plain, accepted)
        return (lambda output: Verdict(float(plain(output) in known), output)) if known else None

    return prepare


def _compared(plain: Normaliser, accepted: Iterable[str]) -> set[str]:
    """Without those of which nothing is left to be compared: "?" without punctuation would be right for "!" as well."""
    return {left for text in accepted if (left := plain(text)) or not text.strip()}


def _contains(answers: Answers) -> Prepare:
    plain = normaliser(answers.normalise)

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = [(text, holds(text)) for text in map(plain, accepted) if text]

        def judged(output: str) -> Verdict:
            held = plain(output)
            found = next((text for text, is_in in known if is_in(held)), None)
            return Verdict(1.0, found) if found is not None else Verdict(0.0, None, "nothing of it is in the output")

        return judged if known else None

    return prepare


def _numeric(answers: Answers) -> Prepare:
    tolerance = Decimal(repr(answers.tolerance))

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = [number.value for number in map(number_of, accepted) if number is not None]

        def judged(output: str) -> Verdict:
            found = number_of(output)
            if found is None:
                return Verdict(0.0, None, "there is no number in the output")
            return Verdict(float(any(near(found.value, one, tolerance) for one in known)), found.text)

        return judged if known else None

    return prepare


def _choice(answers: Answers) -> Prepare:
    chosen = chooser(answers.choices)

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = {labels[0] for labels in map(chosen, accepted) if len(labels) == 1}

        def judged(output: str) -> Verdict:
            labels = chosen(output)
            if len(labels) == 1:
                return Verdict(float(labels[0] in known), labels[0])
            return Verdict(
                0.0, None, f"the output names {', '.join(labels)}" if labels else "the output names no choice"
            )

        return judged if known else None

    return prepare


def _regex(answers: Answers) -> Prepare:
    plain, pattern = normaliser(answers.normalise), _compiled(answers.pattern or "")
    group: int | str = _GROUP if _GROUP in pattern.groupindex else min(1, pattern.groups)

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = _compared(plain, accepted)

        def judged(output: str) -> Verdict:
            match = pattern.search(_encodable(output))
            found = None if match is None else match.group(group)
            if found is None:
                return Verdict(0.0, None, "the pattern finds nothing in the output")
            return Verdict(float(plain(found) in known), found)

        return judged if known else None

    return prepare


@lru_cache
def _compiled(pattern: str) -> Any:
    """By RE2, which takes time in proportion to the text whatever the pattern; Python's own may take for ever."""
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors, options.max_mem = False, _PATTERN_BYTES
    try:
        return re2.compile(_encodable(pattern), options)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else "it can't be read"
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from exc


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ImportError(f"there is no {package}", name=package)


def _rouge_l(answers: Answers) -> Prepare:
    _need("rapidfuzz")

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = [found for found in map(words, accepted) if found]

        def judged(output: str) -> Verdict:
            said = words(output)
            return Verdict(_graded(max(rouge_l(said, one) for one in known), answers), output)

        return judged if known else None

    return prepare


def _bleu(answers: Answers) -> Prepare:
    _need("sacrebleu")  # not imported yet: it brings numpy, which has no business in a coordinator

    def prepare(accepted: tuple[str, ...]) -> Judge | None:
        known = [text for text in accepted if text.strip()]

        def judged(output: str) -> Verdict:
            score, parts = bleu(output, known)
            return Verdict(_graded(score, answers), output, parts=parts)

        return judged if known else None

    return prepare


def _graded(score: float, answers: Answers) -> float:
    return score if answers.threshold is None else float(score >= answers.threshold)


_JUDGES: Final[dict[JudgeName, Callable[[Answers], Prepare]]] = {
    "exact": _exact,
    "contains": _contains,
    "numeric": _numeric,
    "choice": _choice,
    "regex": _regex,
    "rouge_l": _rouge_l,
    "bleu": _bleu,
}
