"""How a sweep measures: in which order, what again at the end, and when a cell has been measured often enough."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import plan
from orchestrator.config import Measurement, parse
from orchestrator.definition.inputs import Prompt, PromptSet
from orchestrator.definition.starts import digest
from orchestrator.judge.reference import reference_method
from orchestrator.plan import Plan, build
from orchestrator.run.enough import enough
from orchestrator.view import stats
from orchestrator.view.planned import render
from orchestrator.view.summary import reference_of
from protocol.specs import load_fields, pack_ids
from tests.unit.plans import MODEL

PROMPTS = PromptSet(digest="set", prompts=(Prompt("p0", pack_ids([5] * 9), "d", {}),), templated=False)
METHODS = ("hf_sdpa", "hf_eager", "vllm_eager")
ORDERS = ("grouped", "interleaved", "random")


def planned(measurement: str = "", *, methods: Any = METHODS[:2], grid: str = "batch_size: [1, 2]", n: int = 3) -> Plan:
    text = f"name: a\nmodel: demo\nprompts: p.jsonl\nmethods: [{', '.join(methods)}]\nrepeats: {n}\n"
    cache = ", kv_cache_bytes: 1000000" if "vllm_eager" in methods else ""
    text += f"settings: {{max_model_len: 64{cache}}}\n"
    text += f"matrix: {{{grid}}}\nmeasurement: {{{measurement}}}\n"
    return build(parse(text, "s.yaml"), MODEL, PROMPTS, "cpu")


def grids() -> st.SearchStrategy[str]:
    sizes = st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3, unique=True)
    dtypes = st.lists(st.sampled_from(["auto", "float32"]), min_size=1, max_size=2, unique=True)
    return st.builds("batch_size: {}, dtype: {}".format, sizes, dtypes).map(lambda text: text.replace("'", ""))


def some_methods() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True)


def units(of: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    """Each worker start as its method, its dtype and the points it measures."""
    return [(s.config.method.name, s.config.dtype, tuple(p.id for p in s.points)) for s in of.starts]


# --- order --------------------------------------------------------------------


@given(some_methods(), grids(), st.integers(1, 3), st.sampled_from(ORDERS), st.integers(0, 2**63 - 1), st.booleans())
def test_every_repeat_of_every_cell_is_measured_once_in_every_order(
    methods: list[str], grid: str, n: int, order: str, seed: int, drift: bool
) -> None:
    got = planned(f"order: {order}, order_seed: {seed}, drift: {str(drift).lower()}", methods=methods, grid=grid, n=n)
    base = planned(methods=methods, grid=grid, n=n)
    measured = [point for point in got.points if point.role == "measure"]
    assert Counter(measured_ids(measured)) == Counter(measured_ids(base.points))
    assert [p.role for p in got.points] == ["measure"] * len(measured) + ["drift"] * drift
    assert len({start.key for start in got.starts}) == len(got.starts)
    assert len({point.id for point in got.points}) == len(got.points)
    for start in got.starts:
        assert all(
            getattr(p.config, name) == getattr(start.config, name) for name in load_fields() for p in start.points
        )
        assert max(p.config.batch_size for p in start.points) <= start.config.batch_size


def measured_ids(points: Any) -> list[tuple[str, int]]:
    return [(point.id, point.repeat) for point in points]


@given(some_methods(), grids(), st.integers(1, 3))
def test_interleaved_goes_round_all_loads_once_for_each_repeat(methods: list[str], grid: str, n: int) -> None:
    grouped = planned(methods=methods, grid=grid, n=n)
    got = planned("order: interleaved", methods=methods, grid=grid, n=n)
    rounds = [
        (start.config, repeat, tuple(p for p in start.points if p.repeat == repeat))
        for repeat in range(n)
        for start in grouped.starts
    ]
    assert [(s.config, s.points[0].repeat, s.points) for s in got.starts] == rounds


@given(st.permutations(METHODS), st.permutations([1, 2, 4]), st.integers(0, 2**63 - 1))
def test_a_random_order_is_of_its_seed_and_its_points_alone(methods: list[str], sizes: list[int], seed: int) -> None:
    order = f"order: random, order_seed: {seed}"
    first = planned(order, methods=METHODS, grid="batch_size: [1, 2, 4]")
    again = planned(order, methods=methods, grid=f"batch_size: {sizes}")
    assert units(first) == units(again)
    assert plan.changes(first, again) == []
    assert all(len({p.repeat for p in start.points}) == 1 for start in first.starts)


def test_random_orders_differ_and_mix_cells_methods_and_repeats() -> None:
    grid = "batch_size: [1, 2, 4, 8]"
    found = [planned(f"order: random, order_seed: {seed}", grid=grid) for seed in range(8)]
    assert len({tuple(units(one)) for one in found}) == 8
    repeats = [[start.points[0].repeat for start in one.starts] for one in found]
    sizes = [[p.config.batch_size for p in start.points] for one in found for start in one.starts]
    assert any(one != sorted(one) for one in repeats)
    assert any(one != sorted(one) for one in sizes)


def test_this_seed_means_this_order_for_ever() -> None:
    own = ["{name: one, engine: hf}", "{name: two, engine: hf}"]
    got = planned("order: random, order_seed: 7", methods=own, grid="batch_size: [1, 2, 4]", n=2)
    order = [(s.config.method.name, s.points[0].repeat, [p.config.batch_size for p in s.points]) for s in got.starts]
    assert order == [("two", 0, [1, 4, 2]), ("two", 1, [1, 4, 2]), ("one", 0, [1, 2, 4]), ("one", 1, [4, 1, 2])]


@pytest.mark.parametrize("order", ORDERS)
def test_results_are_listed_as_the_file_has_them(order: str) -> None:
    got = planned(f"order: {order}, order_seed: 3, drift: true", methods=METHODS, grid="batch_size: [4, 1]")
    cells = dict.fromkeys((p.method, p.config.batch_size) for p in got.listed)
    assert list(cells) == [(method, size) for method in METHODS for size in (4, 1)]
    assert Counter(measured_ids(got.listed)) == Counter(measured_ids(got.points))
    assert got.listed[-1].role == "drift"


@pytest.mark.parametrize(
    ("named", "speed", "outputs"), [("null", "vllm_eager", "hf_eager"), ("hf_sdpa", "hf_sdpa", "hf_sdpa")]
)
def test_a_reference_that_is_left_open_is_the_first_for_speed_and_the_first_of_transformers_for_outputs(
    named: str, speed: str, outputs: str
) -> None:
    methods = ["vllm_eager", "hf_eager", "hf_sdpa"]
    got = planned(f"reference: {named}", methods=methods)
    assert (reference_of(got), reference_method(got)) == (speed, outputs)


def test_the_plan_shows_its_order_and_seed() -> None:
    assert "order grouped" in render(planned())
    assert "order random with seed 11" in render(planned("order: random, order_seed: 11"))
    text = "\n".join(render(planned("order: interleaved", methods=["hf_sdpa"])))
    assert "3 worker starts" in text
    assert text.index("repeat 1 of 3") < text.index("2. hf_sdpa") < text.index("repeat 2 of 3")


# --- identity -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "order: interleaved", "the order of measurement changed"),
        ("order: random", "order: random, order_seed: 1", "the order of measurement changed"),
        ("", "drift: true", "what is measured again for drift changed"),
        ("drift: true", "drift: true, reference: hf_eager", "what is measured again for drift changed"),
        ("", "stop_early: 0.1", "the rule that ends repeats early changed"),
        ("stop_early: 0.1", "stop_early: 0.1, confidence: 0.9", "the rule that ends repeats early changed"),
        ("stop_early: 0.1", "stop_early: 0.1, least_repeats: 4", "the rule that ends repeats early changed"),
    ],
)
def test_what_decides_what_runs_is_of_the_plan(before: str, after: str, said: str) -> None:
    old, new = planned(before), planned(after)
    assert old.digest != new.digest
    assert plan.changes(old, new) == [f"{said} since this run began"]
    assert {p.id for p in old.points if p.role == "measure"} == {p.id for p in new.points if p.role == "measure"}


@pytest.mark.parametrize(
    "reading",
    ["reference: hf_eager", "agreement_gap: 0.1, slo_ttft_s: 1", "confidence: 0.9, least_repeats: 5", "order_seed: 9"],
)
def test_how_results_are_read_is_not(reading: str) -> None:
    assert planned(reading).digest == planned().digest
    assert plan.changes(planned(), planned(reading)) == []


def test_what_a_resumed_run_does_not_take_up_is_told() -> None:
    before, after = planned("slo_ttft_s: 1"), planned("slo_ttft_s: 1, reference: hf_eager, agreement_gap: 0.25")
    assert plan.unheeded(before, before) == []
    said = plan.unheeded(before, after)
    assert len(said) == 2
    assert said[0].startswith('measurement.reference is "hf_eager" now, but this run began with null')
    assert said[1].startswith("measurement.agreement_gap is 0.25 now, but this run began with 0.5")


def test_the_default_leaves_digests_as_they_were() -> None:
    got = planned("order: grouped, drift: false")
    known = {"points": sorted(point.id for point in got.points), "warmup": 1, "repeats": 3}
    assert got.digest == planned().digest == digest(known)


# --- drift --------------------------------------------------------------------


@pytest.mark.parametrize(("reference", "method"), [("null", "hf_sdpa"), ("vllm_eager", "vllm_eager")])
@pytest.mark.parametrize("order", ORDERS)
def test_the_reference_s_first_cell_comes_last_once_more(order: str, reference: str, method: str) -> None:
    got = planned(f"order: {order}, drift: true, reference: {reference}", methods=METHODS, grid="batch_size: [2, 1, 4]")
    last = got.starts[-1]
    (point,) = last.points
    assert (point.method, point.role, point.config.batch_size, point.repeat) == (method, "drift", 2, 0)
    twins = [(p, s) for s in got.starts for p in s.points if p.config == point.config and p.role == "measure"]
    assert len(twins) == 3
    assert point.id not in {twin.id for twin, _ in twins}
    assert {start.config.batch_size for _, start in twins} == {last.config.batch_size} == {4}
    assert "once more, for drift" in list(render(got))[-1]


def test_where_stop_early_can_not_act_is_told() -> None:
    assert not [note for note in planned("stop_early: 0.1", n=4).notes if "stop_early" in note]
    for grid, n in (("batch_size: [1]", 3), ("task: [generate, score]", 4)):
        (note,) = [one for one in planned("stop_early: 0.1", grid=grid, n=n).notes if "stop_early" in one]
        assert "can't act" in note


# --- stopping early -------------------------------------------------------------


def rule(share: float = 0.05, least: int = 3, confidence: float = 0.95) -> Measurement:
    return Measurement(stop_early=share, least_repeats=least, confidence=confidence)


REPEATS = st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 100)), min_size=1, max_size=8)


@given(REPEATS, st.floats(0.001, 0.999), st.integers(2, 8), st.floats(0.5, 0.999))
@settings(max_examples=50, deadline=None)
def test_what_ends_a_cell_is_the_interval_that_results_show(
    repeats: list[tuple[int, float]], share: float, least: int, confidence: float
) -> None:
    found = stats.rate(*zip(*repeats, strict=True))
    assert found is not None
    shown = found.interval(confidence)
    inside = shown is not None and shown.half <= share * found.value
    assert bool(enough(repeats, rule(share, least, confidence))) == (len(repeats) >= least and inside)
    assert enough(repeats, Measurement(least_repeats=2)) == "", "it was not asked for"


@given(st.floats(0.01, 1e3), st.integers(1, 9))
def test_equal_repeats_are_enough_once_an_interval_can_be_made(wall_s: float, count: int) -> None:
    assert bool(enough([(100, wall_s)] * count, rule(0.001, 2))) == (count >= stats.LEAST_UNITS)


def test_it_says_why() -> None:
    reason = enough([(100, 1.0), (101, 1.0), (99, 1.0)], rule(0.05))
    assert reason == "3 repeats gave 100.0 ± 2.5 tokens/s at confidence 0.95, within stop_early 0.05"


@pytest.mark.parametrize(("least", "n", "can"), [(3, 1, False), (3, 3, False), (3, 4, True), (2, 3, False)])
def test_a_rule_that_can_t_act_is_noted(least: int, n: int, can: bool) -> None:
    made = planned(f"stop_early: 0.1, least_repeats: {least}", n=n)
    notes = [note for note in made.notes if "stop_early" in note]
    assert len(notes) == (not can)


def test_the_plan_shows_the_rule() -> None:
    (line,) = (line for line in render(planned("stop_early: 0.02, least_repeats: 5", n=9)) if "interval" in line)
    assert line == "a cell ends after 5 repeats or more, once its 0.95 interval of tokens/s is within 0.02 of it"
