"""Two runs beside each other: an interval is over what varies between runs, or says that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from orchestrator.errors import InputError
from orchestrator.outcomes import Cause
from orchestrator.paired.changes import Change
from orchestrator.paired.markdown import ADVICE, markdown
from orchestrator.paired.pair import Comparison, compare
from orchestrator.paired.review import asked, review, reviewed
from orchestrator.paired.values import values
from orchestrator.plan import Plan
from protocol.records import BatchStats, LoadTimes
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, record, release
from tests.unit.test_accuracy import NUMERIC, a_run
from tests.unit.test_metrics import NAMES, drifting, measure, planned, run

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
        run(folder / name, replace(plan, prompt_ids=NAMES[: len(times_s[next(iter(times_s))])]), times_s)
    return compare(folder / "x", folder / "y")


def only(found: Comparison) -> Change:
    (one,) = found.pairs
    return one.speed


def distinguishable(found: Comparison) -> bool | None:
    (cell,) = told(found)["cells"]
    return cast("bool | None", cell["distinguishable"])


def told(found: Comparison) -> dict[str, Any]:
    (one,) = values(review([found], 0.05), 0)["comparisons"]
    return cast("dict[str, Any]", one)


def text_of(found: Comparison) -> str:
    return "\n".join(markdown(review([found], 0.05)))


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
    assert one.span is not None
    assert not one.span.holds(0.0), "of these runs it may well be said"
    assert (one.basis, one.units, one.within, one.p_value) == (basis, units, True, None)
    (cell,) = told(found)["cells"]
    assert (cell["distinguishable"], cell["within_runs_only"], cell["interval_over"]) == (None, True, basis)
    (change,) = told(found)["changes"]
    assert (change["verdict"], change["p_value"], change["p_adjusted"]) == ("can't tell", None, None)
    text = text_of(found)
    assert text.startswith("**Can't tell** whether anything is worse past 5 %: 1 comparison without an answer.")
    assert f"{units[0]} {basis}, within the runs | can't tell: within the runs only |" in text
    assert ADVICE in text
    assert [reviewed([found], asked((), "1%", strict))[1] for strict in (False, True)] == [0, 1]


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
    assert (one.basis, one.units, distinguishable(found)) == ("starts", (len(before),) * 2, differ)
    text = text_of(found)
    assert f"{len(before)} starts | {'regressed' if differ else 'c'}" in text
    assert ADVICE not in text


def test_a_cell_measured_for_drift_is_another_start_and_in_no_speed(tmp_path: Path) -> None:
    plan = drifting(1)
    times = [batches(first) | {"again": [last] * 6} for first, last in ((0.5, 0.55), (0.53, 0.5))]
    one = only(found := two(tmp_path, (plan, plan), (times[0], times[1])))
    assert (one.basis, one.units, distinguishable(found)) == ("starts", (2, 2), False)
    assert one.ratio is not None
    assert one.ratio.value == pytest.approx(0.5 / 0.53)


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
    assert f"- hf_sdpa batch_size=1: {said}" in text_of(found).splitlines()
    (apart,) = told(found)["apart"]
    assert apart["cell"] == "hf_sdpa batch_size=1"
    assert {one["what"] for one in apart["differences"]} >= {
        part.split()[0] for part in said.split(": ")[1].split("; ")
    }
    with pytest.raises(InputError) as caught:
        reviewed([found], asked((), "5%", False))
    (problem,) = caught.value.problems
    differs = said.removeprefix("in both, but not compared: ")
    assert problem.suggestion == f"hf_sdpa batch_size=1: {differs}"
    assert "in common" not in problem.message
    assert text_of(found).splitlines()[0] == f"**Nothing to compare**: 1 cell in both, but {differs}."


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
    text = text_of(compare(tmp_path / "x", tmp_path / "x"))
    lines = [line for line in text.splitlines() if str(tmp_path / "x") in line]
    assert [line[:4] for line in lines] == ["- A:", "- B:"]
    assert all("began 1970-01-01" in line for line in lines)
    assert "| cell | figure | A | B | change | interval | over | verdict |" in text


@pytest.mark.parametrize(
    ("digests", "said"),
    [
        (("bytes2-1", "bytes2-1"), False),
        (("bytes2-1", "bytes2-2"), True),
        (("1", "bytes2-1"), False),
    ],
)
def test_two_models_are_told_of_before_all_else(tmp_path: Path, digests: tuple[str, str], said: bool) -> None:
    """A method has one name whatever model it runs; digests that were made in two ways tell nothing."""
    plans = [
        replace(planned(1), model=replace(planned(1).model, name=f"org/{name}", digest=digest))
        for name, digest in zip(("small", "large"), digests, strict=True)
    ]
    text = text_of(two(tmp_path, (plans[0], plans[1]), (batches(0.5), batches(0.9))))
    assert ("the models differ (org/small, org/large)" in text.partition("<details>")[0]) == said


# --- other figures than the speed --------------------------------------------


def paced(folder: Path, plan: Plan, ttfts_s: Sequence[float], loads_s: Sequence[float], **proof: Any) -> None:
    """A worker for each repeat, whose prompts have this TTFT, and which took so long to load."""
    journal = begin(folder, plan)
    for n, (start, ttft_s, load_s) in enumerate(zip(plan.starts, ttfts_s, loads_s, strict=True)):
        launch(journal, start, f"w{n}", load=LoadTimes(total_s=load_s))
        for point in start.points:
            measure(journal, point, [0.5] * len(plan.prompt_ids), worker=f"w{n}", ttft_s=ttft_s)
        release(journal, f"w{n}", peak_bytes=proof.get("peak_bytes", 1 << 30))
    end(journal)


def cells_in(plan: Plan, sizes: Sequence[int]) -> Plan:
    """The same starts, each with a point for every batch size."""
    starts = []
    for start in plan.starts:
        (point,) = start.points
        points = (replace(point, id=f"{point.id}/{n}", config=replace(point.config, batch_size=n)) for n in sizes)
        starts.append(replace(start, points=tuple(points)))
    return replace(plan, starts=tuple(starts), prompt_ids=NAMES)


def judged(found: Comparison, threshold: float = 0.05) -> dict[str, str]:
    (one,) = review([found], threshold)
    return {f"{each.change.subject} {each.change.metric.name}": each.verdict.word for each in one.judged}


def test_times_loads_and_memory_are_told_apart_by_starts(tmp_path: Path) -> None:
    """What is of a worker is one comparison, however many cells it served."""
    plan = cells_in(separate(3), [1, 2])
    paced(tmp_path / "x", plan, [0.1, 0.101, 0.099], [5.0, 5.1, 4.9])
    paced(tmp_path / "y", plan, [0.1, 0.1, 0.101], [8.0, 8.1, 7.9], peak_bytes=2 << 30)
    found = compare(tmp_path / "x", tmp_path / "y", ("ttft", "load", "peak_memory"))
    assert judged(found) == {
        "hf_sdpa batch_size=1 ttft": "unchanged",
        "hf_sdpa batch_size=2 ttft": "unchanged",
        "hf_sdpa, 2 cells load": "regressed",
        "hf_sdpa, 2 cells peak_memory": "regressed",
    }
    assert [(one.before, one.after) for one in found.changes][2:] == [
        (pytest.approx(5.0), pytest.approx(8.0)),
        (1 << 30, 2 << 30),
    ]


def test_a_lone_load_tells_nothing(tmp_path: Path) -> None:
    plan = replace(planned(1), prompt_ids=NAMES)
    for name in "xy":
        paced(tmp_path / name, plan, [0.1], [5.0])
    found = compare(tmp_path / "x", tmp_path / "y", ("load", "latency", "itl"))
    (one,) = review([found], 0.05)
    assert [each.verdict.why for each in one.judged] == [
        "too few starts (1 start): two on each side are the least",
        "within the runs only",
        "no value in A and B",
    ]


def test_cold_starts_are_not_held_against_warm_ones(tmp_path: Path) -> None:
    plan = separate(2)
    for name, kind in (("x", "cold"), ("y", "warm")):
        journal = begin(tmp_path / name, plan)
        for n, start in enumerate(plan.starts):
            launch(journal, start, f"w{n}", artefacts=cast(Any, kind))
            measure(journal, start.points[0], [0.5] * 8, worker=f"w{n}")
        end(journal)
    (one,) = review([compare(tmp_path / "x", tmp_path / "y", ("load",))], 0.05)
    (only_one,) = one.judged
    assert only_one.verdict.why == "one started cold, the other warm"


# --- outputs, outcomes, exit codes --------------------------------------------


def answered(folder: Path, plan: Plan, ids: Sequence[Sequence[int]], cause: Cause | None = None) -> None:
    """One worker; its prompts' outputs in order."""
    journal = begin(folder, plan)
    launch(journal, plan.starts[0], "w0")
    (point,) = plan.points
    if cause is None:
        for n, one in enumerate(ids):
            line = record(NAMES[n], point=point.id, batch=f"p-{n}", incarnation="w0", token_ids=list(one), text="x")
            figures = BatchStats(wall_s=0.5, generated_tokens=3)
            journal.commit(point=point.id, batch=f"p-{n}", incarnation="w0", records=[line], stats=figures)
    journal.emit(ended("failed" if cause else "ok", point=point.id, cause=cause))
    release(journal, "w0")
    end(journal)


