"""Rows that hold more, or less, than their name says: each tells it, none looks like another, and unknowns say why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from orchestrator.events import BatchLost
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause
from orchestrator.paired.markdown import markdown as pair_markdown
from orchestrator.paired.pair import compare
from orchestrator.paired.review import review
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.report import RunView, markdown, results, rows, table
from orchestrator.view.losses import MORE
from orchestrator.view.summary import labels, varying
from orchestrator.view.wording import setting_text
from protocol.records import EngineSettings, LoadTimes
from protocol.specs import BackendConfig, CompileMode, Dtype, InputMode, MethodSpec, NgramSpec, Task
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, record, release, run_point, stats
from tests.unit.test_metrics import NAMES, both, drifting, measure, planned, run
from tests.unit.test_report import plain
from tests.unit.test_whole_report import measured, section


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


# --- rows that lost prompts which others have ---------------------------------


def losing(run_dir: Path, lost: dict[str, int], prompts: int = 4, again: bool = False) -> RunView:
    """Of each repeat so many of the first prompts failed, by method; with `again` they have an output by now."""
    plan = replace(a_plan([HF, VLLM], [1], repeats=3), prompt_ids=[f"p{n}" for n in range(prompts)])
    journal = begin(run_dir, plan)
    for start in plan.starts:
        launch(journal, start, worker := f"w-{start.key}")
        for point in start.points:
            bad = {prompt: Cause(cls="bad_prompt", message="x") for prompt in plan.prompt_ids[: lost[point.method]]}
            commit(journal, point, worker, bad, plan.prompt_ids)
            if again:
                commit(journal, point, worker, {}, list(bad))
            journal.emit(ended("partial" if bad and not again else "ok", point=point.id))
        release(journal, worker)
    end(journal)
    return RunView.load(run_dir)


def commit(journal: Journal, point: SweepPoint, worker: str, bad: dict[str, Cause], names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        told: dict[str, Any] = {"error": bad[name], "token_ids": [], "generated_tokens": 0} if name in bad else {}
        about: dict[str, Any] = {"point": point.id, "batch": f"p-{number}", "incarnation": worker}
        line = record(name, method=point.method, repeat=point.repeat, **about, **told)
        journal.commit(**about, records=[line], stats=stats(0.2 if name in bad else 0.5, 3))


@pytest.mark.parametrize(
    ("lost", "prompts", "again", "marked"),
    [
        ({"hf_sdpa": 0, "vllm_fa": 2}, 4, False, ["vllm_fa"]),
        ({"hf_sdpa": 2, "vllm_fa": 0}, 4, False, ["hf_sdpa"]),
        ({"hf_sdpa": 1, "vllm_fa": 2}, 4, False, ["vllm_fa"]),
        ({"hf_sdpa": 2, "vllm_fa": 2}, 4, False, []),
        ({"hf_sdpa": 0, "vllm_fa": 1}, 200, False, []),
        ({"hf_sdpa": 0, "vllm_fa": 2}, 4, True, []),
        ({"hf_sdpa": 0, "vllm_fa": 0}, 4, False, []),
    ],
)
def test_a_speed_of_fewer_prompts_is_no_speed_beside_one_of_all(
    run_dir: Path, lost: dict[str, int], prompts: int, again: bool, marked: list[str]
) -> None:
    """Long prompts are lost first. What all methods lost alike, or one of many prompts, marks nobody."""
    view = losing(run_dir, lost, prompts, again)
    found = rows(view)
    assert [row.method for row in found if MORE in row.marks] == marked
    beside = next(row.versus for row in found if row.method == "vllm_fa")
    assert beside is not None
    assert bool(beside.doubt) == bool(marked)
    words = " ".join(results(view)["summary"])
    assert ("only one method has a speed that may be compared" in words) == bool(marked)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_who_is_still_at_it_is_not_said_to_have_lost_more(run_dir: Path, done: int) -> None:
    """The first prompt fails with both, and is a larger part of what one of them has by now."""
    plan = replace(a_plan([HF, VLLM], [1], repeats=1), prompt_ids=[f"p{n}" for n in range(4)])
    journal = begin(run_dir, plan)
    bad = {"p0": Cause(cls="bad_prompt", message="x")}
    for start, count in zip(plan.starts, (4, done), strict=True):
        launch(journal, start, worker := f"w-{start.key}")
        (point,) = start.points
        commit(journal, point, worker, bad, plan.prompt_ids[:count])
        if count == 4:
            journal.emit(ended("partial", point=point.id))
    assert [row.marks for row in rows(RunView.load(run_dir)) if MORE in row.marks] == []


def test_what_two_runs_lost_is_set_against_each_other_too(tmp_path: Path) -> None:
    for name, count in (("x", 0), ("y", 2), ("z", 2)):
        losing(tmp_path / name, {"hf_sdpa": 0, "vllm_fa": count})
    for first, second, doubt in (("x", "y", True), ("y", "z", False)):
        (change,) = (one for one in compare(tmp_path / first, tmp_path / second).changes if "vllm_fa" in one.subject)
        assert bool(change.doubt) == doubt


# --- rows that hold more than they say ----------------------------------------


@pytest.mark.parametrize(
    ("prompts", "size", "batches", "note"),
    [
        (8, 4, "4 of 4", ""),
        (8, 3, "4 of 3, 2 of 2", "batches of 3 and 2"),
        (5, 4, "2 of 4, 2 of 1", "batches of 4 and 1"),
        (4, 1, "8 of 1", ""),
    ],
)
def test_a_row_tells_of_batches_that_are_not_of_its_size(
    run_dir: Path, prompts: int, size: int, batches: str, note: str
) -> None:
    view = measured(run_dir, replace(a_plan([HF], [size], repeats=2), prompt_ids=NAMES[:prompts]))
    (row,) = rows(view)
    assert row.outcome_text == (f"ok ({note})" if note else "ok")
    shown, text, (told,) = plain(table([row])), markdown(view), results(view)["rows"]
    for place in (shown, section(text, "Results")):
        assert ("not all had batch_size prompts, and tokens/s is over all of them" in place) == bool(note)
        assert note in place
    assert f"| {batches} | {2 * 3 * prompts} | {2 * 3 * prompts} |" in section(text, "Throughput")
    assert ", ".join(f"{one['count']} of {one['prompts']}" for one in told["batches"]) == batches
    assert (told["notes"], told["prompt_tokens"], told["generated_tokens"]) == (
        [note] if note else [],
        2 * 3 * prompts,
        2 * 3 * prompts,
    )


def test_a_row_without_a_batch_of_its_size_says_so(run_dir: Path) -> None:
    view = measured(run_dir, a_plan([HF], [4]))
    (row,) = rows(view)
    assert (row.outcome_text, row.marks) == ("ok (batches of 3)", ())
    for place in (plain(table([row])), section(markdown(view), "Results")):
        assert "none had batch_size prompts, and tokens/s is over those that ran" in place
        assert "not all had" not in place


@pytest.mark.parametrize("split", ["hf_sdpa", "vllm_fa", None])
def test_a_row_whose_batches_were_split_is_marked_and_its_ratio_decides_nothing(run_dir: Path, split: str) -> None:
    """The reference's too. A last batch that is merely smaller is no split."""
    plan = planned(methods=(HF, VLLM))
    journal = begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        launch(journal, start, f"w{number}")
        flags = ["split_batch"] if start.config.method.name == split else []
        for point in start.points:
            measure(journal, point, [0.5 + number, 0.51 + number, 0.49 + number], worker=f"w{number}", flags=flags)
    end(journal)
    view = RunView.load(run_dir)
    _, told = results(view)["rows"]
    assert told["distinguishable"] is (None if split else True)
    assert ("distinguishable" in told["reasons"]) == bool(split)
    mark = "ran in smaller batches than asked: 3 outputs of batches that were split as they failed"
    assert [row.marks for row in rows(view)] == [(mark,) if row.method == split else () for row in rows(view)]
    shown = plain(table(rows(view)))
    assert ("? can't tell: one of the two ran in smaller batches than asked" in shown) == bool(split)
    assert (f"{split} *" in shown) == bool(split)
    found, doubt = compare(run_dir, run_dir), "one ran in smaller batches than asked"
    assert [pair.speed.doubt == doubt for pair in found.pairs] == [name == split for name in ("hf_sdpa", "vllm_fa")]
    assert "\n".join(pair_markdown(review([found], 0.05))).count(f"can't tell: {doubt}") == bool(split)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_unfinished_row_tells_how_many_of_its_repeats_are_done(run_dir: Path, done: int) -> None:
    plan = planned(3)
    view = run(run_dir, plan, {point.id: [0.5] * 8 for point in plan.points[:done]})
    (row,) = rows(view)
    assert row.outcome_text == (f"unfinished ({done} of 3 repeats done)" if done else "unfinished")


