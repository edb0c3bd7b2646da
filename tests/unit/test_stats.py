"""Intervals from independent units: they hold what they should, come out the same again, and claim nothing of few."""

from __future__ import annotations

import math
import subprocess
import sys
from random import Random
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.view import resample, stats
from orchestrator.view.stats import Estimate, Ratio

LEVEL = 0.95
positive = st.floats(0.01, 1e4)
units = st.lists(st.tuples(positive, positive), min_size=3, max_size=12)
Unit = tuple[float, float]


def pairs(values: list[Unit]) -> stats.Pairs:
    return dict(enumerate(values))


def found(estimate: Estimate | Ratio | None) -> tuple[float, float, float]:
    assert estimate is not None
    interval = estimate.interval(LEVEL)
    assert interval is not None
    return interval.low, estimate.value, interval.high


@given(units)
@settings(max_examples=40)
def test_a_rate_lies_in_its_interval_and_comes_out_the_same_again(values: list[Unit]) -> None:
    amounts, times_s = zip(*values, strict=True)
    low, value, high = found(stats.rate(amounts, times_s))
    assert 0 <= low <= value <= high
    assert value == pytest.approx(sum(amounts) / sum(times_s))
    assert found(stats.rate(amounts, times_s)) == (low, value, high)


@given(units, st.floats(0.5, 0.9), st.floats(0.91, 0.999))
@settings(max_examples=20)
def test_more_confidence_is_a_wider_interval(values: list[Unit], less: float, more: float) -> None:
    estimate = stats.rate(*zip(*values, strict=True))
    assert estimate is not None
    narrow, wide = estimate.interval(less), estimate.interval(more)
    assert narrow is not None
    assert wide is not None
    assert wide.low <= narrow.low <= narrow.high <= wide.high


@given(units, st.data())
@settings(max_examples=30)
@pytest.mark.parametrize("paired", [True, False])
def test_a_ratio_turned_round_is_the_ratio_turned_round(paired: bool, values: list[Unit], data: st.DataObject) -> None:
    size = len(values) + (not paired)
    others = data.draw(st.lists(st.tuples(positive, positive), min_size=size, max_size=size))
    low, value, high = found(stats.ratio(pairs(values), pairs(others)))
    low2, value2, high2 = found(stats.ratio(pairs(others), pairs(values)))
    assert low <= value <= high
    assert (1 / high2, 1 / value2, 1 / low2) == pytest.approx((low, value, high), rel=1e-6)


@given(units)
@settings(max_examples=20)
def test_a_method_is_not_distinguishable_from_itself(values: list[Unit]) -> None:
    ratio = stats.ratio(pairs(values), pairs(values))
    assert ratio is not None
    assert ratio.value == pytest.approx(1)
    assert ratio.distinguishable(LEVEL) is False


def test_what_both_methods_share_cancels_out_where_units_are_the_same() -> None:
    """Batches differ tenfold and one method takes a tenth more time on each: that is seen only batch by batch."""
    ours = {n: (100.0, 1.0 + n) for n in range(10)}
    theirs = {n: (100.0, 1.1 * (1.0 + n) * (1 + 0.001 * (n % 3))) for n in range(10)}
    together = stats.ratio(ours, theirs)
    apart = stats.ratio(ours, {f"other {n}": pair for n, pair in theirs.items()})
    assert together is not None
    assert apart is not None
    assert (together.paired, together.distinguishable(LEVEL)) == (True, True)
    assert (apart.paired, apart.distinguishable(LEVEL)) == (False, False)
    assert together.value == apart.value == pytest.approx(1.1, rel=0.01)


def test_units_are_paired_by_their_names_and_not_by_their_order() -> None:
    ours = {str(n): (100.0, 1.0 + n) for n in range(12)}
    theirs = dict(reversed([(name, (had, took * 1.1)) for name, (had, took) in ours.items()]))
    low, _, high = found(stats.ratio(ours, theirs))
    assert (low, high) == pytest.approx((1.1, 1.1))


@pytest.mark.parametrize("count", [1, 2])
def test_few_units_have_no_interval(count: int) -> None:
    values = [(10.0, 1.0), (20.0, 1.0)][:count]
    estimate = stats.rate(*zip(*values, strict=True))
    ratio = stats.ratio(pairs(values), pairs(values))
    middle = stats.median([[1.0, 2.0]] * count)
    assert estimate is not None
    assert ratio is not None
    assert middle is not None
    assert (estimate.units, estimate.interval(LEVEL)) == (count, None)
    assert (ratio.distinguishable(LEVEL), middle.interval(LEVEL)) == (None, None)


