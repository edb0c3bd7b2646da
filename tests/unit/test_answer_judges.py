"""Outputs as models write them, and what each judge makes of them."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.definition.judging import JUDGES, Answers, Normalise
from orchestrator.judge.answerchoices import chooser
from orchestrator.judge.answernumbers import number_of
from orchestrator.judge.answeroverlap import bleu, bleu_of, rouge_l, words
from orchestrator.judge.answers import Judge, Verdict, judge_for
from orchestrator.judge.answertext import accepted, normaliser

GSM8K = "Each bag has 6 apples.\n12 bags have 12 * 6 = <<12*6=72>>72 apples.\n#### 72"
PATTERN = r"(?i)answer is (\w+)"


def answers(name: str, **rest: Any) -> Answers:
    given = {"judge": (name,), **({"pattern": PATTERN} if name == "regex" else {}), **rest}
    return Answers(**given)


def judge(name: str, expected: Any, **rest: Any) -> Judge:
    if name == "regex":
        pytest.importorskip("re2", reason="the extra `answers` is not installed")
    found = judge_for(name, answers(name, **rest))(accepted(expected))  # type: ignore[arg-type]
    assert found is not None
    return found


# --- numeric -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "number"),
    [
        ("The total is 1,234.50 dollars.", "1,234.50"),
        ("So she pays $72", "$72"),
        ("so she pays $72.", "$72"),
        ("It fell by -3", "-3"),
        ("It fell by −3 degrees", "−3"),
        ("-$3.50", "-$3.50"),
        ("one half, 1/2.", "1/2"),
        ("12 * 6 = 72", "72"),
        ("pages 10-20", "20"),
        ("from 3 to 5, then (-7)", "-7"),
        ("1e-3", "1e-3"),
        (".5", ".5"),
        ("72km in 2h", "2"),
        ("72%", "72"),
        ("CO2 and H2O in A100", None),
        ("5 molecules of H2O", "5"),
        ("\\boxed{72}", "72"),
        ("1, 2, 3", "3"),
        ("1,234,56", "56"),
        (r"\boxed{$9{,}500}", "$9{,}500"),
        (r"The answer is \$9{,}500.", "$9{,}500"),
        (r"\(10\,000\)", r"10\,000"),
        (r"1,\!234,\!567 of them", r"1,\!234,\!567"),
        ("1\u202f234\u202f567,5", "5"),
        ("1\u00a0234", "1\u00a0234"),
        (r"\boxed{-\dfrac{3}{4}}", r"-\dfrac{3}{4}"),
        (r"$\frac12$", r"$\frac12"),
        (r"1\frac{1}{2} cups", r"1\frac{1}{2}"),
        (r"\boxed{\displaystyle\frac{3}{4}}", r"\frac{3}{4}"),
        (r"\displaystyle-\frac{3}{4}", r"-\frac{3}{4}"),
        (r"\displaystyle 3", "3"),
        (r"\frac{1}{0}", None),
        (r"\frac{x}{2}", "2"),
        ("", None),
        ("none", None),
        ("1/0", None),
        ("9" * 5000, None),
        (GSM8K, "72"),
        ("#### 72\n\nQ: Tom has 5 apples.", "72"),
        ("#### 1. Add\n7 and 8 are 15", "15"),
        ("#### -1,000.", "-1,000"),
    ],
)
def test_the_number_that_an_output_comes_to(output: str, number: str | None) -> None:
    found = number_of(output)
    assert (None if found is None else found.text) == number


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        (72, GSM8K, True),
        ("#### 72", "It is 72.0", True),
        (GSM8K, "72", True),
        ("1,234.50", "1234.5", True),
        (0.5, "1/2", True),
        (9500, r"\boxed{$9{,}500}", True),
        (500, r"\boxed{$9{,}500}", False),
        (1234567, "1\u202f234\u202f567", True),
        (-0.75, r"\boxed{-\dfrac{3}{4}}", True),
        (0.75, r"$\displaystyle\frac34$", True),
        (0.75, r"\tfrac{-3}{-4}", False),
        (-0.75, r"\frac{-3}{4}", True),
        (0.75, r"-\frac{-3}{4}", True),
        (1.5, r"$1\frac{1}{2}$", True),
        (-1.5, r"-1\frac12", True),
        (r"\frac{1}{2}", r"\frac{3}{2}", False),
        (r"\frac{1}{2}", "0.5", True),
        (r"1\frac{1}{3}", "4/3", True),
        (r"$\frac{1}{3}$", "#### 1/3", True),
        (["7", 8], "8", True),
        (72, "72 apples, and 3 pears", False),
        (-3, "3", False),
        (0.1, "0.10000000000000001", False),
        (1e300, "1e300", True),
        (2**70, str(2**70), True),
    ],
)
def test_numeric_compares_numbers_not_texts(expected: Any, output: str, right: bool) -> None:
    assert judge("numeric", expected)(output).score == right


@pytest.mark.parametrize(("output", "right"), [("3.14", True), ("3.15", True), ("3.13", True), ("3.1501", False)])
def test_numeric_with_a_tolerance(output: str, right: bool) -> None:
    assert judge("numeric", 3.14, tolerance=0.01)(output).score == right


def test_numeric_says_why_there_is_no_answer() -> None:
    assert judge("numeric", 1)("none") == Verdict(0.0, None, "there is no number in the output")


# --- choice --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "label"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("B\n\nQuestion: which …\nAnswer: D", "B"),
        ("B) Paris", "B"),
        ("B: Paris", "B"),
        ("(b) Paris", "B"),
        ("Answer: B", "B"),
        ("The answer is (B).", "B"),
        ("the correct answer is b.", "B"),
        ("the answer is option B, because A is too small", "B"),
        ("The final answer is: $\\boxed{B}$", "B"),
        ("A. London\nB. Paris\nThe answer is B", "B"),
        ("I would choose B", "B"),
        ("A dog would choose B", "B"),
        ("A is correct", "A"),
        ("I think it is (c)", "C"),
        ("B, because A is too small", "B"),
        ("Answer: B. A and C are too small", "B"),
        ("Answer: B, not A", "B"),
        ("A or B", None),
        ("A, B", None),
        ("B/C", None),
        ("(B) and (C)", None),
        ("Answer: B or C", None),
        ("Answer: B, C", None),
        ("The answer is **B** and **D**.", None),
        ("Answer: (B), or (C)", None),
        ("Answer: A\nAnswer: B", None),
        ("A) is wrong; the answer is B", None),
        ("the answer is a bit unclear", None),
        ("ABBA", None),
        ("E", None),
        ("It is not B.", None),
        ("The answer is not (B)", None),
        ("It isn't option B", None),
        ("The answer is not A, it is B.", "B"),
        ("Neither A nor C; B.", "B"),
        ("It is not A or B.", None),
        ("It isn't (A), (C) or (D)", None),
        ("These aren't A and B", None),
        ("It's not A or B, it's C", "C"),
        ("Not A, B, or C. D", "D"),
        ("The answer is not A/C/D: B", "B"),
        ("Not A or C, and B is right", "B"),
        ("Not A. B or C", None),
        ("not only A but B", None),
        ("Why not? B", "B"),
        ("答案是B", "B"),
        ("正确答案是B。", "B"),
        ("正确的是B选项", "B"),
        ("정답은 B입니다", "B"),
        ("正解はBです", "B"),
        ("选A或B", None),
        ("答案：B。因为A选项错误，C也不对", "B"),
        ("答案是B，A选项错误", "B"),
        ("A选项错误，故选B", "B"),
        ("我选择 B，因为A选项错误", "B"),
        ("选项A不对，不选 C，选：B", "B"),
        ("选项A", "A"),
        ("维生素C不对，所以答案应该是（B）", "B"),
        ("정답은 B입니다. A는 아닙니다", "B"),
        ("正解はBです。Aではありません", "B"),
        ("정답은 A가 아니라 B입니다", "B"),
        ("정답은 (A)가 아닙니다", None),
        ("정답은 A이고 B는 아니다", "A"),
        ("正解はAではなくBです", "B"),
        ("Aではなく、Bです", "B"),
        ("答えは「A」ではありません", None),
        ("答案是A或B", None),
        ("答案：A、B选项", None),
        ("答案是A。答案是B", None),
        ("答案不是B", None),
        ("不是A，是B", "B"),
        ("是不是？B", "B"),
        ("不选A和B", None),
        ("DéB", None),
        ("", None),
    ],
)
def test_the_label_that_an_output_chooses(output: str, label: str | None) -> None:
    found = judge("choice", "B")(output)
    assert (found.answer, found.score) == (label, float(label == "B"))
    assert bool(found.why) == (label is None)


def test_two_labels_are_no_choice_and_both_are_named() -> None:
    assert judge("choice", "A")("A or B").why == "the output names A, B"


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("Yes, it does.", True),
        ("The answer is yes", True),
        ("Yes, no doubt.", True),
        ("No.", False),
        ("yes and no", False),
        ("Answer: yes or no", False),
        ("yes/no", False),
        ("It is not yes", False),
        ("It is not a yes", False),
        ("It isn't a maybe; yes", True),
        ("Not that I know, but yes", True),
    ],
)
def test_labels_may_be_words(output: str, right: bool) -> None:
    assert judge("choice", "yes", choices=("yes", "no", "maybe"))(output).score == right


def test_an_expected_label_may_be_written_as_outputs_write_it() -> None:
    assert judge("choice", ["(B)", "c"])("C").score == 1


# --- exact, contains, regex -------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        ("Paris", " paris.\n", True),
        ("Paris", "“Paris”", True),
        ("Paris", "Paris, France", False),
        ("New  York", "new york", True),
        ("well-known", "wellknown", True),
        ("-3", "3", False),
        ("1.5", "15", False),
        ("3/4", "34", False),
        ("caf\u00e9", "cafe\u0301", True),
        ("STRASSE", "Straße", True),
        (["Paris", "Lutetia"], "lutetia", True),
        (True, "True", True),
        (72.0, "72", True),
        ("", ".", True),
        ("दिल्ली", "दिल्ली।", True),
    ],
)
def test_exact_as_texts_are_compared_by_default(expected: Any, output: str, right: bool) -> None:
    assert judge("exact", expected)(output).score == right


@pytest.mark.parametrize(
    ("rules", "output", "right"),
    [
        ({"case": "keep"}, "paris", False),
        ({"case": "keep"}, "Paris!", True),
        ({"punctuation": "keep"}, "Paris!", False),
        ({"punctuation": "keep"}, " PARIS", True),
        ({"spaces": "keep"}, "Paris ", False),
        ({"spaces": "keep"}, "PARIS.", True),
    ],
)
def test_each_rule_can_be_switched_off(rules: dict[str, Any], output: str, right: bool) -> None:
    assert judge("exact", "Paris", normalise=Normalise(**rules))(output).score == right


@pytest.mark.parametrize(("output", "right"), [("It is PARIS.", True), ("Parisians", True), ("London", False)])
def test_contains(output: str, right: bool) -> None:
    assert judge("contains", ["Lutetia", "Paris"])(output).score == right


@pytest.mark.parametrize(
    ("pattern", "output", "answer"),
    [
        (PATTERN, "The answer is Paris, not London; the answer is London", "Paris"),
        (r"(?:=|is) (?P<unit>[$]?)(?P<answer>\w+)", "it is $Paris", "Paris"),
        (r"Paris|London", "London, Paris", "London"),
        (r"(Paris)|x", "x", None),
        (PATTERN, "none", None),
        (r"(?s).*is (\w+)", "is London\nis Paris", "Paris"),
    ],
)
def test_regex_takes_the_named_group_or_the_first_or_all(pattern: str, output: str, answer: str | None) -> None:
    found = judge("regex", "paris", pattern=pattern)(output)
    assert (found.answer, found.score) == (answer, float(answer == "Paris"))


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*)*b", r"a?" * 30 + "a" * 30])
def test_no_pattern_is_slow_on_any_output(pattern: str) -> None:
    """Python's own would still be at it when the tests are long over."""
    assert judge("regex", "b", pattern=pattern)("a" * 20_000 + "!").score == 0


