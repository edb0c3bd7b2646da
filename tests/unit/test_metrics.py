"""What a row is told to have measured: against sums done by hand, on run directories that the real journal wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator import cli
from orchestrator.definition.measurement import Measurement
from orchestrator.events import WarmupDone
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import Plan, SweepPoint
from orchestrator.report import RunView, markdown, results, rows, table
from orchestrator.view.compare import IS_REFERENCE
from orchestrator.view.stats import Estimate
from orchestrator.view.summary import Row
from orchestrator.view.wording import percent_text, rate_text, seconds_text
from protocol.records import BatchStats, LoadTimes, MemoryUse
from protocol.specs import BackendConfig
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, record, release
from tests.unit.test_export import exported
from tests.unit.test_report import plain

NAMES = tuple("abcdefgh")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def planned(repeats: int = 1, methods: Sequence[Any] = (HF,), **measurement: Any) -> Plan:
    plan = a_plan(methods, [1], repeats)
    return replace(plan, prompt_ids=NAMES, measurement=Measurement(**measurement))


def measure(
    journal: Journal,
    point: SweepPoint,
    times_s: Sequence[float],
    *,
    worker: str = "w0",
    extra: Sequence[dict[str, float]] = (),
    **changes: Any,
) -> None:
    """One prompt a batch, three tokens each, as many batches as times."""
    for n, wall_s in enumerate(times_s):
        batch = f"{point.id}-{n}"
        values = {"point": point.id, "batch": batch, "method": point.method, "incarnation": worker}
        one = record(NAMES[n], **(values | {"repeat": point.repeat, "batch_size": 1} | changes))
        figures = BatchStats(wall_s=wall_s, generated_tokens=3, extra=extra[n] if extra else {})
        journal.commit(point=point.id, batch=batch, incarnation=worker, records=[one], stats=figures)
    journal.emit(ended(point=point.id))


def run(run_dir: Path, plan: Plan, times_s: Mapping[str, Sequence[float]], **changes: Any) -> RunView:
    """`times_s`: of the batches, by the point's id."""
    journal = begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        launch(journal, start, f"w{number}")
        for point in start.points:
            if point.id in times_s:
                measure(journal, point, times_s[point.id], worker=f"w{number}", **changes)
        release(journal, f"w{number}")
    end(journal)
    return RunView.load(run_dir)


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def only(view: RunView) -> Row:
    (row,) = rows(view)
    return row


# --- units and intervals ------------------------------------------------------


def test_of_one_repeat_the_batches_are_the_units(run_dir: Path) -> None:
    row = only(run(run_dir, planned(), {"hf_sdpa/1/0": [0.5, 0.54, 0.46, 0.5]}))
    output = row.speed.output
    assert output is not None
    assert (row.speed.unit, output.units) == ("batches", 4)
    assert output.value == pytest.approx(12 / 2.0)
    interval = output.interval(0.95)
    assert interval is not None
    assert 4 < interval.low < 6 < interval.high < 9
    assert f"6.00 ± {interval.half:.2f}" in plain(table([row]))


def test_an_interval_whose_sides_differ_is_shown_from_end_to_end(run_dir: Path) -> None:
    row = only(run(run_dir, planned(), {"hf_sdpa/1/0": [0.2, 0.9, 0.4, 0.5]}))
    output = row.speed.output
    assert output is not None
    interval = output.interval(0.95)
    assert interval is not None
    shown = plain(table([row]))
    assert f"6.00 ({rate_text(interval.low)} to {rate_text(interval.high)})" in shown
    assert "±" not in shown


def test_repeats_that_differ_are_not_hidden_behind_many_even_batches(run_dir: Path) -> None:
    times_s = {"hf_sdpa/1/0": [0.5] * 8, "hf_sdpa/1/1": [1.0] * 8}
    row = only(run(run_dir, planned(2), times_s))
    assert row.rates == pytest.approx({0: 6.0, 1: 3.0})
    assert "4.00 (n=2)" in plain(table([row]))