@pytest.mark.parametrize(("exit_code", "said"), [(0, "in one go"), (1, "in one go"), (143, "not resumed")])
def test_only_a_run_that_finished_did_so_in_one_go(run_dir: Path, exit_code: int, said: str) -> None:
    end(begin(run_dir, planned()), exit_code)
    assert f"with Airlock 0.1.0; {said}\n" in markdown(RunView.load(run_dir))


@pytest.mark.parametrize("flags", [[], ["no_warmup"]])
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_row_that_was_measured_without_warm_up_is_marked(run_dir: Path, warmup: int, flags: list[str]) -> None:
    view = run(run_dir, replace(planned(), warmup=warmup), {"hf_sdpa/1/0": [0.5] * 4}, flags=flags)
    (row,) = rows(view)
    wanted = [] if warmup else ["no warm-up"]
    wanted += ["4 outputs without warm-up"] if flags else []
    assert list(row.notes) == results(view)["rows"][0]["notes"] == wanted
    assert results(view)["rows"][0]["warmed_up"] == (not wanted)
    for place in (plain(table([row])), section(markdown(view), "Results")):
        assert all(note in place for note in wanted)
        assert ("what only the first batch of a worker pays for is in the figures" in place) == (not warmup)


def test_cold_and_warm_loads_are_told_apart_in_the_results(run_dir: Path) -> None:
    plan = planned(2)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0", artefacts="cold", load=LoadTimes(total_s=30.0))
    launch(journal, plan.starts[0], "w1", artefacts="warm", load=LoadTimes(total_s=10.0))
    for point, worker in zip(plan.points, ("w0", "w1"), strict=True):
        run_point(journal, point, worker, prompts=NAMES)
    end(journal)
    assert "| 30 s cold, 10 s warm |" in section(markdown(RunView.load(run_dir)), "Results")