def of_length(count: int) -> Plan:
    return replace(planned(1), prompt_ids=NAMES[:count])


def test_outputs_that_changed_are_counted(tmp_path: Path) -> None:
    answered(tmp_path / "x", of_length(4), [[1], [2], [3], [4]])
    answered(tmp_path / "y", of_length(4), [[1], [2], [9], [4, 4]])
    (one,) = compare(tmp_path / "x", tmp_path / "y").pairs
    assert (one.outputs.compared, one.outputs.same, one.outputs.share) == (4, 2, 0.5)
    assert "| hf_sdpa batch_size=1 | 4 | 2 (50 %) | 0 |  |" in text_of(compare(tmp_path / "x", tmp_path / "y"))


def test_a_cell_that_failed_since_is_a_regression_and_one_that_works_now_is_none(tmp_path: Path) -> None:
    oom = Cause(cls="oom", message="out of <memory>")
    answered(tmp_path / "x", of_length(2), [[1], [2]])
    answered(tmp_path / "y", of_length(2), [], oom)
    for names, word, why in (("xy", "regressed", "oom: out of <memory>"), ("yx", "improved", "oom: out of <memory>")):
        found = compare(tmp_path / names[0], tmp_path / names[1])
        (turn,) = found.turns
        assert (turn.word, turn.why) == (word, why)
        assert judged(found) == {"hf_sdpa batch_size=1 tokens_per_s": "can't tell"}
    text = text_of(compare(tmp_path / "x", tmp_path / "y"))
    assert text.startswith("**1 regression past 5 %** in 2 comparisons: hf_sdpa batch_size=1 outcome failed")
    assert "regressed: oom: out of \\<memory\\>" in text