def test_of_several_repeats_they_are_the_units(run_dir: Path) -> None:
    times_s = {f"hf_sdpa/1/{n}": [0.5 + 0.01 * n] * 8 for n in range(3)}
    row = only(run(run_dir, planned(3, confidence=0.9), times_s))
    output = row.speed.output
    assert output is not None
    assert (row.speed.unit, output.units, row.confidence) == ("repeats", 3, 0.9)
    assert output.value == pytest.approx(72 / (8 * 1.53))
    assert "half of the 90 % interval" in plain(table([row]))


def test_parts_of_a_batch_that_was_cut_are_one_unit(run_dir: Path) -> None:
    plan = planned()
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for batch, name, wall_s in (("p-3.0", "a", 1.0), ("p-3.1.0", "b", 2.0), ("p-4", "c", 3.0)):
        one = record(name, point=point.id, batch=batch, incarnation="w0")
        figures = BatchStats(wall_s=wall_s, generated_tokens=3)
        journal.commit(point=point.id, batch=batch, incarnation="w0", records=[one], stats=figures)
    end(journal)
    assert only(RunView.load(run_dir)).speed.batches == {"3": (6, 3.0), "4": (3, 3.0)}


def overtaken(run_dir: Path, **measurement: Any) -> RunView:
    """A retry ran the one bad prompt of a batch again, alone and under the batch's own name."""
    plan = planned(**measurement)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    bad = Cause(cls="bad_prompt", message="x")
    for worker, names, error, wall_s in (("w0", "abc", bad, 100.0), ("w1", "c", None, 1.0)):
        launch(journal, plan.starts[0], worker)
        of_worker = {"point": point.id, "batch": "p-0", "incarnation": worker}
        records = [record(name, error=error if name == "c" else None, **of_worker) for name in names]
        figures = BatchStats(wall_s=wall_s, generated_tokens=3)
        journal.commit(point=point.id, batch="p-0", incarnation=worker, records=records, stats=figures)
    end(journal)
    return RunView.load(run_dir)


def test_what_a_retry_makes_of_a_batch_does_not_count_prompts_without_their_time(run_dir: Path) -> None:
    row = only(overtaken(run_dir))
    assert (row.outputs_ok, value(row.speed.output)) == (3, 3.0)


def test_a_batch_of_which_a_prompt_failed_is_not_paired_with_the_whole_one(run_dir: Path) -> None:
    """Both have batches 0, 1 and 2; of one method's last a prompt is missing."""
    plan = planned(methods=(HF, VLLM))
    journal = begin(run_dir, plan)
    bad = Cause(cls="bad_prompt", message="x")
    for worker, point in zip(("w0", "w1"), plan.points, strict=True):
        launch(journal, plan.starts[int(worker[1])], worker)
        for n in range(3):
            lost = bad if (worker, n) == ("w1", 2) else None
            values = {"point": point.id, "batch": f"p-{n}", "incarnation": worker}
            records = [record(name, error=lost if name == "b" else None, **values) for name in "ab"]
            figures = BatchStats(wall_s=0.5 + n, generated_tokens=6)
            journal.commit(point=point.id, batch=f"p-{n}", incarnation=worker, records=records, stats=figures)
        journal.emit(ended(point=point.id))
    end(journal)
    _, row = results(RunView.load(run_dir))["rows"]
    assert (row["speed_ratio_unit"], row["speed_ratio_paired"]) == ("batches", False)


# --- latencies ----------------------------------------------------------------


def test_times_between_tokens_are_pooled_over_all_tokens(run_dir: Path) -> None:
    view = run(run_dir, planned(), {"hf_sdpa/1/0": [1.0] * 3}, itl_s=[0.1, None, 0.3])
    itl = only(view).itl
    assert itl.count == 6
    assert (value(itl.median), itl.p99_s) == pytest.approx((0.2, 0.3))
    assert "| ITL | 200 ms | 200 ms |" in markdown(view)