def scoring(plan: Plan, methods: tuple[str, ...]) -> Plan:
    """The points of these methods score."""

    def point(one: SweepPoint) -> SweepPoint:
        return replace(one, config=replace(one.config, task="score")) if one.method in methods else one

    def start(one: WorkerStart) -> WorkerStart:
        return replace(one, points=tuple(map(point, one.points)))

    return replace(plan, starts=tuple(map(start, plan.starts)))


SCORED = {"generated_tokens": 0, "token_ids": [], "finish_reason": "scored", "ttft_s": None}


def test_the_speed_of_a_run_that_scores_says_which_tokens_it_is_of(run_dir: Path) -> None:
    plan = scoring(planned(methods=(HF, VLLM), drift=True), ("hf_sdpa", "vllm_fa"))
    view = run(run_dir, plan, both([0.5] * 3, [1.0] * 3), **SCORED)
    text = markdown(view)
    assert "| method | batch_size | total tokens/s | interval | vs reference |" in text
    assert "vs reference: total tokens/s ÷ those of hf_sdpa" in text
    assert "| total tokens/s by repeat |" in text
    assert "total tokens/s: of prompt and continuation, as nothing is generated" in text
    assert "6.00" in plain(table(rows(view)))
    assert {row["compared_by"] for row in results(view)["rows"]} == {"total_tokens_per_s"}