def lossy(folder: Path, repeats: int, failed: int) -> None:
    """Of four prompts of each repeat the first ones fail."""
    plan = replace(planned(repeats), prompt_ids=NAMES[:4])
    journal = begin(folder, plan)
    launch(journal, plan.starts[0], "w0")
    for point in plan.points:
        outputs: list[dict[str, Any]] = [
            {"error": Cause(cls="bad_prompt", message="too long"), "token_ids": []}
        ] * failed + [{}] * (4 - failed)
        lines = [record(NAMES[n], point=point.id, incarnation="w0", **one) for n, one in enumerate(outputs)]
        journal.commit(point=point.id, batch=lines[0].batch, incarnation="w0", records=lines, stats=None)
        journal.emit(ended("partial" if failed else "ok", point=point.id))
    release(journal, "w0")
    end(journal)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((1, 1), (3, 1), []),
        ((3, 1), (1, 1), []),
        ((1, 1), (3, 2), ["regressed"]),
        ((3, 1), (1, 2), ["regressed"]),
        ((1, 2), (3, 1), ["improved"]),
        ((3, 0), (1, 1), ["regressed"]),
        ((1, 4), (2, 4), []),
    ],
)
def test_lost_outputs_are_set_against_how_many_were_asked_for(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int], words: list[str]
) -> None:
    """The same prompt that fails in each repeat is no more of a loss for their number."""
    lossy(tmp_path / "x", *before)
    lossy(tmp_path / "y", *after)
    assert [turn.word for turn in compare(tmp_path / "x", tmp_path / "y").turns] == words