def test_the_quantiles_are_over_prompts(run_dir: Path) -> None:
    plan = planned()
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for n, name in enumerate(NAMES):
        one = record(name, point=point.id, batch=f"p-{n}", incarnation="w0", latency_s=1.0 + n, ttft_s=0.5)
        journal.commit(point=point.id, batch=f"p-{n}", incarnation="w0", records=[one], stats=None)
    end(journal)
    latency = only(RunView.load(run_dir)).latency
    assert (value(latency.median), latency.p90_s, latency.p95_s) == pytest.approx((4.5, 7.3, 7.65))
    assert (latency.mean_s, latency.p99_s) == pytest.approx((4.5, 7.93))


# --- goodput ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({"slo_ttft_s": 0.1}, 4),
        ({"slo_ttft_s": 0.09}, 0),
        ({"slo_ttft_s": 0.1, "slo_tpot_s": 0.05}, 0),
        ({"slo_tpot_s": 0.11, "slo_latency_s": 0.3}, 4),
        ({"slo_latency_s": 0.29}, 0),
    ],
)
def test_goodput_counts_prompts_that_met_every_limit(run_dir: Path, slo: dict[str, Any], good: int) -> None:
    """Each has TTFT 0.1 s, latency 0.3 s, three tokens."""
    row = only(run(run_dir, planned(**slo), {"hf_sdpa/1/0": [0.5] * 4}))
    assert (row.speed.good, row.speed.met) == (good / 2.0, good / 4)


def test_a_lone_token_has_no_further_one_to_wait_for(run_dir: Path) -> None:
    lone = {"generated_tokens": 1, "token_ids": [5]}
    row = only(run(run_dir, planned(slo_tpot_s=0.001), {"hf_sdpa/1/0": [0.5] * 4}, **lone))
    assert row.speed.met == 1.0


def test_a_prompt_whose_batch_is_not_measured_is_not_one_that_missed_the_slo(run_dir: Path) -> None:
    """Of a batch that a retry overtook only what ran again has a time, and every prompt was in time."""
    view = overtaken(run_dir, slo_ttft_s=0.2)
    row = only(view)
    assert (row.outputs_ok, row.speed.good, row.speed.met) == (3, 1.0, 1.0)


def test_without_one_prompt_that_was_measured_or_failed_there_is_no_share(run_dir: Path) -> None:
    plan = planned(slo_ttft_s=0.2)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    end(journal)
    assert only(RunView.load(run_dir)).speed.met is None


def test_a_last_token_before_the_first_is_no_time_per_token(run_dir: Path) -> None:
    view = run(run_dir, planned(slo_tpot_s=1.0), {"hf_sdpa/1/0": [0.5] * 4}, ttft_s=0.3, latency_s=0.1)
    row = only(view)
    assert (row.tpot.count, row.speed.good, row.speed.unjudged) == (0, None, 4)


@pytest.mark.parametrize("wall_s", [0.0, 5e-324])
def test_a_batch_without_a_time_is_in_no_figure(run_dir: Path, wall_s: float) -> None:
    view = run(run_dir, planned(), {"hf_sdpa/1/0": [0.5, wall_s]})
    row = only(view)
    assert (value(row.speed.output), row.rates, row.flags["no_timing"]) == (6.0, {0: 6.0}, 1)
    json.dumps(results(view), allow_nan=False)
    lines = (json.loads(line) for line in exported(run_dir, "jsonl").splitlines())
    assert [line["batch_measured"] for line in lines] == [True, False]


def test_a_batch_that_may_have_been_stopped_meanwhile_has_no_times(run_dir: Path) -> None:
    plan = planned(slo_ttft_s=0.2)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for n, flags in enumerate(([], ["suspended"])):
        values: dict[str, Any] = {"point": point.id, "batch": f"p-{n}", "incarnation": "w0", "flags": flags}
        one = record(NAMES[n], **(values | ({"ttft_s": 600.0, "latency_s": 601.0} if flags else {})))
        figures = BatchStats(wall_s=601.0 if flags else 0.5, generated_tokens=3)
        journal.commit(point=point.id, batch=f"p-{n}", incarnation="w0", records=[one], stats=figures, flags=flags)
    journal.emit(ended(point=point.id))
    end(journal)
    row = only(RunView.load(run_dir))
    assert (row.outputs_ok, value(row.speed.output), row.speed.met) == (2, 6.0, 1.0)
    assert (row.ttft.count, row.latency.p99_s) == (1, 0.3)
    assert row.flags["suspended"] == 1


