"""Answers that differ in a sign alone: what differs in meaning is never taken for the same."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.judging import MINUS, Normalise
from orchestrator.judge.answernumbers import CURRENCY, number_of
from orchestrator.judge.answertext import normaliser
from tests.unit.test_answer_judges import judge

#: Labels of which no two mean the same.
SETS = [
    ("-1", "0", "1"),
    ("-1", "+1"),
    ("C", "C++", "C#"),
    ("A", "A-", "A+", "B"),
    ("+", "-"),
    ("<1", "1", ">1"),
    ("5", "5%", "50"),
    ("$5", "5"),
    ("1", "1.5", "15"),
    ("!a", "a"),
    ("x^2", "x2"),
    ("toxic", "non-toxic"),
    ("(A)", "A"),
    ("not", "not."),
]
WRITTEN = ["{}", "{}\n", "{}\nNext: {other}", "Answer: {}", "The answer is {}", "I choose {} here", "\u201c{}\u201d"]


@pytest.mark.parametrize("labels", SETS)
@pytest.mark.parametrize("written", WRITTEN)
def test_labels_that_differ_in_a_sign_are_told_apart(labels: tuple[str, ...], written: str) -> None:
    for said, other in permutations(labels, 2):
        output = written.format(said, other=other)
        assert judge("choice", other, choices=labels)(output).score == 0, output
        if "{other}" not in written:
            assert judge("choice", said, choices=labels)(output).score == 1, output


@pytest.mark.parametrize(
    ("labels", "output", "label"),
    [
        (("-1", "0", "1"), "**-1**", "-1"),
        (("-1", "0", "1"), "(-1)", "-1"),
        (("-1", "0", "1"), "$\\boxed{-1}$", "-1"),
        (("-1", "0", "1"), "-1) it is bad", "-1"),
        (("-1", "0", "1"), "1) it is good", "1"),
        (("-1", "0", "1"), "- 1", None),
        (("-1", "0", "1"), "-1 or 1", None),
        (("-1", "-2"), "1", None),
        (("0", "1"), "-1", None),
        (("0", "1"), "0.5", None),
        (("0", "1"), "Answer: -1", None),
        (("0", "1"), "it is 1.5", None),
        (("0", "1"), "0-1", None),
        (("0", "1"), "- 1", "1"),
        (("0", "1"), "1.", "1"),
        (("C#", "F#"), "C", None),
        (("C", "C#"), "# C", "C"),
        (("A", "A-"), "A - good", "A"),
        (("5", "5%"), "5 %", None),
        (("toxic", "safe"), "It is non-toxic.", None),
        (("yes", "no"), "no-one", None),
        (("U.S.", "UK"), "U.S", "U.S."),
        (("(A)", "(B)"), "b", "(B)"),
    ],
)
def test_a_sign_is_decoration_only_where_it_means_nothing(
    labels: tuple[str, ...], output: str, label: str | None
) -> None:
    assert judge("choice", labels[0], choices=labels)(output).answer == label


@pytest.mark.parametrize("minus", MINUS)
def test_whatever_stands_for_a_minus_is_one(minus: str) -> None:
    assert judge("choice", "-1", choices=("-1", "1"))(f"{minus}1").score == 1
    assert judge("choice", f"{minus}1", choices=("-1", "1"))("1").score == 0
    for name in ("exact", "numeric", "contains"):
        assert judge(name, -3)(f"{minus}3").score == 1, name
    for name in ("exact", "numeric"):
        assert judge(name, 3)(f"{minus}3").score == 0, name
        assert judge(name, "3")(f"{minus}$3").score == 0, name
    assert judge("numeric", 20)(f"10{minus}20").score == 1
    assert judge("numeric", 0.001)(f"1e{minus}3").score == 1


@pytest.mark.parametrize("sign", CURRENCY)
def test_a_minus_before_any_currency_counts(sign: str) -> None:
    assert [number_of(text).value for text in (f"-{sign}3", f"{sign}-3", f"{sign}3")] == [-3, -3, 3]  # type: ignore[union-attr]
    assert judge("exact", f"{sign}3")(f"-{sign}3").score == 0


#: Texts of each row differ in meaning, all of them.
APART = [
    ("3", "-3", "-$3", "$3", "\u20ac3", "\u00a33", "3%", "3\u2030", ".3", "-.3", "3^2", "<3", ">3", "\u22653"),
    ("1.5", "15", "1,5", "1:5", "1/5", "-1.5", "1 5", "1-5", "1+5", "1*5", "1^5", "1=5"),
    ("3 - 4", "3 + 4", "3 * 4", "3 / 4", "3 4", "34"),
    ("x", "-x", "x^2", "x2", "x*2", "2x", "1/x", "x/2", "x-2", "x+2"),
    ("x = 5", "x != 5", "x < 5", "x > 5", "x \u2260 5"),
    ("C", "C++", "C#", "C-"),
    ("A", "A+", "A-"),
    ("O+", "O-", "O"),
    ("5", "5 %", "5/0"),
    ("1000", "1.000", "-1,000", "1,000.5"),
]


@pytest.mark.parametrize("texts", APART)
@pytest.mark.parametrize("written", ["{}", "**{}**", "\u201c{}.\u201d", " {}\n"])
@pytest.mark.parametrize("name", ["exact", "regex"])
def test_texts_that_differ_in_meaning_are_not_the_same(name: str, written: str, texts: tuple[str, ...]) -> None:
    for expected, said in permutations(texts, 2):
        assert judge(name, expected, pattern="(?s).*")(written.format(said)).score == 0, (expected, said)
    for expected in texts:
        assert judge(name, expected, pattern="(?s).*")(written.format(expected)).score == 1, expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Paris", "- Paris"),
        ("Paris", "* **Paris**!"),
        ("Paris", "# Paris"),
        ("72", "#### 72"),
        ("well-known", "wellknown"),
        ("yes", "yes -"),
        ("answer 3", "**Answer:** 3"),
        ("72 apples", "72 *apples*"),
        ("12 * 6", "12 * 6."),
    ],
)
def test_what_only_decorates_is_left_out(one: str, other: str) -> None:
    assert judge("exact", one)(other).score == 1


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        (5, "it is 5.", True),
        (5, "5", True),
        (5, "5 apples, 3 pears", True),
        (5, "x=5, y=6", True),
        (5, "**5**", True),
        (5, "1-5", True),
        (5, "$5", True),
        (5, "5%", True),
        (5, "- 5", True),
        (5, "5km", True),
        (5, "15", False),
        (5, "51", False),
        (5, "-5", False),
        (5, "it is -5", False),
        (5, "it is \u22125", False),
        (5, "-$5", False),
        (5, "$-5", False),
        (5, "0.5", False),
        (5, ".5", False),
        (5, "5.2", False),
        (5, "5,000", False),
        (5, "1,005", False),
        (5, "5/6", False),
        (5, "12:5", False),
        (-5, "it is -5", True),
        (-5, "10-5", False),
        (-5, "-55", False),
        ("$5", "-$5", False),
        ("$5", "for $5.", True),
        (0.5, "10.5", False),
        (0.5, "0.5", True),
        ("room 5", "bathroom 5", True),
        ("room 5", "room 51", False),
        ("15", "5 or 15", True),
        ("5", "15, or 5", True),
        ("no", "not", True),
    ],
)
def test_contains_takes_no_number_for_a_piece_of_another(expected: Any, output: str, right: bool) -> None:
    assert judge("contains", expected)(output).score == right


NUMBERS = st.decimals(-1000, 1000, places=2, allow_nan=False)


@given(
    NUMBERS, NUMBERS, st.sampled_from(["exact", "numeric", "contains"]), st.sampled_from(["{}", "${}", "**{}**", "{}."])
)
def test_two_numbers_are_the_same_only_where_they_are(one: Any, other: Any, name: str, written: str) -> None:
    assert judge(name, str(one))(written.format(other)).score <= float(one == other)


SIGNED = st.text("aB12.,:+-#*^/%!=$\u20ac \u2030\u2013\u2212&'|~\n", max_size=12)


@given(SIGNED)
def test_normalising_signs_twice_changes_nothing(text: str) -> None:
    plain = normaliser(Normalise())
    assert plain(plain(text)) == plain(text)
