"""What a run came to in words: who won where and how sure that is, and never more than the intervals allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.outcomes import Cause
from orchestrator.plan import Plan
from orchestrator.report import RunView, markdown, results, rows, table
from orchestrator.view import stats, words
from orchestrator.view.facts import Right
from orchestrator.view.metrics import Speed, Spread
from orchestrator.view.pareto import Candidate, front
from orchestrator.view.summary import Row
from orchestrator.view.verdicts import accuracy
from protocol.specs import BackendConfig, MethodSpec
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, release
from tests.unit.test_metrics import NAMES, both, measure, planned, run
from tests.unit.test_odd_rows import SCORED, scoring
from tests.unit.test_report import broken_run, plain

EVEN = [0.5, 0.505, 0.495, 0.5, 0.502, 0.498, 0.5, 0.5]
LONE = "There is one repeat: intervals are over its batches, and say nothing of another run."


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def times(factor: float) -> list[float]:
    return [factor * one for one in EVEN]


def said(view: RunView) -> list[str]:
    return words.summary(view, rows(view))


def test_a_winner_is_named_with_its_interval(run_dir: Path) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM)), both(times(0.5), times(1.0)))
    found = said(view)
    assert found[0].startswith("At batch_size=1 vllm_fa is the fastest: 12.0 tokens/s, 2.00 times hf_sdpa, the next (")
    assert found[0].endswith(" at 95 %).")
    assert "Outputs beside those of hf_sdpa: agrees: vllm_fa." in found
    assert LONE in found
    assert words.brief(view, rows(view), 2) == found[:1]


def test_who_cannot_be_told_apart_is_not_ranked(run_dir: Path) -> None:
    uneven = [0.3, 0.9, 0.4, 0.8, 0.35, 0.7, 0.5, 0.5]
    view = run(run_dir, planned(methods=(HF, VLLM)), both(uneven, [0.51 * one / 0.5 for one in reversed(uneven)]))
    found = said(view)
    assert "no method can be called the fastest: hf_sdpa is not distinguishable at 95 % from vllm_fa" in found[0]
    assert not any("is the fastest:" in one for one in found)


def test_without_an_interval_nothing_is_claimed(run_dir: Path) -> None:
    plan = msgspec.structs.replace(planned(methods=(HF, VLLM)), prompt_ids=NAMES[:2])
    view = run(run_dir, plan, both([0.1, 0.1], [0.5, 0.5]))
    found = said(view)
    assert any(
        "nothing tells which method is the fastest: there are too few repeats or batches" in one for one in found
    )
    assert not any(" times " in one for one in found)
    assert any(one.startswith("Still missing: 2 rows without an interval; 3 repeats or more") for one in found)


def test_a_marked_row_wins_nothing(run_dir: Path) -> None:
    """Its outputs are others than the reference's, and it is twice as fast."""
    plan = planned(methods=(HF, VLLM))
    journal = begin(run_dir, plan)
    for number, (start, pace, ids) in enumerate(zip(plan.starts, (1.0, 0.5), ([*range(9)], [7] * 9), strict=True)):
        launch(journal, start, f"w{number}")
        changes: dict[str, Any] = {
            "token_ids": ids,
            "text": str(ids),
            "generated_tokens": 9,
            "flags": ["degenerate"] * number,
        }
        measure(journal, start.points[0], times(pace), worker=f"w{number}", **changes)
        release(journal, f"w{number}")
    end(journal)
    found = said(RunView.load(run_dir))
    assert found[0] == "At batch_size=1 only one method has a speed that may be compared: hf_sdpa."
    assert "Outputs beside those of hf_sdpa: garbage: vllm_fa." in found
    assert "Not to be compared as it is: 1 row (vllm_fa batch_size=1: outputs garbage)." in found