def test_a_limit_that_can_not_be_judged_gives_no_goodput(run_dir: Path) -> None:
    view = run(run_dir, planned(slo_ttft_s=0.1), {"hf_sdpa/1/0": [0.5] * 4}, ttft_s=None)
    assert only(view).speed.good is None
    (row,) = results(view)["rows"]
    assert row["goodput_requests_per_s"] is None
    assert row["reasons"]["slo_met_share"] == "of 4 outputs the engine does not tell a time that the SLO asks for"


def test_a_failed_prompt_is_not_good(run_dir: Path) -> None:
    plan = planned(slo_latency_s=9.0)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    bad = Cause(cls="bad_prompt", message="x")
    records = [record(n, point=point.id, batch="p-0", incarnation="w0", error=bad if n == "b" else None) for n in "ab"]
    figures = BatchStats(wall_s=2.0, generated_tokens=3)
    journal.commit(point=point.id, batch="p-0", incarnation="w0", records=records, stats=figures)
    end(journal)
    row = only(RunView.load(run_dir))
    assert (row.speed.good, row.speed.met) == (0.5, 0.5)


# --- beside the reference, and drift ------------------------------------------


def both(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Sequence[float]]:
    return {"vllm_fa/1/0": ours, "hf_sdpa/1/0": theirs}


def test_a_method_is_set_against_the_reference_batch_by_batch(run_dir: Path) -> None:
    times_s = [0.5, 1.0, 2.0, 4.0, 0.3]
    view = run(run_dir, planned(methods=(HF, VLLM)), both([one / 2 for one in times_s], times_s))
    hf, vllm = rows(view)
    assert hf.versus is not None
    assert vllm.versus is not None
    assert (hf.versus.reason, vllm.versus.reference) == (IS_REFERENCE, "hf_sdpa")
    ratio = vllm.versus.ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.paired, ratio.distinguishable(0.95)) == (True, True)
    assert "2.00" in plain(table([hf, vllm]))
    assert "~" not in plain(table([hf, vllm]))


def test_what_the_intervals_can_not_tell_apart_is_said_so(run_dir: Path) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM)), both([0.5, 0.6, 0.4, 0.5], [0.6, 0.4, 0.5, 0.52]))
    assert "1.01 ~" in plain(table(rows(view)))
    assert "~ not distinguishable from it at 95 %" in plain(table(rows(view)))
    assert results(view)["rows"][1]["distinguishable"] is False
    assert "not distinguishable from it at 95 %" in markdown(view)


def test_another_reference_can_be_chosen_and_a_lone_method_is_compared_with_nothing(run_dir: Path) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM), reference="vllm_fa"), both([0.5] * 3, [1.0] * 3))
    hf, vllm = rows(view)
    assert hf.versus is not None
    assert hf.versus.ratio is not None
    assert hf.versus.ratio.value == pytest.approx(0.5)
    assert "vs reference" in plain(table([hf, vllm]))
    assert "vs reference" not in plain(table([vllm]))


def test_a_reference_that_gave_nothing_leaves_no_ratio_and_says_why(run_dir: Path) -> None:
    view = run(run_dir, planned(methods=(HF, VLLM)), {"vllm_fa/1/0": [0.5] * 3})
    assert results(view)["rows"][1]["reasons"]["speed_ratio"] == "one of the two has no speed"


def drifting(repeats: int) -> Plan:
    plan = planned(repeats)
    last = SweepPoint("again", "hf_sdpa", plan.points[0].config, repeats, "drift")
    (start,) = plan.starts
    return replace(plan, starts=(start, replace(start, key="again", points=(last,))))