@pytest.mark.parametrize(
    ("after", "strict", "code"),
    [
        ([0.50, 0.501, 0.502], False, 0),
        ([0.50, 0.501, 0.502], True, 0),
        ([0.60, 0.601, 0.602], False, 1),
        ([0.40, 0.401, 0.402], True, 0),
        ([0.45, 0.501, 0.55], False, 0),
        ([0.45, 0.501, 0.55], True, 1),
    ],
)
def test_the_exit_code_is_that_of_the_verdicts(tmp_path: Path, after: list[float], strict: bool, code: int) -> None:
    plan = separate(3)
    found = two(tmp_path, (plan, plan), (batches(0.5, 0.501, 0.499), batches(*after)))
    assert reviewed([found], asked((), "5%", strict))[1] == code
    assert reviewed([found], asked((), None, False))[1] == 0


def test_a_cell_that_is_gone_fails_a_strict_gate_and_no_other(tmp_path: Path) -> None:
    plan = separate(3)
    both = replace(plan, starts=(*plan.starts, *separate_of(VLLM).starts))
    times = batches(0.5, 0.501, 0.499)
    others = {name.replace("hf_sdpa", "vllm_fa"): one for name, one in times.items()}
    found = two(tmp_path, (both, plan), (times | others, times))
    assert found.vanished == ["vllm_fa batch_size=1"]
    codes = [reviewed([found], asked((), "5%", strict))[1] for strict in (False, True)]
    assert codes == [0, 1]
    assert "1 cell of A missing in B" in text_of(found).splitlines()[0]
    said = "exit code 0 all the same: --strict makes it 1"
    for strict, least in ((False, "5%"), (True, "5%"), (False, None)):
        headline = next(markdown(reviewed([found], asked((), least, strict))[0]))
        assert (said in headline) == (least is not None and not strict)


def separate_of(method: Any) -> Plan:
    plan = planned(3, methods=(method,))
    (start,) = plan.starts
    starts = tuple(replace(start, key=f"{start.key}-r{n}", points=(point,)) for n, point in enumerate(start.points))
    return replace(plan, starts=starts)


def test_a_gate_with_nothing_in_common_lets_nothing_pass(tmp_path: Path) -> None:
    answered(tmp_path / "x", of_length(1), [[1]])
    answered(tmp_path / "y", replace(planned(1, methods=(VLLM,)), prompt_ids=NAMES[:1]), [[1]])
    found = compare(tmp_path / "x", tmp_path / "y")
    with pytest.raises(InputError, match=r"it has no cell .* in common with"):
        reviewed([found], asked((), "5%", False))
    judged_, code = reviewed([found], asked((), None, False))
    assert code == 0
    assert "\n".join(markdown(judged_)).startswith("**Nothing to compare**")