def test_failures_are_told_with_their_cause_and_before_what_is_missing(run_dir: Path) -> None:
    plan = planned(methods=(HF, VLLM))
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    measure(journal, plan.points[0], times(1.0))
    cause = Cause(cls="oom", message="CUDA out of memory \x1b[31m" + "x" * 500)
    journal.emit(ended("failed", point=plan.points[1].id, cause=cause))
    end(journal, 1)
    view = RunView.load(run_dir)
    failed = next(one for one in said(view) if "failed" in one)
    assert failed.startswith("vllm_fa failed at batch_size=1: oom: CUDA out of memory")
    assert "\x1b" not in failed
    assert len(failed) < 200
    assert failed in words.brief(view, rows(view), 0)
    assert "vllm_fa failed at batch_size=1, the cause stands above." in words.brief(view, rows(view), 2)
    shown = plain(table(rows(view), words.brief(view, rows(view), 2)))
    assert shown.count("CUDA out of memory") == 1


def test_a_run_that_was_cut_short_says_so_first(run_dir: Path) -> None:
    broken_run(run_dir)
    found = said(RunView.load(run_dir))
    assert found[0].startswith("The run is not complete: 3 of 4 points have not ended or lack records")


def test_who_is_not_through_wins_nothing(run_dir: Path) -> None:
    """Of two repeats the faster method has one, and a third has not begun."""
    plan = planned(2, methods=(HF, VLLM, msgspec.structs.replace(HF, name="hf_eager")))
    paces = {"hf_sdpa": 1.0, "vllm_fa": 0.1, "hf_eager": 2.0}
    through = {point.id: times(paces[point.method]) for point in plan.points if point.method == "hf_sdpa"}
    half = {point.id: times(0.1) for point in plan.points if point.method == "vllm_fa" and point.repeat == 0}
    found = said(run(run_dir, plan, through | half))
    assert "At batch_size=1 only one method has a speed that may be compared so far: hf_sdpa." in found
    assert not any("the fastest:" in one for one in found)


def test_the_fastest_of_those_measured_so_far_is_called_so(run_dir: Path) -> None:
    plan = planned(methods=(HF, VLLM, msgspec.structs.replace(HF, name="hf_eager")))
    paces = {"hf_sdpa": 1.0, "vllm_fa": 0.5}
    view = run(run_dir, plan, {point.id: times(paces[point.method]) for point in plan.points if point.method in paces})
    found = said(view)
    led = next(one for one in found if "the fastest" in one)
    assert led.startswith(
        "Of the 2 of 3 methods measured so far at batch_size=1, vllm_fa is the fastest: 12.0 tokens/s"
    )
    assert led in words.brief(view, rows(view), 2)


@pytest.mark.parametrize(("shares", "told"), [((0.16, 0.68), True), ((0.6, 0.68), False), ((None, 0.68), False)])
def test_a_machine_that_was_busier_beside_one_row_is_told(
    run_dir: Path, shares: tuple[float | None, float], told: bool
) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM)), both(times(0.5), times(1.0)))
    table_rows = [
        replace(row, host=replace(row.host, host_others_share=share))
        for row, share in zip(rows(view), shares, strict=True)
    ]
    sentence = (
        "At batch_size=1 others used 16 to 68 % of the CPU time beside these rows, not alike: their ratios are of the "
        "machine too."
    )
    for found in (words.summary(view, table_rows), words.brief(view, table_rows, 2)):
        assert (sentence in found) is told
        assert any("not alike" in one for one in found) is told


def test_of_one_method_there_is_nobody_to_beat(run_dir: Path) -> None:
    plan = replace_prompts(a_plan((HF,), [1, 2], 1))
    view = run(run_dir, plan, {point.id: times(0.5 * point.config.batch_size) for point in plan.points})
    told = "hf_sdpa is the only method, so there is nothing to compare it with: "
    assert said(view)[0] == f"{told}from 6.00 tokens/s (batch_size=2) to 12.0 (batch_size=1)."


def replace_prompts(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, prompt_ids=NAMES)