@pytest.mark.parametrize(
    ("repeats", "spread", "again_s", "verdict", "said"),
    [
        (1, 0.0, 0.5, "steady", ": no drift of more than 2.6 % could hide"),
        (4, 0.01, 0.5, "steady", ": no drift of more than 3.0 % could hide"),
        (1, 0.0, 0.52, "drifted", ": it drifted by -3.9 % (-6.3 % to -1.5 %)"),
        (1, 0.0, 0.9, "drifted", ": it drifted by -44.5 % (-45.9 % to -43.0 %)"),
        (4, 0.01, 0.9, "drifted", ": it drifted by -44.1 % (-45.3 % to -42.8 %)"),
        (4, 0.2, 0.5, "unknown", "can't tell whether it drifted: +14.9 %, and -23.1 % to +71.5 % could hide"),
        (2, 0.01, 0.9, "unknown", "can't tell whether it drifted: too few repeats or batches for an interval"),
    ],
)
def test_a_cell_measured_once_more_tells_of_drift_and_is_in_no_row(
    run_dir: Path, repeats: int, spread: float, again_s: float, verdict: str, said: str
) -> None:
    """`spread`: seconds that each repeat takes longer than the one before."""
    times_s = {f"hf_sdpa/1/{n}": [0.5 + spread * n, 0.5, 0.49, 0.51] for n in range(repeats)}
    view = run(run_dir, drifting(repeats), times_s | {"again": [again_s, again_s + 0.001, again_s, again_s + 0.001]})
    row = only(view)
    assert len(row.points) == repeats
    (line,) = (line for line in markdown(view).splitlines() if line.startswith("- drift: "))
    assert line.endswith(said)
    (drift,) = results(view)["drift"]
    assert drift["after_tokens_per_s"] == pytest.approx(12 / (4 * again_s + 0.002))
    assert drift["verdict"] == verdict
    far = verdict == "drifted" and again_s == 0.9
    assert any("measured once more at the end, it drifted" in one for one in row.warnings) == far


@pytest.mark.parametrize(
    ("outcome", "before", "said"),
    [
        (None, True, "not measured yet"),
        ("failed", True, "not measured"),
        ("ok", False, "can't tell whether it drifted: it has no speed before"),
    ],
)
def test_of_a_cell_that_was_not_measured_once_more_no_drift_is_told(
    run_dir: Path, outcome: OutcomeKind | None, before: bool, said: str
) -> None:
    plan = drifting(2)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for point in plan.starts[0].points if before else plan.starts[1].points:
        measure(journal, point, [0.5] * 4)
    if outcome == "failed":
        journal.emit(ended("failed", point="again"))
    end(journal)
    (drift,) = results(RunView.load(run_dir))["drift"]
    assert (drift["told"], drift["verdict"]) == (said, "unknown")


# --- outliers -----------------------------------------------------------------


def test_outliers_are_named_and_counted_in(run_dir: Path) -> None:
    view = run(run_dir, planned(), {"hf_sdpa/1/0": [0.5, 0.51, 0.49, 0.5, 0.52, 5.0]})
    row = only(view)
    assert [(one.batch, one.wall_s) for one in row.outliers] == [("5", 5.0)]
    assert value(row.speed.output) == pytest.approx(18 / 7.52)
    text = markdown(view)
    assert "1 of 6 batches outside Tukey's fences in time per token, in all figures" in text
    assert "batch 5 of repeat 1: 5 s for 3 tokens" in text


def test_a_batch_with_less_to_do_is_no_outlier(run_dir: Path) -> None:
    plan = planned()
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for n, tokens in enumerate((10, 10, 10, 10, 10, 2, 10)):
        one = record(
            NAMES[n],
            point=point.id,
            batch=f"p-{n}",
            incarnation="w0",
            generated_tokens=tokens,
            token_ids=[5] * tokens,
        )
        figures = BatchStats(wall_s=tokens * (0.1 + 0.001 * n), generated_tokens=tokens)
        journal.commit(point=point.id, batch=f"p-{n}", incarnation="w0", records=[one], stats=figures)
    end(journal)
    row = only(RunView.load(run_dir))
    assert (row.outliers, row.compared) == ((), 7)


# --- load, memory, counters ---------------------------------------------------


