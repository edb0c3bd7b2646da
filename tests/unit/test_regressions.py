"""What is called a regression: what is worse and told apart, and nothing that noise alone makes so more often than
the level says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.paired.changes import METRICS, Basis, Change
from orchestrator.paired.gate import Verdict, holm, judge
from orchestrator.paired.review import asked
from orchestrator.view import stats

Noise = Callable[[Random], float]


def starts(values: Sequence[float]) -> stats.Pairs:
    return {str(n): (value, 1.0) for n, value in enumerate(values)}


def change(before: Sequence[float], after: Sequence[float], metric: str = "tokens_per_s") -> Change:
    """A value for each start."""
    return Change(
        metric=METRICS[metric],
        subject="cell",
        before=math.fsum(before) / len(before),
        after=math.fsum(after) / len(after),
        ratio=stats.ratio_apart(starts(after), starts(before)),
        basis="starts",
        units=(len(before), len(after)),
        confidence=0.95,
    )


def verdict(found: Change, threshold: float = 0.05) -> Verdict:
    (one,) = judge([found], threshold)
    return one


BASE = (100.0, 101.0, 99.0)
FASTER, SLOWER, SAME = (120.0, 121.0, 119.0), (80.0, 81.0, 79.0), (100.5, 101.0, 99.5)


@pytest.mark.parametrize(
    ("metric", "after", "word"),
    [
        ("tokens_per_s", SLOWER, "regressed"),
        ("tokens_per_s", FASTER, "improved"),
        ("tokens_per_s", SAME, "unchanged"),
        *((time, SLOWER, "improved") for time in ("ttft", "tpot", "itl", "latency", "load", "peak_memory")),
        *((time, FASTER, "regressed") for time in ("ttft", "tpot", "itl", "latency", "load", "peak_memory")),
        ("load", SAME, "unchanged"),
    ],
)
def test_each_figure_has_its_direction(metric: str, after: Sequence[float], word: str) -> None:
    found = verdict(change(BASE, after, metric))
    assert (found.word, found.why) == (word, "")


@pytest.mark.parametrize(
    ("after", "threshold", "word", "why"),
    [
        ((94.0, 94.1, 94.2), 0.05, "regressed", ""),
        ((94.0, 94.1, 94.2), 0.10, "unchanged", ""),
        ((95.0, 95.4, 95.2), 0.05, "can't tell", "it changed, but whether by more than 5 % is open"),
        ((80.0, 100.0, 60.0), 0.05, "can't tell", "the interval is too wide"),
        (BASE, 0.0, "can't tell", "the interval is too wide"),
    ],
)
def test_what_is_told_apart_is_named_past_the_threshold_only(
    after: Sequence[float], threshold: float, word: str, why: str
) -> None:
    found = verdict(change((100.0, 100.5, 99.5, 100.2), after), threshold)
    assert found.word == word
    assert why in found.why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"basis": "repeats"}, "within the runs only"),
        ({"basis": "batches"}, "within the runs only"),
        ({"doubt": "the prompts differ"}, "the prompts differ"),
        ({"after": None, "ratio": None}, "no value in B"),
        ({"before": None, "after": None, "ratio": None}, "no value in A and B"),
    ],
)
def test_where_nothing_can_be_told_the_reason_is(changes: dict[str, Any], why: str) -> None:
    found = verdict(replace(change(BASE, SLOWER), **changes))
    assert found == Verdict("can't tell", why)


def test_a_lone_start_says_how_many_it_takes() -> None:
    found = verdict(change([100.0], [50.0]))
    assert found == Verdict("can't tell", "too few starts (1 start): two on each side are the least")


def test_figures_that_never_vary_need_no_interval() -> None:
    """As memory that is set aside in one piece."""
    assert verdict(change([4.0, 4.0], [5.0, 5.0], "peak_memory")).word == "regressed"
    assert verdict(change([4.0, 4.0], [4.0, 4.0], "peak_memory")).word == "unchanged"
    assert verdict(change([4.0, 4.0], [4.01, 4.01], "peak_memory")).word == "unchanged"


def test_among_many_a_change_has_to_be_clearer() -> None:
    weak = change((100.0, 102.0, 98.0), (92.0, 94.0, 90.0))
    assert verdict(weak).word == "regressed"
    found = judge([weak, *[change(BASE, BASE)] * 20], 0.05)
    assert found[0].word == "can't tell"
    assert found[0].why == "told apart on its own, but not among so many comparisons"
    assert found[0].text.endswith(f"; about {found[0].starts} starts on each side would tell")


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_p_values_keep_their_order_and_are_no_smaller(found: list[float]) -> None:
    adjusted = holm(found)
    assert all(p <= q <= 1 for p, q in zip(found, adjusted, strict=True))
    assert sorted(adjusted) == [q for _, q in sorted(zip(found, adjusted, strict=True))]


def normal(rng: Random) -> float:
    return rng.gauss(0, 0.02)


def heavy(rng: Random) -> float:
    """Student's t with three degrees of freedom: now and then a start is far off."""
    return 0.02 * rng.gauss(0, 1) / math.sqrt(math.fsum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def skewed(rng: Random) -> float:
    return 0.02 * rng.expovariate(1)


def noisy(rng: Random, noise: Noise, count: int, factor: float = 1.0) -> list[float]:
    return [100 * factor * math.exp(noise(rng)) for _ in range(count)]


@pytest.mark.parametrize("noise", [normal, heavy, skewed])
@pytest.mark.parametrize("counts", [(3, 3), (2, 5)])
def test_equal_runs_raise_no_more_false_alarms_than_the_level_says(noise: Noise, counts: tuple[int, int]) -> None:
    """Pairs of runs with eight cells, at a threshold of nothing: with 95 %, of 200 pairs ten at most are called worse
    in anything, give or take what 200 draws may (0.05 + 3 · √(0.05 · 0.95 / 200) = 0.096)."""
    rng, alarms = Random(11), 0
    for _ in range(200):
        cells = [change(noisy(rng, noise, counts[0]), noisy(rng, noise, counts[1])) for _ in range(8)]
        alarms += any(one.word == "regressed" for one in judge(cells, 0.0))
    assert alarms <= 19


def test_a_planted_fifth_is_found_and_a_fiftieth_in_noise_is_not() -> None:
    """One cell 20 % slower, one 2 %, six as before; starts vary by 2 %."""
    rng, found, false = Random(12), 0, 0
    for _ in range(100):
        factors = [0.8, 0.98, *[1.0] * 6]
        cells = [change(noisy(rng, normal, 5), noisy(rng, normal, 5, factor)) for factor in factors]
        first, *others = (one.word for one in judge(cells, 0.05))
        found += first == "regressed"
        false += "regressed" in others
    assert (found, false) == (100, 0)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("0", 0.0), ("12.5%", 0.125)])