def test_figures_that_neither_run_tells_are_left_out_of_all_of_them_only(tmp_path: Path) -> None:
    answered(tmp_path / "x", of_length(3), [[1], [2], [3]])
    for names in (("all",), ("itl", "accuracy")):
        options = asked(names, None, False)
        found = compare(tmp_path / "x", tmp_path / "x", options.metrics)
        ((one,), _) = reviewed([found], options)
        said = {each.change.metric.name for each in one.judged}
        assert ({"itl", "accuracy"} <= said) == (names != ("all",))


def test_cells_of_which_neither_run_tells_anything_are_not_called_missing(tmp_path: Path) -> None:
    """A method that fails to load in both runs is in both."""
    cause = Cause(cls="engine_error", message="no")
    answered(tmp_path / "x", planned(1, methods=(HF,)), [], cause)
    options = asked(("all",), "5%", False)
    judged_, code = reviewed([compare(tmp_path / "x", tmp_path / "x", options.metrics)], options)
    lines = list(markdown(judged_))
    assert (code, lines[0]) == (0, "**Nothing to compare**: neither run tells any of these figures.")
    assert not any("no cell in common" in line for line in lines)


def test_marks_that_both_runs_have_alike_hinder_no_comparison(tmp_path: Path) -> None:
    """Methods that ran in different dtypes may not be compared; each may with itself, unless that changed."""
    plan = planned(methods=(HF, VLLM))
    for name, dtypes in (("x", ("float32", "bfloat16")), ("y", ("float32", "bfloat16")), ("z", ("float32",) * 2)):
        journal = begin(tmp_path / name, plan)
        for n, (start, dtype) in enumerate(zip(plan.starts, dtypes, strict=True)):
            launch(journal, start, f"w{n}", dtype=dtype)
            measure(journal, start.points[0], [0.5] * 8, worker=f"w{n}")
        end(journal)
    same, other = (compare(tmp_path / "x", tmp_path / name) for name in "yz")
    assert [bool(one.before.marks) for one in same.pairs] == [False, True]
    assert [one.speed.doubt for one in same.pairs] == ["", ""]
    assert [one.speed.doubt for one in other.pairs] == ["", "it may not be compared as it is"]


def graded(folder: Path, right: Sequence[bool]) -> None:
    said = {f"q{n}": "the answer is 7" if one else "8" for n, one in enumerate(right)}
    a_run(folder, NUMERIC, dict.fromkeys(said, 7), {("hf_sdpa", 0): said})


@pytest.mark.parametrize(
    ("before", "after", "word", "why"),
    [
        ([True] * 12, [True] * 3 + [False] * 9, "regressed", ""),
        ([False] * 12, [True] * 12, "improved", ""),
        ([True] * 12, [True] * 10 + [False] * 2, "can't tell", "the interval is too wide"),
        ([True, False] * 6, [True, False] * 6, "can't tell", "the interval is too wide"),
        ([True, False] * 60, [True, False] * 60, "unchanged", ""),
    ],
)
def test_answers_are_compared_prompt_by_prompt(
    tmp_path: Path, before: list[bool], after: list[bool], word: str, why: str
) -> None:
    graded(tmp_path / "x", before)
    graded(tmp_path / "y", after)
    ((one,), _) = reviewed([compare(tmp_path / "x", tmp_path / "y", ("accuracy",))], asked(("accuracy",), None, False))
    (judged_,) = one.judged
    assert (judged_.verdict.word, judged_.verdict.why) == (word, why)
    gap = sum(after) / len(after) - sum(before) / len(before)
    assert judged_.change.size == pytest.approx(gap)
    assert judged_.change.unit_text == f"{len(before)} prompts"
    assert f"{gap * 100:+.1f} points" in "\n".join(markdown([one]))


def test_without_a_judge_no_accuracy_is_compared(tmp_path: Path) -> None:
    answered(tmp_path / "x", of_length(2), [[1], [2]])
    (one,) = review([compare(tmp_path / "x", tmp_path / "x", ("accuracy",))], 0.05)
    assert [each.verdict.why for each in one.judged] == ["no answers are judged in both"]