def test_an_interval_that_says_nothing_is_still_a_number() -> None:
    estimate = stats.rate([1.0, 1e9, 1.0], [1.0, 1.0, 1e9])
    assert estimate is not None
    interval = estimate.interval(1 - 1e-9)
    assert interval is not None
    assert interval.high == pytest.approx(estimate.value * 1e6)


def test_no_time_is_no_rate_and_a_unit_without_amount_has_no_interval() -> None:
    assert stats.rate([], []) is None
    assert stats.rate([1.0], [0.0]) is None
    estimate = stats.rate([0.0, 1.0, 1.0, 1.0], [1.0] * 4)
    assert estimate is not None
    assert (estimate, estimate.error) == (Estimate(0.75, 4), None)
    assert stats.ratio(pairs([(0.0, 1.0)]), pairs([(1.0, 1.0)])) is None


def test_with_equal_batches_the_error_is_the_textbooks() -> None:
    """The standard error of a mean, s / √n, on the logarithm s / (mean · √n)."""
    rng = Random(3)
    times_s = [1 + rng.gauss(0, 0.02) for _ in range(40)]
    estimate = stats.rate([100.0] * 40, times_s)
    assert estimate is not None
    textbook = float(np.std(times_s, ddof=1) / np.mean(times_s)) / math.sqrt(40)
    assert estimate.error == pytest.approx(textbook, rel=0.06)


@pytest.mark.parametrize("count", [3, 5, 12])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    """Of 300 intervals at 90 % three and a half standard errors on each side are 6 %."""
    rng = Random(7)
    held = 0
    for _ in range(300):
        times_s = [math.exp(rng.gauss(0, 0.1)) for _ in range(count)]
        estimate = stats.rate([1.0] * count, times_s)
        assert estimate is not None
        interval = estimate.interval(0.9)
        assert interval is not None
        held += interval.holds(1 / math.exp(0.1**2 / 2))
    assert 252 <= held <= 288


# --- medians and quantiles ----------------------------------------------------


@given(st.lists(st.lists(positive, min_size=1, max_size=6), min_size=3, max_size=8))
@settings(max_examples=30)
def test_a_median_is_numpys_and_lies_in_its_interval(groups: list[list[float]]) -> None:
    low, value, high = found(stats.median(groups))
    assert value == pytest.approx(float(np.median([one for group in groups for one in group])), rel=1e-12)
    assert low <= value <= high
    assert found(stats.median(groups)) == (low, value, high)


def test_what_hangs_together_inside_a_unit_does_not_narrow_an_interval() -> None:
    """A hundred prompts of one batch that share its time say no more than one of them."""
    times_s = [0.1 + 0.01 * n for n in range(8)]
    alone, many = (stats.median([[one] * count for one in times_s]) for count in (1, 100))
    assert alone is not None
    assert many is not None
    assert many.error == pytest.approx(alone.error, rel=0.1)


def test_many_values_have_the_interval_of_theory() -> None:
    """Of a normal logarithm the median's standard error is 1.2533 · σ / √n."""
    rng = Random(5)
    groups = [[math.exp(rng.gauss(0, 0.3)) for _ in range(20)] for _ in range(1000)]
    estimate = stats.median(groups)
    assert estimate is not None
    assert estimate.units == 1000
    assert estimate.error == pytest.approx(1.2533 * 0.3 / math.sqrt(20_000), rel=0.25)


def test_a_median_that_may_be_zero_has_no_interval_and_zeros_far_from_it_do_no_harm() -> None:
    touched = stats.median([[0.0], [1.0], [2.0]])
    assert touched is not None
    assert (touched, touched.error) == (Estimate(1.0, 3), None)
    low, value, high = found(stats.median([[0.0, 1.0, 1.1, 1.2, 1.3, 1.4 + n / 10] for n in range(4)]))
    assert 1 < low <= value <= high < 1.5
    assert stats.median([]) is None
    assert stats.median([[], []]) is None


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=50), share=st.floats(0, 1))
def test_quantiles_lie_between_their_neighbours(values: list[float], share: float) -> None:
    ordered = sorted(values)
    (got,) = stats.quantiles(values, [share])
    assert got is not None
    place = share * (len(ordered) - 1)
    assert ordered[math.floor(place)] <= got * (1 + 1e-12) + 1e-300
    assert got <= ordered[math.ceil(place)] * (1 + 1e-12) + 1e-300