def test_a_run_without_a_single_event_has_no_speed(run_dir: Path) -> None:
    end(begin(run_dir, planned(methods=(HF, VLLM))))
    view = RunView.load(run_dir)
    found = said(view)
    assert found[:2] == [
        "The run is not complete: 2 of 2 points have not ended or lack records, and all that is said is of what is "
        "there.",
        "No row has a speed that may be compared.",
    ]


def test_repeats_that_shared_a_worker_are_called_so(run_dir: Path) -> None:
    plan = planned(3, methods=(HF, VLLM))
    view = run(run_dir, plan, {point.id: times(0.5) for point in plan.points})
    assert any(one.startswith("All repeats of a method shared a worker") for one in said(view))


def test_the_speed_of_scores_is_of_all_tokens(run_dir: Path) -> None:
    plan = scoring(planned(methods=(HF, VLLM)), ("hf_sdpa", "vllm_fa"))
    view = run(run_dir, plan, both(times(0.5), times(1.0)), **SCORED)
    assert "total tokens/s" in said(view)[0]


def test_the_words_stand_in_the_report_in_its_json_and_below_the_table(run_dir: Path) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM)), both(times(0.5), times(1.0)))
    found = said(view)
    text = markdown(view)
    assert text.index("- At batch_size=1 vllm_fa is the fastest") < text.index("- state: finished")
    assert results(view)["summary"] == found
    shown = plain(table(rows(view), words.brief(view, rows(view), 2)))
    assert shown.rstrip().endswith(found[0])


# --- many rows -------------------------------------------------------------------


def row(method: str, size: int, rate: float, ttft_s: float, **changes: Any) -> Row:
    """A row of three repeats, a thousandth apart."""
    config = BackendConfig(method=MethodSpec(name=method, engine="hf"), model_path="/m", batch_size=size)
    repeats = {n: (rate * (1 + n / 1000), 1.0) for n in range(3)}
    found = Row(
        config=config,
        settings={"batch_size": size},
        points=(f"{method}/{size}",),
        outcome="ok",
        worst_count=3,
        cause="",
        speed=Speed("repeats", output=stats.rate(*stats.columns(repeats)), repeats=repeats),
        ttft=Spread(count=3, median=stats.median([[ttft_s]] * 3)),
    )
    return replace(found, **changes)


def of_rows(run_dir: Path, found: Sequence[Row]) -> list[str]:
    """Of rows that no run has: in a run of which nothing else is told."""
    end(begin(run_dir, planned()))
    return words.summary(RunView.load(run_dir), found)[1:]


@pytest.mark.parametrize(("by", "told"), [(1.001, "1.001 times"), (1.02, "1.02 times"), (2.0, "2.00 times")])
def test_a_lead_is_never_one_time_the_next(run_dir: Path, by: float, told: str) -> None:
    """Of two that never vary a thousandth tells."""
    (found, *_) = of_rows(run_dir, [steady("fast", 10.0 * by), steady("slow", 10.0)])
    assert "fast is the fastest" in found
    assert told in found


def steady(method: str, rate: float) -> Row:
    repeats = dict.fromkeys(range(3), (rate, 1.0))
    output = stats.rate(*stats.columns(repeats))
    return row(method, 1, rate, 0.1, speed=Speed("repeats", output=output, repeats=repeats))


def test_a_long_cause_ends_as_it_is_cut(run_dir: Path) -> None:
    found = of_rows(run_dir, [row("a", 1, 10.0, 0.1), row("b", 1, 10.0, 0.1, outcome="failed", cause="out, " * 60)])
    (told,) = [one for one in found if one.startswith("b failed")]
    assert told.endswith("…")
    assert "…." not in told