@pytest.mark.parametrize("pattern", ["(", r"(?<=a)b", r"(a)\1", "\ud800("])
def test_what_is_no_pattern_of_re2_is_refused(pattern: str) -> None:
    pytest.importorskip("re2", reason="the extra `answers` is not installed")
    with pytest.raises(ValueError, match=r"\w"):
        judge_for("regex", answers("regex", pattern=pattern))


# --- overlap ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "score"),
    [("the cat sat", 1.0), ("The CAT, sat.", 1.0), ("cat the sat", 2 / 3), ("the cat", 0.8), ("dog", 0.0), ("", 0.0)],
)
def test_rouge_l_of_words(output: str, score: float) -> None:
    assert judge("rouge_l", "the cat sat")(output).score == pytest.approx(score)


ASCII = st.text(string.printable, max_size=80)


@given(ASCII, ASCII)
def test_rouge_l_is_that_of_rouge_score(output: str, expected: str) -> None:
    scorer = rouge_scorer()
    assert rouge_l(words(output), words(expected)) == pytest.approx(scorer(expected, output))


@cache
def rouge_scorer() -> Callable[[str, str], float]:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    return lambda expected, output: float(scorer.score(expected, output)["rougeL"].fmeasure)


def test_words_of_any_alphabet_count() -> None:
    assert judge("rouge_l", "Überraschung für Ærlig")("überraschung FÜR ærlig").score == 1


