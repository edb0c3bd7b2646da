"""What a sweep's prompts expect, beside how it judges: what can't be judged, and what a plan says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from orchestrator.definition.inputs import Prompt
from orchestrator.definition.judging import TEXTUAL, Answers, JudgeName
from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from orchestrator.judge.answers import Prepare, judge_for
from orchestrator.judge.answertext import accepted
from orchestrator.view.wording import counted, listed

#: The field of a prompt.
EXPECTED: Final = "expected"
EXTRA: Final = "pip install 'engine-airlock[answers]'"
_SUGGESTED: Final = "add for example answers: {judge: exact}"
_LISTED: Final = 10
#: What each judge reads out of an expected answer.
_NEEDED: Final[Mapping[str, str]] = {
    "numeric": "a number",
    "choice": "just one of answers.choices",
    "rouge_l": "a word",
    "bleu": "a text",
    **dict.fromkeys(TEXTUAL, "a text with more in it than answers.normalise drops"),
}


def problems(
    answers: Answers | None,
    expecting: Iterable[tuple[str, str, Any]],
    cells: Sequence[Mapping[str, Any]],
    places: Places,
) -> list[Problem]:
    """Judges that lack a package, patterns that are none, nothing to judge; and prompts whose `expected` can't be
    judged by. `expecting`: place, id and `expected` of each prompt that has one."""
    if answers is None:
        return []
    given = list(expecting)
    found = [*unable(answers, places), *_nothing(len(given), cells, places)]
    return found or _of_prompts(given, {name: judge_for(name, answers) for name in answers.judge})


def unable(answers: Answers, places: Places) -> list[Problem]:
    """Judges that lack a package, and a pattern that is none."""
    found = []
    for name in answers.judge:
        try:
            judge_for(name, answers)
        except ImportError as exc:
            found.append(places.problem("answers.judge", f"{name} needs the package {exc.name}", EXTRA))
        except ValueError as exc:
            hint = "it is RE2's syntax: without look-around and back-references"
            found.append(places.problem("answers.pattern", f"is no pattern: {exc}", hint))
    return found


def _nothing(given: int, cells: Sequence[Mapping[str, Any]], places: Places) -> list[Problem]:
    found = []
    if not given:
        hint = 'for example {"prompt": "2 + 3 =", "expected": 5}'
        found.append(places.problem("answers", f"no prompt has the field `{EXPECTED}` to be judged by", hint))
    if cells and all(cell.get("task") == "score" for cell in cells):
        found.append(places.problem("answers", "there is nothing to judge: with task: score nothing is generated"))
    return found


def _of_prompts(given: Iterable[tuple[str, str, Any]], judges: Mapping[JudgeName, Prepare]) -> list[Problem]:
    told = ((where, f"prompt {name}", _fault(expected, judges)) for where, name, expected in given)
    found = [Problem(where, key, message) for where, key, message in told if message]
    if more := found[_LISTED:]:
        count = f"and {counted(len(more), 'more prompt')} can't be judged either, the last of them {more[-1].key}"
        return [*found[:_LISTED], Problem(more[-1].where, "", count)]
    return found


def _fault(expected: Any, judges: Mapping[JudgeName, Prepare]) -> str:
    texts = accepted(expected)
    if not texts:
        return f"its `{EXPECTED}` is no text, number, true or false, or list of them"
    lacking = [name for name, prepare in judges.items() if any(prepare((text,)) is None for text in texts)]
    return "; ".join(f"{name} needs {_NEEDED[name]} as its `{EXPECTED}`" for name in lacking)


def notes(answers: Answers | None, prompts: Sequence[Prompt], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """For the plan."""
    without = [prompt.id for prompt in prompts if prompt.source.get(EXPECTED) is None]
    having = len(prompts) - len(without)
    if answers is None:
        told = f"{counted(having, 'prompt')} of {len(prompts)} {'has' if having == 1 else 'have'} `{EXPECTED}`"
        return [f"{told}, and nothing judges the outputs by it: {_SUGGESTED}"] if having else []
    found = [f"answers are judged by {', '.join(answers.judge)}: {having} of {counted(len(prompts), 'prompt')}"]
    if without:
        found.append(f"without `{EXPECTED}`, and so not judged: {listed(without, _LISTED)}")
    if any(cell.get("ignore_eos") for cell in cells):
        found.append("with ignore_eos outputs go on behind their answers: by exact hardly any is right")
    return found