def test_quantiles_by_hand() -> None:
    assert stats.quantiles([], [0.5, 0.9]) == [None, None]
    assert stats.quantiles([4.0, 1.0, 2.0], [0.5]) == [2.0]
    assert stats.quantiles([float(n) for n in range(21)], [0.95]) == pytest.approx([19.0])


# --- outliers -----------------------------------------------------------------


def test_outliers_lie_beyond_the_fences() -> None:
    assert stats.outliers([1.0, 1.1, 0.9, 1.0, 9.0, 1.05, 0.1]) == [4, 6]
    assert stats.outliers([1.0, 1.0, 1.0, 1.0]) == []
    assert stats.outliers([1.0, 1.0, 99.0]) == []


@given(st.lists(positive, min_size=4, max_size=30))
def test_the_middle_half_never_lies_outside(values: list[float]) -> None:
    outside = stats.outliers(values)
    assert len(outside) <= len(values) / 2
    low, high = stats.quantiles(values, [0.25, 0.75])
    assert low is not None
    assert high is not None
    assert not any(low <= values[place] <= high for place in outside)


# --- what it costs to import ----------------------------------------------------


def in_a_fresh_interpreter(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_no_thread_is_started_and_nothing_is_left_for_workers_to_inherit() -> None:
    source = (
        "import os; from orchestrator.view import stats; stats.rate([1, 2, 3], [1, 1, 1]).interval(0.9);"
        "print(len(os.listdir('/proc/self/task')), 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    assert in_a_fresh_interpreter(source) == "1 False"


@pytest.mark.parametrize(
    ("figure", "libraries"),
    [
        ("rate([1, 2], [1, 1]).interval(0.9)", set()),
        ("rate([1, 2, 3], [1, 1, 1]).value", set()),
        ("rate([1, 2, 3], [1, 2, 3]).interval(0.9)", set()),
        ("ratio({n: (1, n) for n in (1, 2, 3)}, {n: (1, n) for n in (1, 2, 3)}).value", set()),
        ("median([[1.0], [2.0], [3.0]]).value", set()),
        ("_around(1.0, 0.1, 3, 0.9)", {"numpy", "scipy.special"}),
        ("rate([1, 2, 3], [1, 1, 1]).interval(0.9)", {"numpy", "scipy.special"}),
    ],
)
def test_a_figure_brings_in_no_more_than_it_needs(figure: str, libraries: set[str]) -> None:
    source = f"import sys; from orchestrator.view import stats; stats.{figure}; print(*sys.modules)"
    assert {"numpy", "scipy.special", "scipy.stats"}.intersection(in_a_fresh_interpreter(source).split()) == libraries


def test_who_only_looks_where_a_run_stands_waits_for_no_arrays() -> None:
    assert in_a_fresh_interpreter("import sys, orchestrator.report; print('numpy' in sys.modules)") == "False"


@pytest.mark.parametrize("count", [3, 5, 40])
def test_the_bootstrap_is_that_of_scipy(count: int) -> None:
    """To the last bit: a report of before says the same."""
    rng = np.random.default_rng(count)
    units = [rng.random(rng.integers(1, 6)).tolist() for _ in range(count)]
    parts = min(count, resample.MOST_UNITS)
    blocks = [np.concatenate(units[count * n // parts : count * (n + 1) // parts]) for n in range(parts)]
    edges = resample._edges(np.sort(np.concatenate(blocks)))
    table = np.array([np.bincount(np.searchsorted(edges, block), minlength=len(edges)) for block in blocks])

    def log_median(drawn: Any, axis: int) -> Any:  # noqa: ARG001
        below = np.cumsum(table[drawn].sum(axis=-2), axis=-1)
        low, high = (np.argmax(2 * below >= below[:, -1:] + add, axis=-1) for add in (0, 1))
        return np.log((edges[low] + edges[high]) / 2)

    theirs = scipy.stats.bootstrap(
        (np.arange(parts),),
        log_median,
        n_resamples=resample.RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(resample._SEED),
    )
    assert resample.median_error(units) == float(theirs.standard_error) * math.sqrt(parts / (parts - 1))