def test_bleu_of_many_outputs_is_sacrebleus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    outputs = ["the cat sat on the mat", "a dog barks", ""]
    expected = [["the cat sat on a mat", "a cat sat on the mat"], ["the dog barks loudly"], ["nothing at all"]]
    summed = [
        sum(column) for column in zip(*(bleu(o, e)[1] for o, e in zip(outputs, expected, strict=True)), strict=True)
    ]
    padded = [[one[min(n, len(one) - 1)] for one in expected] for n in range(2)]
    assert bleu_of(summed) == pytest.approx(sacrebleu.corpus_bleu(outputs, padded).score / 100)


def test_a_threshold_makes_scores_right_or_wrong() -> None:
    graded = judge("rouge_l", "the cat sat", threshold=0.8)
    assert [graded(output).score for output in ("the cat", "the", "the cat sat")] == [1, 0, 1]


# --- expected --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        ("a", ("a",)),
        (72, ("72",)),
        (72.0, ("72",)),
        (0.1, ("0.1",)),
        (False, ("false",)),
        (["a", 1], ("a", "1")),
        ([], ()),
        ([None], ()),
        ({"a": 1}, ()),
        ([["a"]], ()),
        (None, ()),
        pytest.param(10**5000, (), id="more digits than Python writes"),
    ],
)
def test_expected_as_texts(expected: Any, texts: tuple[str, ...]) -> None:
    assert accepted(expected) == texts


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numeric", "Paris"),
        ("choice", "E"),
        ("choice", "A or B"),
        ("rouge_l", "…"),
        ("bleu", " "),
        ("contains", "!"),
        ("exact", "…"),
        ("regex", "?"),
    ],
)
def test_what_a_judge_can_not_judge_by(name: str, expected: str) -> None:
    assert judge_for(name, answers(name))((expected,)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["exact", "regex"])
