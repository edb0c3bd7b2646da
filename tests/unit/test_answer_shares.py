"""Intervals and tests of shares, against published figures, scipy and simulation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from orchestrator.view import shares
from orchestrator.view.stats import Interval

LEVEL = 0.95


@pytest.mark.parametrize(("right", "count"), [(0, 10), (1, 29), (15, 148), (81, 263), (10, 10), (1, 1)])
def test_wilsons_interval_is_scipys(right: int, count: int) -> None:
    found = shares.wilson(right / count, count, LEVEL)
    theirs = scipy_stats.binomtest(right, count).proportion_ci(LEVEL, method="wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_wilsons_interval_as_newcombe_printed_it() -> None:
    """Newcombe, 1998, table I: 81 of 263 and 15 of 148."""
    found = [shares.wilson(right / count, count, LEVEL) for right, count in ((81, 263), (15, 148))]
    assert [(round(one.low, 4), round(one.high, 4)) for one in found] == [(0.2553, 0.3662), (0.0624, 0.1605)]


def test_repeats_that_say_the_same_are_no_more_evidence() -> None:
    values = [1.0] * 7 + [0.0] * 3
    assert shares.share_interval(values, 10, LEVEL) == shares.share_interval(values, 50, LEVEL)
    assert shares.effective(values, 50) == pytest.approx(10)


def test_repeats_that_differ_are_some_more_evidence_but_never_more_than_they_are() -> None:
    assert 4 < shares.effective([0.4, 0.6, 0.2, 0.8], 20) <= 20
    assert shares.effective([0.5] * 4, 20) == 4
    assert shares.effective([0.5, 0.50001, 0.5, 0.49999], 20) == 20


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_sign_test_is_the_exact_binomial_test(better: int, worse: int) -> None:
    theirs = scipy_stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert shares.sign_test(better, worse) == pytest.approx(theirs, abs=1e-9)


def test_mcnemars_exact_test_of_a_known_table() -> None:
    """12 prompts against 2: twice the tail of 14 coins, (1 + 14 + 91) / 2^14."""
    assert shares.sign_test(12, 2) == pytest.approx(2 * 106 / 2**14)


def test_the_difference_as_bonett_and_price_have_it() -> None:
    """p12 = 6/102, p21 = 2/102."""
    found = shares.difference_interval([1.0] * 5 + [-1.0] + [0.0] * 94, LEVEL)
    middle, reach = 4 / 102, 1.959964 * ((8 / 102 - (4 / 102) ** 2) / 102) ** 0.5
    assert (found.low, found.high) == pytest.approx((middle - reach, middle + reach), abs=1e-6)


def test_two_that_are_alike_at_few_prompts_may_still_differ() -> None:
    found = shares.difference_interval([0.0] * 10, LEVEL)
    assert found.low < -0.1 < 0.1 < found.high


def test_means_have_students_interval() -> None:
    values = [0.2, 0.4, 0.35, 0.5, 0.1]
    found = shares.mean_interval(values, LEVEL)
    theirs = scipy_stats.ttest_1samp(values, 0).confidence_interval(LEVEL)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert shares.mean_interval([0.0, 1.0], LEVEL) == Interval(0.0, 1.0)


def test_percentiles_of_resamples() -> None:
    found = shares.percentiles([n / 100 for n in range(101)], 0.9)
    assert (found.low, found.high) == pytest.approx((0.05, 0.95), abs=0.011)
    assert shares.percentiles([0.5], 0.9) == Interval(0.5, 0.5)


# --- simulated runs ----------------------------------------------------------------

RUNS = 400


def coverage(truth: float, made: Callable[[random.Random], Interval]) -> float:
    return sum(made(random.Random(seed)).holds(truth) for seed in range(RUNS)) / RUNS


@pytest.mark.parametrize(("prompts", "repeats", "spread"), [(30, 1, 0.0), (100, 4, 0.0), (60, 5, 0.3), (60, 5, 0.7)])
def test_the_interval_of_a_share_holds_the_truth_as_often_as_it_says(prompts: int, repeats: int, spread: float) -> None:
    """`spread`: by how much a prompt is easier or harder than the average one, so that its repeats hang together."""

    def made(dice: random.Random) -> Interval:
        easy = [0.5 + spread * (dice.random() - 0.5) for _ in range(prompts)]
        values = [sum(dice.random() < one for _ in range(repeats)) / repeats for one in easy]
        return shares.share_interval(values, prompts * repeats, LEVEL)

    assert coverage(0.5, made) > 0.92


@pytest.mark.parametrize(("prompts", "discordant"), [(20, 0.3), (200, 0.1), (200, 0.02)])
def test_two_methods_that_are_as_good_are_told_apart_no_more_often_than_it_says(
    prompts: int, discordant: float
) -> None:
    apart = 0
    for seed in range(RUNS):
        dice = random.Random(seed)
        gaps = [float(dice.choice((-1, 1)) if dice.random() < discordant else 0) for _ in range(prompts)]
        better, worse = gaps.count(1.0), gaps.count(-1.0)
        far = not shares.difference_interval(gaps, LEVEL).holds(0.0)
        apart += far and shares.sign_test(better, worse) < 1 - LEVEL
    assert apart / RUNS <= 0.06


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.lists(st.floats(-1, 1), min_size=1, max_size=30),
    st.floats(0.5, 0.999),
)
def test_intervals_stay_in_their_range_round_the_estimate(values: list[float], gaps: list[float], level: float) -> None:
    found = shares.share_interval(values, len(values) * 2, level)
    assert 0 <= found.low <= shares.mean(values) + 1e-9
    assert shares.mean(values) - 1e-9 <= found.high <= 1
    beside = shares.difference_interval(gaps, level)
    assert -1 <= beside.low <= beside.high <= 1
