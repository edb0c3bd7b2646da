"""The section `answers:` of a sweep file, and what a plan says of answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator import config
from orchestrator.config import parse
from orchestrator.definition.inputs import Prompt
from orchestrator.definition.judging import JUDGES, Answers, Normalise
from orchestrator.definition.places import Places
from orchestrator.errors import InputError
from orchestrator.judge import answerkeys
from orchestrator.judge.answerkeys import notes, problems
from orchestrator.plan import build, changes, unheeded
from tests.unit.plans import MODEL
from tests.unit.test_plan import prompt_set
from tests.unit.test_schema import fits_schema

BASE = "name: a\nmodel: demo\nprompts: p.jsonl\nmethods: [hf_sdpa]\n"
PLACES = Places("s.yaml")


def section(text: str, *overrides: str) -> Answers | None:
    return parse(f"{BASE}answers: {text}\n", "s.yaml", overrides).answers


def told(text: str) -> list[str]:
    """What is wrong, each with its key."""
    with pytest.raises(InputError) as caught:
        section(text)
    return [f"{one.key}: {one.message}; {one.suggestion}" for one in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{judge: exact}", Answers(judge=("exact",))),
        ("{judge: [numeric, contains]}", Answers(judge=("numeric", "contains"))),
        ("{judge: numeric, tolerance: 0.5}", Answers(judge=("numeric",), tolerance=0.5)),
        ("{judge: choice, choices: ['yes', 'no']}", Answers(judge=("choice",), choices=("yes", "no"))),
        ("{judge: regex, pattern: 'is (.*)'}", Answers(judge=("regex",), pattern="is (.*)")),
        ("{judge: bleu, threshold: 0.5}", Answers(judge=("bleu",), threshold=0.5)),
        (
            "{judge: exact, normalise: {punctuation: keep}}",
            Answers(judge=("exact",), normalise=Normalise(punctuation="keep")),
        ),
        ("null", None),
    ],
)
def test_sections_that_can_be_read(text: str, found: Answers | None) -> None:
    assert section(text) == found
    assert found is None or fits_schema(f"{BASE}answers: {text}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exact", "answers: must be a mapping"),
        ("{}", "answers: lacks judge; for example judge: exact"),
        ("{judge: []}", "answers.judge: is empty"),
        ("{judge: exakt}", "answers.judge: must be one of"),
        ("{judge: [exact, exact]}", "answers.judge: exact is given twice"),
        ("{judge: exact, judges: exact}", "answers.judges: answers has no such key; did you mean judge?"),
        ("{judge: exact, tolerance: 1}", "answers.tolerance: means nothing to exact; it is for numeric"),
        ("{judge: numeric, tolerance: -1}", "answers.tolerance: must be a number, 0 or more"),
        ("{judge: numeric, normalise: {case: keep}}", "answers.normalise: means nothing to numeric"),
        ("{judge: exact, normalise: {case: lower}}", "answers.normalise.case: must be one of fold, keep"),
        ("{judge: regex}", "answers.pattern: regex needs one"),
        ("{judge: choice, choices: [A]}", "answers.choices: must be two labels or more"),
        ("{judge: choice, choices: [A, a]}", "answers.choices: must be two labels or more"),
        ('{judge: choice, choices: ["-1", "\u22121"]}', "answers.choices: must be two labels or more"),
        ("{judge: rouge_l, threshold: 2}", "answers.threshold: must be a number, more than 0 and at most 1"),
    ],
)
def test_sections_that_can_not(text: str, message: str) -> None:
    assert any(one.startswith(message) for one in told(text)), told(text)


def test_all_that_is_wrong_is_told_at_once_with_its_line() -> None:
    text = f"{BASE}answers:\n  judge: exact\n  pattern: x\n  threshold: 0.5\n"
    with pytest.raises(InputError) as caught:
        parse(text, "s.yaml")
    assert [(one.where, one.key) for one in caught.value.problems] == [
        ("s.yaml:7", "answers.pattern"),
        ("s.yaml:8", "answers.threshold"),
    ]


@pytest.mark.parametrize(
    ("expression", "judges"),
    [("answers.judge=numeric", ("numeric",)), ("answers.judge=exact,contains", ("exact", "contains"))],
)
def test_judges_from_the_command_line(expression: str, judges: Sequence[str]) -> None:
    found = section("{judge: exact}", expression)
    assert found is not None
    assert found.judge == judges


def test_every_judge_and_option_is_in_the_schema_and_the_guide() -> None:
    schema = config.json_schema()["$defs"]["Answers"]
    assert set(schema["properties"]) == set(Answers.__struct_fields__)
    assert schema["properties"]["judge"]["anyOf"][0]["enum"] == list(JUDGES)
    assert all("description" in part for part in schema["properties"].values())


# --- with the prompts -----------------------------------------------------------------


def judged(answers: Answers | None, *expected: Any, cells: Sequence[dict[str, Any]] = ()) -> list[str]:
    expecting = [(f"p.jsonl:{n}", f"p{n}", one) for n, one in enumerate(expected)]
    return [f"{one.where} {one.key}: {one.message}" for one in problems(answers, expecting, cells, PLACES)]


def test_what_is_expected_of_a_prompt_must_be_of_the_judges_kind() -> None:
    assert judged(Answers(judge=("numeric",)), 1, "seven", ["8", "nine"], "#### 9") == [
        "p.jsonl:1 prompt p1: numeric needs a number as its `expected`",
        "p.jsonl:2 prompt p2: numeric needs a number as its `expected`",
    ]
    assert judged(Answers(judge=("choice",)), "B", "(c)", "E", "A or B") == [
        "p.jsonl:2 prompt p2: choice needs just one of answers.choices as its `expected`",
        "p.jsonl:3 prompt p3: choice needs just one of answers.choices as its `expected`",
    ]
    assert judged(Answers(judge=("exact",)), {"a": 1}, [], "x") == [
        "p.jsonl:0 prompt p0: its `expected` is no text, number, true or false, or list of them",
        "p.jsonl:1 prompt p1: its `expected` is no text, number, true or false, or list of them",
    ]


def test_what_nothing_judges_may_be_anything() -> None:
    assert judged(None, {"a": 1}, "x") == []


def test_of_many_mistakes_some_are_told() -> None:
    found = judged(Answers(judge=("numeric",)), *["x"] * 100)
    assert len(found) == 11
    assert found[-1] == "p.jsonl:99 : and 90 more prompts can't be judged either, the last of them prompt p99"


def test_nothing_to_judge_by_and_nothing_to_judge() -> None:
    assert "no prompt has the field `expected`" in judged(Answers(judge=("exact",)))[0]
    scored = judged(Answers(judge=("exact",)), 1, cells=[{"task": "score"}])
    assert scored == ["s.yaml answers: there is nothing to judge: with task: score nothing is generated"]


@pytest.mark.parametrize(("judge", "package"), [("bleu", "sacrebleu"), ("regex", "re2"), ("rouge_l", "rapidfuzz")])
def test_a_missing_package_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, judge: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answers = Answers(judge=(judge,), pattern="(" if judge == "regex" else None)
    (found,) = problems(answers, [("p:1", "p1", "x")], [], PLACES)
    assert found.message == f"{judge} needs the package {package}"
    assert found.suggestion == answerkeys.EXTRA


def test_a_pattern_that_is_none_is_told_before_anything_starts() -> None:
    pytest.importorskip("re2", reason="the extra `answers` is not installed")
    (found,) = judged(Answers(judge=("regex",), pattern=r"(?<=a)b"), "b")
    assert found.startswith("s.yaml answers.pattern: is no pattern: invalid perl operator")


# --- in the plan -------------------------------------------------------------------------


def prompts(*expected: Any) -> list[Prompt]:
    return [Prompt(f"p{n}", b"", "", {} if one is None else {"expected": one}) for n, one in enumerate(expected)]


def test_the_plan_says_what_is_judged_and_what_is_not() -> None:
    assert notes(None, prompts(None), []) == []
    assert notes(None, prompts(1, None), []) == [
        "1 prompt of 2 has `expected`, and nothing judges the outputs by it: add for example answers: {judge: exact}"
    ]
    assert notes(Answers(judge=("exact",)), prompts(1, None, 2), []) == [
        "answers are judged by exact: 2 of 3 prompts",
        "without `expected`, and so not judged: p1",
    ]
    assert notes(Answers(judge=("exact",)), prompts(1), [{"ignore_eos": True}])[1].startswith("with ignore_eos")


def test_answers_are_in_the_plan_and_in_no_id() -> None:
    plain = build(parse(BASE, "s.yaml"), MODEL, prompt_set(10, 20), "cpu")
    given = build(parse(f"{BASE}answers: {{judge: numeric}}\n", "s.yaml"), MODEL, prompt_set(10, 20), "cpu")
    assert given.answers == Answers(judge=("numeric",))
    assert (given.digest, [one.id for one in given.points]) == (plain.digest, [one.id for one in plain.points])
    assert changes(plain, given) == []


def test_a_run_that_goes_on_says_that_it_keeps_its_rules() -> None:
    plain = build(parse(BASE, "s.yaml"), MODEL, prompt_set(10), "cpu")
    given = replace(plain, answers=Answers(judge=("numeric",)))
    (line,) = unheeded(plain, given)
    assert line.startswith('answers is {"judge": ["numeric"]')
    assert line.endswith("but this run began with null, and its results are read with that")
    assert unheeded(given, given) == []