def test_the_parts_of_a_load_are_means_over_workers_that_tell_them(run_dir: Path) -> None:
    plan = planned(2)
    journal = begin(run_dir, plan)
    loads = (LoadTimes(import_s=2.0, weights_s=1.0, warmup_s=0.5, total_s=4.0), LoadTimes(weights_s=3.0, total_s=8.0))
    for point, load in zip(plan.points, loads, strict=True):
        launch(journal, plan.starts[0], f"w{point.repeat}", load=load)
        measure(journal, point, [0.5], worker=f"w{point.repeat}")
        warmup = BatchStats(wall_s=0.25, generated_tokens=3)
        journal.emit(WarmupDone(at=1.0, point=point.id, batch=f"{point.id}-w0", stats=warmup))
    end(journal)
    row = only(RunView.load(run_dir))
    assert row.load.parts == {
        "import_s": 2.0,
        "tokenizer_s": None,
        "weights_s": 2.0,
        "kv_cache_s": None,
        "compile_s": None,
        "warmup_s": 0.5,
        "total_s": 6.0,
    }
    assert (row.load.workers, row.load.warmup_batches_s) == (2, 0.25)


def test_loads_with_and_without_artefacts_are_told_apart(run_dir: Path) -> None:
    plan = planned(3)
    journal = begin(run_dir, plan)
    kinds: tuple[Literal["cold", "warm"], ...] = ("cold", "warm", "warm")
    for point, artefacts, total_s in zip(plan.points, kinds, (30.0, 9.0, 11.0), strict=True):
        worker = f"w{point.repeat}"
        launch(journal, plan.starts[0], worker, artefacts=artefacts, load=LoadTimes(total_s=total_s))
        measure(journal, point, [0.5], worker=worker)
    end(journal)
    row = only(RunView.load(run_dir))
    assert (row.load.cold_s, row.load.warm_s) == (30.0, 10.0)
    assert "30 s cold, 10 s warm" in plain(table([row]))
    assert results(RunView.load(run_dir))["rows"][0]["load_warm_s"] == 10.0


@pytest.mark.parametrize(("device", "peaks"), [("cpu", (None, 4 << 30)), ("0:GPU-1", (4 << 30, 1 << 20))])
def test_peaks_are_told_apart_by_where_the_memory_is(run_dir: Path, device: str, peaks: tuple[Any, Any]) -> None:
    plan = planned()
    journal = begin(run_dir, plan)
    told = MemoryUse(host_peak_rss_bytes=1 << 20, device_reserved_bytes=100, device_allocated_bytes=75)
    launch(journal, plan.starts[0], "w0", device="cpu" if device == "cpu" else "cuda", memory=told)
    measure(journal, plan.points[0], [0.5])
    release(journal, "w0", device=device, peak_bytes=4 << 30)
    end(journal)
    row = only(RunView.load(run_dir))
    assert (row.memory.device_peak, row.memory.host_peak) == peaks
    assert row.memory.fragmentation == 0.25


def test_counters_are_summed_over_measured_batches(run_dir: Path) -> None:
    extra = [
        {"drafts": 4.0, "draft_tokens": 12.0, "accepted_tokens": 6.0, "cached_tokens": 8.0, "unique_graphs": 2.0},
        {"drafts": 6.0, "draft_tokens": 18.0, "accepted_tokens": 9.0, "cached_tokens": 0.0, "unique_graphs": 5.0},
    ]
    buckets = [
        {"bucket_batch": 2.0, "bucket_length": 64.0, "bucket_fill": 0.5, "expert_0_1": 30.0},
        {"bucket_batch": 4.0, "bucket_length": 64.0, "bucket_fill": 1.0, "expert_0_1": 10.0, "expert_0_2": 40.0},
    ]
    told = [one | bucket for one, bucket in zip(extra, buckets, strict=True)]
    view = run(run_dir, planned(), {"hf_sdpa/1/0": [0.5, 0.5]}, extra=told)
    counters = only(view).counters
    assert (counters.acceptance, counters.accepted_length) == (0.5, 2.5)
    assert (counters.told("unique_graphs"), counters.told("cached_tokens")) == (5.0, 8.0)
    assert counters.told("num_preemptions") is None
    assert counters.bucket_fill == pytest.approx((0.5 * 128 + 256) / 384)
    assert counters.experts == {0: {1: 40.0, 2: 40.0}}
    assert counters.imbalance == 1.0
    text = markdown(view)
    assert "2 × 64: 1 batch, 4 × 64: 1 batch" in text
    assert "| 50 % | 2.50 |" in text