def test_a_threshold_is_a_share(text: str, share: float) -> None:
    assert asked((), text, False).threshold == pytest.approx(share)


def test_all_that_is_wrong_with_the_options_is_told_at_once() -> None:
    for least in ("five", "-1%", "200%", "5%%", "nan", "", "5% or so"):
        with pytest.raises(InputError) as caught:
            asked(("tokens", "ttft"), least, True)
        told = [str(one) for one in caught.value.problems]
        assert told[0].startswith("--metric: no figure is called ")
        assert "did you mean tokens_per_s?" in told[0]
        assert any("is no share from 0 to 1" in one for one in told), least
    with pytest.raises(InputError, match="--strict: means something only with --fail-on-regression"):
        asked((), None, True)


def test_figures_come_once_and_in_one_order() -> None:
    assert asked(("ttft", "tokens_per_s", "ttft"), None, False).metrics == ("tokens_per_s", "ttft")
    assert asked(("all",), None, False).metrics == tuple(METRICS)
    assert asked((), None, False).metrics == ("tokens_per_s",)


def test_bases_have_units_in_words() -> None:
    bases: dict[Basis, str] = {"starts": "3 and 4 starts", "batches": "3 and 4 batches, within the runs"}
    for basis, text in bases.items():
        assert replace(change(BASE, (*BASE, 1.0)), basis=basis).unit_text == text