def test_settings_are_counted_where_there_are_many(run_dir: Path) -> None:
    sizes = range(1, 11)
    found = of_rows(
        run_dir,
        [
            *(row("slow", size, 10.0, 0.5) for size in sizes),
            *(row("fast", size, 20.0 if size < 8 else 5.0, 0.5) for size in sizes),
        ],
    )
    assert found[0].startswith("At 7 of 10 settings fast is the fastest, by 2.00 times the next, each told apart")
    assert found[1].startswith("At batch_size=8, batch_size=9 and batch_size=10 slow is the fastest, by 2.00 times")


@pytest.mark.parametrize("count", [100, 2000])
def test_however_many_rows_there_are_the_sentences_are_few_and_short(run_dir: Path, count: int) -> None:
    methods, troubles = [f"m{n}" for n in range(8)], ("oom", "hang", "engine_crash", "environment")
    found = [
        row(
            method,
            size,
            10.0 + (size * place) % 7,
            0.1,
            outcome="failed" if size % 9 == 0 else "ok",
            cause=troubles[size % 4] if size % 9 == 0 else "",
            marks=("outputs diverges",) if size % 11 == 0 else (),
        )
        for place, method in enumerate(methods)
        for size in range(1, count // len(methods) + 1)
    ]
    told = of_rows(run_dir, found)
    assert 4 <= len(told) <= words.MOST_SENTENCES
    assert max(map(len, told)) < 700


def test_too_many_rows_are_not_set_against_each_other(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_ROWS", 2)
    told = of_rows(run_dir, [row(name, 1, 10.0, 0.1) for name in "abc"])
    assert told[0] == "3 rows are too many to say in words who is the fastest where: `report --json` has all."


def test_hostile_names_stay_on_their_line(run_dir: Path) -> None:
    found = of_rows(run_dir, [row("a\x1b[2J\n# b", 1, 10.0, 0.1), row("\u202eb", 1, 20.0, 0.1)])
    assert all("\n" not in one and "\x1b" not in one and "\u202e" not in one for one in found)


def test_the_front_is_what_nothing_beats_in_both() -> None:
    def at(rates: Mapping[str, tuple[float, float]]) -> list[str]:
        return [one.label for one in front(Candidate(name, *pair) for name, pair in rates.items())]

    assert at({"a": (10, 1), "b": (20, 2), "c": (15, 3), "d": (5, 0.5), "e": (10, 2)}) == ["b", "a", "d"]
    assert at({"a": (10, 1), "b": (10, 1)}) == ["a"]
    assert at({}) == []


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([], []),
        (
            [Right("a 1", "numeric", "", 0.5, None, 9), Right("a 2", "numeric", "", 0.5, None, 8)],
            ["Right answers by numeric: 50 %; there is no other method to compare with."],
        ),
        (
            [Right("a", "exact", "", 0.5, None, 9), Right("b", "exact", "a", 0.6, None, 9)],
            ["Right answers by exact: from 50 % (a) to 60 % (b); by that no row can be told apart from a."],
        ),
        (
            [Right("a", "exact", "", 0.5, None, 9), Right("b", "exact", "a", 0.2, -0.3, 9)],
            ["Right answers by exact: from 20 % (b) to 50 % (a); told apart from a: b (-30.0 points)."],
        ),
        (
            [Right("a", "rouge_l", "", 0.5, None, 9, "mean"), Right("b", "rouge_l", "a", 0.2, -0.3, 9, "mean")],
            ["Mean score by rouge_l: from 0.200 (b) to 0.500 (a); told apart from a: b (-0.300)."],
        ),
        (
            [Right("a", "bleu", "", 0.273, None, 9, "corpus"), Right("b", "bleu", "a", 0.2, -0.073, 9, "corpus")],
            ["Score of all outputs by bleu: from 20.0 (b) to 27.3 (a); told apart from a: b (-7.3 points)."],
        ),
    ],
)
def test_answers_are_told_from_the_references_where_they_can_be(answers: list[Right], told: list[str]) -> None:
    assert list(accuracy(answers)) == [one.replace(":", ", of 9 prompts:", 1) for one in told]