def test_engines_without_counters_have_no_such_part(run_dir: Path) -> None:
    assert "## Counters" not in markdown(run(run_dir, planned(), {"hf_sdpa/1/0": [0.5]}))


# --- scoring ------------------------------------------------------------------


def test_a_task_that_generates_nothing_has_no_output_rate_and_is_compared_by_all_tokens(run_dir: Path) -> None:
    plan = planned(methods=(HF, VLLM))
    scoring = msgspec.convert({**msgspec.to_builtins(plan.points[0].config), "task": "score"}, BackendConfig)
    starts = tuple(
        replace(start, points=tuple(replace(p, config=replace(scoring, method=p.config.method)) for p in start.points))
        for start in plan.starts
    )
    scored = {"generated_tokens": 0, "token_ids": [], "finish_reason": "scored", "ttft_s": None}
    view = run(run_dir, replace(plan, starts=starts), both([0.5] * 3, [1.0] * 3), **scored)
    row = results(view)["rows"][1]
    assert row["output_tokens_per_s"] is None
    assert row["reasons"]["output_tokens_per_s"] == "the task is to score: nothing is generated"
    assert row["total_tokens_per_s"] == pytest.approx(3 / 0.5)
    assert row["speed_ratio"] == pytest.approx(2.0)


# --- for other programs -------------------------------------------------------


def test_every_null_has_its_reason_and_every_reason_a_null(run_dir: Path) -> None:
    view = run(run_dir, planned(2, methods=(HF, VLLM)), {"hf_sdpa/1/0": [0.5] * 4, "hf_sdpa/1/1": [0.4] * 4})
    for row in results(view)["rows"]:
        nulls = {name for name, one in row.items() if one is None}
        assert nulls == set(row["reasons"])
        assert all(row["reasons"].values())


def test_the_report_is_json_where_asked(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(run_dir, planned(), {"hf_sdpa/1/0": [0.5] * 4})
    assert cli.run(["report", str(run_dir), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["reference"], told["asked"]["measurement"]["confidence"], told["complete"]) == ("hf_sdpa", 0.95, False)
    assert told["rows"][0]["output_tokens_per_s"] == 6.0
    assert told["rows"][0]["units"] == {"of": "batches", "count": 4}


@pytest.mark.parametrize(
    ("rate", "half", "text"),
    [
        (1234.56, None, "1,235"),
        (49.42, 0.617, "49.4 ± 0.6"),
        (1.0, None, "1.00"),
        (0.9876, 0.0123, "0.988 ± 0.012"),
        (0.00004, None, "0.00004"),
        (13.14, 0.04, "13.14 ± 0.04"),
        (1462.3, 1e-9, "1,462 ± 0"),
        (0.0, None, "0.000"),
    ],
)
def test_small_rates_and_small_intervals_have_more_digits(rate: float, half: float | None, text: str) -> None:
    assert rate_text(rate, half) == text


def test_a_level_is_a_percentage() -> None:
    assert [percent_text(share) for share in (0.95, 0.999, 0.5)] == ["95 %", "99.9 %", "50 %"]


def test_nearly_all_is_not_called_all_and_nearly_none_not_none() -> None:
    shares = {1.0: "100 %", 0.9999999: "99.99999 %", 0.0: "0 %", 1e-9: "1e-07 %"}
    assert {share: percent_text(share) for share in shares} == shares


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.9994, "999 ms"), (0.99951, "1 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (0.0, "0 ms")]
)
def test_times_at_the_edge_of_a_unit_keep_their_digits(value_s: float, text: str) -> None:
    assert seconds_text(value_s) == text