def test_an_output_of_nothing_but_punctuation_is_right_only_where_nothing_is_expected(name: str) -> None:
    assert judge(name, ["", "?"], pattern=".*")("").score == 1
    assert judge(name, ["?", "x"], pattern=".*")("!").score == 0
    assert judge(name, "?", pattern=".*", normalise=Normalise(punctuation="keep"))("?").score == 1


# --- whatever an engine writes ------------------------------------------------------

ANY = st.text(max_size=60) | st.text("0123456789.,-−+/$eE# \n(){}*:ABCDabis'answer\\!\u00a0\ud800\0", max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("name", JUDGES)
@settings(max_examples=80)
@given(expected=JSON, output=ANY, tolerance=st.floats(0, 1e300))
def test_no_output_and_nothing_expected_makes_a_judge_fail(
    name: str, expected: Any, output: str, tolerance: float
) -> None:
    if name == "regex":
        pytest.importorskip("re2", reason="the extra `answers` is not installed")
    texts = accepted(json.loads(json.dumps(expected)))
    prepared = judge_for(name, answers(name, tolerance=tolerance))(texts) if texts else None  # type: ignore[arg-type]
    if prepared is not None:
        found = prepared(output)
        assert 0 <= found.score <= 1
        assert prepared(output) == found


LABELS = st.lists(st.text(min_size=1, max_size=4) | st.sampled_from(["I", "(A)", "yes", "+"]), min_size=2, max_size=4)


@given(LABELS, st.lists(st.text(max_size=4) | st.sampled_from(["answer is ", "(İ)", "ı", "\n", " A", ")"]), max_size=6))
def test_no_label_is_too_odd_to_be_looked_for(labels: list[str], parts: list[str]) -> None:
    for output in ("".join(parts), *labels, f"answer: {labels[0]}"):
        assert set(chooser(tuple(labels))(output)) <= set(labels)


@pytest.mark.parametrize("written", ["(B)", "B", "B.", "the answer is (B)", "so it is (B)"])
def test_labels_may_be_given_with_their_brackets(written: str) -> None:
    assert judge("choice", "(B)", choices=("(A)", "(B)"))(written).score == 1


@pytest.mark.parametrize("name", ["exact", "contains"])
@given(expected=st.text(min_size=1, max_size=40))
def test_an_output_that_is_the_expected_text_is_right(name: str, expected: str) -> None:
    prepared = judge_for(name, answers(name))((expected,))  # type: ignore[arg-type]
    assert prepared is None or prepared(f" {expected}\n").score == 1


@given(st.integers(-(10**12), 10**12), st.integers(0, 4))
def test_a_number_is_found_however_it_is_written(number: int, zeros: int) -> None:
    right = judge("numeric", number)
    for written in (f"{number:,}", f"It is {number}.{'0' * (zeros + 1)}!", f"#### {number}", f"=${number}"):
        assert right(written).score == 1, written


@given(st.text(max_size=60))
def test_normalising_twice_changes_nothing(text: str) -> None:
    plain = normaliser(Normalise())
    assert plain(plain(text)) == plain(text)


UNITS = (
    "",
    "a",
    " ",
    "A ",
    "(",
    "1",
    "1,",
    "-",
    ".",
    "####",
    "#### 1 ",
    "answer ",
    "answer is ",
    "not A ",
    "not A, ",
    "A or ",
    "不是A、",
    "答案",
    "\n",
    "\n \n",
    "\\boxed{",
    "1\\frac",
    "\\displaystyle",
    "\\frac{1}{2",
    "123{,}",
    "123,\\!",
    "é",
)


@pytest.mark.parametrize("name", [name for name in JUDGES if name not in ("regex", "bleu")])
@pytest.mark.parametrize("unit", [one for one in UNITS if one])
def test_work_grows_as_the_output_does(name: str, unit: str) -> None:
    """In CPU time, so generously that only work which grows with the square is found out: that takes many seconds."""
    prepared = judge(name, "A" if name == "choice" else ["1", "A"])
    short, long = (spent_s(prepared, unit * count + "!") for count in (10_000, 40_000))
    assert long < 10 * short + 0.5


def spent_s(prepared: Judge, output: str) -> float:
    before = time.thread_time()
    prepared(output)
    return time.thread_time() - before