def test_of_a_run_that_does_both_each_says_its_own(run_dir: Path) -> None:
    plan = scoring(planned(methods=(HF, VLLM)), ("vllm_fa",))
    view = run(run_dir, plan, {"hf_sdpa/1/0": [0.5] * 3})
    text = markdown(view)
    assert "| tokens/s by repeat (output; where the task is to score: total) |" in text
    assert "tokens/s where the task is to score: of prompt and continuation" in plain(table(rows(view)))
    assert [row["compared_by"] for row in results(view)["rows"]] == ["output_tokens_per_s", "total_tokens_per_s"]


def test_a_cell_measured_again_for_drift_is_no_output_of_its_row(run_dir: Path) -> None:
    plan = drifting(2)
    view = run(run_dir, plan, {point.id: [0.5] * 4 for point in plan.points})
    (row,) = view.agreements.rows
    assert (row.outputs, row.points) == (4, ("hf_sdpa/1/0", "hf_sdpa/1/1"))
    assert [(one.over, one.outputs) for one in view.agreements.consistency] == [("repeats", 4)]


# --- no two rows look alike ---------------------------------------------------

VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": get_args(Dtype),
    "input_mode": get_args(InputMode),
    "task": get_args(Task),
    "torch_compile_mode": (None, *get_args(CompileMode)),
    "device": ("cpu", "cuda"),
    "model_path": ("/a", "/b"),
    "stop_token_ids": ((), (1,), (1, 2)),
    "bucket_batch_sizes": (None, (1,), (1, 2)),
    "bucket_lengths": (None, (64,), (64, 128)),
}
SHARES = (0.1, 0.1234567, 0.12345678, 1.0)


def values_of(name: str, default: Any) -> tuple[Any, ...]:
    """Some that a field of BackendConfig may have and that must not look alike."""
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return (False, True)
    if isinstance(default, float) or name in ("gpu_memory_utilization", "sglang_mem_fraction_static"):
        return SHARES if default is not None else (None, *SHARES)
    return (1, 2, 1000001) if default is not None else (None, 1, 1000001)


SETTINGS = [(one.name, values_of(one.name, one.default)) for one in fields(BackendConfig) if one.name != "method"]


@pytest.mark.parametrize(("name", "values"), SETTINGS, ids=[name for name, _ in SETTINGS])
def test_points_that_differ_in_one_setting_have_labels_that_differ(name: str, values: tuple[Any, ...]) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (start,) = plan.starts
    points = tuple(
        SweepPoint(f"p{n}", HF.name, replace(start.config, **{name: value}), 0) for n, value in enumerate(values)
    )
    plan = replace(plan, starts=(replace(start, points=points),))
    assert name in varying(plan)
    assert len(set(labels(plan).values())) == len(values), labels(plan)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_numbers_that_differ_do_not_look_alike(one: float, other: float) -> None:
    assert (setting_text(one) == setting_text(other)) == (one == other)


# --- the reason is the method's own -------------------------------------------


