"""Two runs beside each other: an interval is over what varies between runs, or says that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.plan import Plan
from orchestrator.view import pair
from orchestrator.view.pair import Comparison, as_json, compare, markdown
from tests.unit.rundirs import HF, a_plan
from tests.unit.test_metrics import NAMES, drifting, planned, run

CELL = "hf_sdpa/1"


def separate(repeats: int) -> Plan:
    """Each repeat in a worker of its own, as `order: interleaved` has it."""
    plan = planned(repeats)
    (start,) = plan.starts
    starts = tuple(replace(start, key=f"{start.key}-r{n}", points=(point,)) for n, point in enumerate(start.points))
    return replace(plan, starts=starts)


def batches(*repeats: float) -> dict[str, Sequence[float]]:
    """Six batches of each repeat, which differ by a thousandth; `again` is the last one."""
    steps = (0.0, 0.001, -0.001, 0.0005, -0.0005, 0.0)
    names = [f"{CELL}/{n}" for n in range(len(repeats))]
    return {name: [mean * (1 + step) for step in steps] for name, mean in zip(names, repeats, strict=True)}


def two(folder: Path, plans: tuple[Plan, Plan], times: tuple[dict[str, Any], dict[str, Any]]) -> Comparison:
    for name, plan, times_s in zip("xy", plans, times, strict=True):
        run(folder / name, plan, times_s)
    return compare(folder / "x", folder / "y")


def only(found: Comparison) -> pair.Pair:
    (one,) = found.pairs
    return one


@pytest.mark.parametrize(
    ("plan", "times", "basis", "units"),
    [
        (planned(1), ([0.5], [0.51]), "batches", (6, 6)),
        (planned(3), ([0.5, 0.501, 0.499], [0.51, 0.511, 0.509]), "repeats", (3, 3)),
    ],
)
def test_what_is_within_a_run_tells_no_two_runs_apart(
    tmp_path: Path, plan: Plan, times: tuple[list[float], list[float]], basis: str, units: tuple[int, int]
) -> None:
    """Two per cent, which is what a worker that was started again may differ by, and far more than batches do."""
    found = two(tmp_path, (plan, plan), (batches(*times[0]), batches(*times[1])))
    one = only(found)
    assert one.interval is not None
    assert not one.interval.holds(1.0), "of these runs it may well be said"
    assert (one.basis, one.units, one.within, one.distinguishable) == (basis, units, True, None)
    (told,) = as_json(found)["cells"]
    assert (told["distinguishable"], told["within_runs_only"], told["interval_over"]) == (None, True, basis)
    text = "\n".join(markdown(found))
    assert f"{units[0]} {basis}, within the runs | can't tell: within the runs only |" in text
    assert pair.WITHIN in text
    assert pair.STARTS not in text


@pytest.mark.parametrize(
    ("before", "after", "differ"),
    [
        ([0.50, 0.52, 0.51], [0.51, 0.53, 0.50], False),
        ([0.50, 0.52, 0.51], [0.90, 0.92, 0.91], True),
        ([0.50, 0.51], [0.52, 0.50], False),
        ([0.50, 0.51], [0.91, 0.90], True),
    ],
)
def test_repeats_in_workers_of_their_own_hold_what_varies_between_starts(
    tmp_path: Path, before: list[float], after: list[float], differ: bool
) -> None:
    plan = separate(len(before))
    one = only(found := two(tmp_path, (plan, plan), (batches(*before), batches(*after))))
    assert (one.basis, one.units, one.distinguishable) == ("starts", (len(before),) * 2, differ)
    text = "\n".join(markdown(found))
    assert f"{len(before)} starts | {'' if differ else 'not '}distinguishable |" in text
    assert pair.STARTS in text
    assert pair.WITHIN not in text


def test_a_cell_measured_for_drift_is_another_start_and_in_no_speed(tmp_path: Path) -> None:
    plan = drifting(1)
    times = [batches(first) | {"again": [last] * 6} for first, last in ((0.5, 0.55), (0.53, 0.5))]
    one = only(two(tmp_path, (plan, plan), (times[0], times[1])))
    assert (one.basis, one.units, one.distinguishable) == ("starts", (2, 2), False)
    assert one.ratio is not None
    assert one.ratio.value == pytest.approx(0.5 / 0.53)


def test_equal_runs_are_told_apart_no_more_often_than_the_level_says(tmp_path: Path) -> None:
    """Of forty pairs whose starts vary by a hundredth and whose batches hardly do, at 95 %."""
    rng, plan = Random(4), separate(3)
    told = []
    for n in range(40):
        times = [batches(*(0.5 * (1 + rng.gauss(0, 0.01)) for _ in range(3))) for _ in "xy"]
        told.append(only(two(tmp_path / str(n), (plan, plan), (times[0], times[1]))).distinguishable)
    assert sum(one is True for one in told) <= 6


def at(plan: Plan, **settings: Any) -> Plan:
    starts = (
        replace(s, points=tuple(replace(p, config=replace(p.config, **settings)) for p in s.points))
        for s in plan.starts
    )
    return replace(plan, starts=tuple(starts))


@pytest.mark.parametrize(
    ("plans", "said"),
    [
        ((planned(1), at(planned(1), ignore_eos=True)), "in both, but not compared: ignore_eos differs (off, on)"),
        (
            (planned(1), replace(at(planned(1), seed=3, batch_size=2), prompts_digest="others")),
            "in both, but not compared: batch_size differs (1, 2); seed differs (0, 3); prompts differ",
        ),
    ],
)
def test_cells_at_the_same_place_say_why_they_are_not_compared(
    tmp_path: Path, plans: tuple[Plan, Plan], said: str
) -> None:
    found = two(tmp_path, plans, (batches(0.5), batches(0.5)))
    assert (found.pairs, found.only, len(found.apart)) == ([], [], 1)
    assert f"- hf_sdpa batch_size=1: {said}" in list(markdown(found))
    (told,) = as_json(found)["apart"]
    assert told["cell"] == "hf_sdpa batch_size=1"
    assert {one["what"] for one in told["differences"]} >= {part.split()[0] for part in said.split(": ")[1].split("; ")}


def test_another_value_of_what_varies_within_a_run_is_another_cell(tmp_path: Path) -> None:
    grid = a_plan((HF,), [1, 2], 1)
    run(tmp_path / "x", replace(grid, prompt_ids=NAMES), {point.id: [0.5] * 6 for point in grid.points})
    plan = at(planned(1), batch_size=4)
    run(tmp_path / "y", plan, batches(0.5))
    found = compare(tmp_path / "x", tmp_path / "y")
    assert (found.pairs, found.apart) == ([], [])
    assert [(name, side.name) for name, side in found.only] == [
        ("hf_sdpa batch_size=1", "A"),
        ("hf_sdpa batch_size=2", "A"),
        ("hf_sdpa batch_size=4", "B"),
    ]


def test_batches_of_other_prompts_are_not_set_against_each_other(tmp_path: Path) -> None:
    plan = planned(1)
    times = batches(0.5)
    same = only(two(tmp_path / "same", (plan, plan), (times, times)))
    other = only(two(tmp_path / "other", (plan, replace(plan, prompts_digest="others")), (times, times)))
    assert same.ratio is not None
    assert other.ratio is not None
    assert (same.ratio.paired, other.ratio.paired) == (True, False)


def test_both_runs_have_a_name_of_their_own_with_path_and_time(tmp_path: Path) -> None:
    run(tmp_path / "x", planned(1), batches(0.5))
    text = "\n".join(markdown(compare(tmp_path / "x", tmp_path / "x")))
    lines = [line for line in text.splitlines() if str(tmp_path / "x") in line]
    assert [line[:4] for line in lines] == ["- A:", "- B:"]
    assert all("began 1970-01-01" in line for line in lines)
    assert "| cell | A | B | B ÷ A |" in text