@pytest.mark.parametrize(
    ("method", "metadata", "name", "why"),
    [
        (HF, {"compiled": False}, "load_compile_s", "nothing is compiled, and no graphs are captured"),
        (HF, {"compiled": False}, "load_kv_cache_s", "each batch makes a KV cache of its own"),
        (HF, {"compiled": False}, "kv_cache_bytes", "each batch makes a KV cache of its own"),
        (HF, {"compiled": False}, "load_warmup_s", "Transformers runs no passes of its own before it is ready"),
        (HF, {"compiled": False}, "recompiles", "nothing is compiled"),
        (HF, {}, "drafts", "the method does not speculate"),
        (HF, {}, "draft_acceptance", "the method does not speculate"),
        (HF, {}, "bucket_fill", "the method has no rocket buckets"),
        (HF, {}, "cached_tokens", "prefix caching is off"),
        (HF, {}, "expert_tokens", "not asked for (expert_load)"),
        (HF, {}, "energy_j", "no GPU is used"),
        (HF, {}, "graphs_bytes", "there are no CUDA graphs on a CPU"),
        (HF, {}, "load_cold_s", "no compiled artefacts are kept for this method: all its loads are alike"),
        (replace(HF, compile="default"), {}, "load_compile_s", "compiled in the first batches, not in the load"),
        (
            replace(HF, attention="flex_attention"),
            {"compiled": False},
            "load_compile_s",
            "compiled in the first batches, not in the load",
        ),
        (replace(HF, ngram=NgramSpec(1, 3, 5)), {}, "drafts", "the engine does not count drafts"),
        (replace(HF, rocket_bucket=True), {}, "load_kv_cache_s", "it is inside load_warmup_s"),
        (replace(HF, rocket_bucket=True), {}, "bucket_fill", "no batch was padded to a bucket"),
        (replace(VLLM, eager=True), {"compiled": False}, "load_compile_s", "nothing is compiled"),
        (VLLM, {"compiled": None}, "load_compile_s", "the engine does not tell; it is inside load_total_s"),
        (
            VLLM,
            {"compiled": False, "settings": EngineSettings(cuda_graphs="full")},
            "load_compile_s",
            "the engine does not tell; it is inside load_total_s",
        ),
        (VLLM, {"load": LoadTimes(compile_s=2.0, total_s=3.0)}, "load_kv_cache_s", "it is inside load_compile_s"),
        (VLLM, {"load": LoadTimes(compile_s=2.0, total_s=3.0)}, "load_warmup_s", "it is inside load_compile_s"),
        (VLLM, {"load": LoadTimes(kv_cache_s=2.0, total_s=3.0)}, "load_warmup_s", "it is inside load_kv_cache_s"),
    ],
)
def test_why_a_figure_is_not_known_fits_the_method(
    run_dir: Path, method: MethodSpec, metadata: dict[str, Any], name: str, why: str
) -> None:
    plan = a_plan([method], [1], repeats=1)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0", **metadata)
    run_point(journal, plan.points[0], "w0")
    end(journal)
    (row,) = results(RunView.load(run_dir))["rows"]
    assert why in row["reasons"][name]


LOST = Cause(cls="engine_error", message="x")


@pytest.mark.parametrize("batch", ["p-w0", "p-0"])
def test_warm_up_batches_that_failed_are_told_from_none(run_dir: Path, batch: str) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    journal.emit(BatchLost(at=1.0, point=point.id, batch=batch, incarnation="w0", prompts=["a"], cause=LOST))
    run_point(journal, point, "w0")
    end(journal)
    (row,) = results(RunView.load(run_dir))["rows"]
    why = {"p-w0": "all its warm-up batches failed", "p-0": "no warm-up batch was run"}
    assert row["reasons"]["warmup_batch_s"] == why[batch]


@pytest.mark.parametrize(
    ("ran", "proof", "name", "why"),
    [
        (False, {}, "returned", "no worker was loaded; any that was started is under Teardown"),
        (True, None, "returned", "the teardown of its workers is not in the journal"),
        (True, {"held_bytes": None}, "returned_bytes", "its memory could not be read"),
    ],
)
def test_why_it_is_not_known_what_came_back(
    run_dir: Path, ran: bool, proof: dict[str, Any] | None, name: str, why: str
) -> None:
    """The worker of a method that died before it was ready has a teardown, but ran none of its points."""
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    if ran:
        run_point(journal, plan.points[0], "w0")
    if proof is not None:
        release(journal, "w0", **proof)
    end(journal)
    (row,) = results(RunView.load(run_dir))["rows"]
    assert row["reasons"][name] == why


def test_without_a_worker_nothing_is_inside_a_load(run_dir: Path) -> None:
    end(begin(run_dir, a_plan([HF], [1], repeats=1)))
    (row,) = results(RunView.load(run_dir))["rows"]
    assert {why for name, why in row["reasons"].items() if name.startswith("load_")} == {"no worker was loaded"}
    of_workers = ("weights_bytes", "peak_bytes", "host_peak_bytes", "steps", "unique_graphs")
    assert {row["reasons"][name] for name in of_workers} == {"no worker was loaded"}
