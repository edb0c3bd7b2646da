"""What the report tells beside the figures: what was asked, on which row what is odd, and all of it as JSON too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields, replace

from orchestrator.definition.measurement import Measurement
from orchestrator.events import BatchLost, SlotQuarantined, SurvivorsReaped, Waited
from orchestrator.judge.fairness import lint
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan
from orchestrator.report import RunView, markdown, results
from orchestrator.view.failures import LISTED_CAUSES
from orchestrator.view.markup import cell
from orchestrator.view.whatran import what_ran
from orchestrator.view.wording import bytes_text
from protocol.records import EngineSettings
from protocol.specs import BackendConfig, NgramSpec
from tests.unit.rundirs import (
    HF,
    VLLM,
    a_plan,
    begin,
    end,
    ended,
    finished_run,
    launch,
    record,
    release,
    run_point,
    run_start,
)
from tests.unit.test_memory_view import sized
from tests.unit.test_origins import FOUND
from tests.unit.test_report import OOM, broken_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def section(text: str, title: str) -> str:
    """Of a report."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def measured(run_dir: Path, plan: Plan) -> RunView:
    """All points of the plan, in batches of their size."""
    journal = begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        run_start(journal, start, f"w{number}", prompts=plan.prompt_ids)
    end(journal)
    return RunView.load(run_dir)


# --- what was asked -----------------------------------------------------------


def test_the_report_has_every_setting_and_the_slo(run_dir: Path) -> None:
    plan = replace(a_plan(), measurement=Measurement(slo_ttft_s=0.5, slo_latency_s=0.1234567))
    view = measured(run_dir, plan)
    text, asked = markdown(view), results(view)["asked"]
    told = section(text, "What was asked")
    names = {one.name for one in fields(BackendConfig)} - {"method", "model_path"}
    assert set(asked["settings"]) == names
    for name in names | {one.name for one in fields(Measurement)}:
        assert f"\n| {name} |" in told, name
    assert "| batch_size | 1, 2 | sampling |" in told
    assert asked["settings"]["batch_size"] == [1, 2]
    assert (asked["warmup"], asked["measurement"]["slo_ttft_s"]) == (1, 0.5)
    assert "- sampling: batch_size 1, 2; max_new_tokens 32; temperature 0; top_p 1; seed 0; ignore_eos off" in text
    goodput = "Goodput: of prompts with TTFT at most 0.5 s, end to end at most 0.1234567 s."
    assert goodput in section(text, "Throughput")


def test_what_the_file_left_open_is_not_told_as_asked(run_dir: Path) -> None:
    plan = replace(a_plan(), chosen={"max_new_tokens": 32})
    view = measured(run_dir, plan)
    told = section(markdown(view), "What was asked")
    assert "| max_new_tokens | 32 (chosen) | sampling |" in told
    assert "| batch_size | 1, 2 | sampling |" in told
    assert results(view)["asked"]["chosen"] == {"max_new_tokens": 32}


@pytest.mark.parametrize(
    ("tensor", "pipeline", "told"),
    [(3, 1, "3 (tensor)"), (2, 2, "2 × 2 (tensor × pipeline)"), (1, 1, "1"), (None, None, "–")],
)
def test_what_ran_tells_the_ranks(run_dir: Path, tensor: int | None, pipeline: int | None, told: str) -> None:
    plan, cut = a_plan(), EngineSettings(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0", settings=cut)
    release(journal, "w0")
    end(journal)
    head, _, row, *_ = what_ran(RunView.load(run_dir))
    cells = dict(zip(head.split("|"), row.split("|"), strict=True))
    assert cells[" ranks "].strip() == told


def test_without_an_slo_the_report_says_so(run_dir: Path) -> None:
    assert "Goodput: no SLO is set." in markdown(measured(run_dir, a_plan()))


def test_the_report_says_what_each_method_is_and_keeps_its_secrets(run_dir: Path) -> None:
    method = replace(VLLM, ngram=NgramSpec(1, 3, 5), eager=True, env_vars={"MY_KEY": "hunter2", "OMP_NUM_THREADS": "2"})
    view = measured(run_dir, a_plan([HF, method]))
    told = section(markdown(view), "What was asked")
    assert "| hf_sdpa | hf | hf-cpu | attention=sdpa |" in told
    assert 'eager=on ngram={"min_n":1,"max_n":3,"draft_tokens":5} engine_args={"x":\\[1,2\\]}' in told
    assert "hunter2" not in told
    assert "OMP_NUM_THREADS" in told
    hf, vllm = results(view)["asked"]["methods"]
    assert hf == {"name": "hf_sdpa", "engine": "hf", "environment": "hf-cpu", "attention": "sdpa"}
    assert vllm["ngram"] == {"min_n": 1, "max_n": 3, "draft_tokens": 5}
    assert vllm["env_vars"] == {"MY_KEY": "(set; not recorded)", "OMP_NUM_THREADS": "2"}


# --- fairness: before and after -----------------------------------------------


def test_what_was_unfair_in_what_was_asked_stands_before_what_ran(run_dir: Path) -> None:
    threads = replace(VLLM, env_vars={"OMP_NUM_THREADS": "1"})
    plan = a_plan([HF, threads])
    journal = begin(run_dir, plan)
    for number, (start, dtype) in enumerate(zip(plan.starts, ("float32", "bfloat16"), strict=True)):
        launch(journal, start, f"w{number}", dtype=dtype)
        for point in start.points:
            run_point(journal, point, f"w{number}")
    end(journal)
    view = RunView.load(run_dir)
    asked = lint([point.config for point in plan.points])
    told, (before, after) = section(markdown(view), "Fairness"), results(view)["fairness"].values()
    assert [one["text"] for one in before] == [one.text for one in asked]
    assert any("OMP_NUM_THREADS" in one.text for one in asked)
    assert [one["what"] for one in after if one["level"] == "warning"] == ["dtype", "KV cache dtype"]
    first, _, second = told.partition("After, in what the engines say they ran with:")
    assert "Before, in what was asked of the methods:" in first
    assert all(cell(one["text"]) in first for one in before)
    assert all(cell(one["text"]) in second for one in after)


def test_a_run_without_any_difference_says_so(run_dir: Path) -> None:
    told = section(markdown(measured(run_dir, a_plan([HF]))), "Fairness")
    assert told.count("- no difference that matters") == 2


# --- all that is told, in both forms ------------------------------------------


def eventful(run_dir: Path) -> RunView:
    """A run that met everything that the report has a place for."""
    plan = replace(a_plan(sizes=[2]), notes=("a note of the plan",))
    journal = begin(run_dir, plan)
    hf, vllm = plan.starts
    journal.emit(replace(FOUND, notes=["Airlock: no git here"]))
    journal.emit(replace(FOUND, life=2, kernel="Linux 7.0", notes=["Airlock: no git here", "driver: no NVML"]))
    journal.emit(SurvivorsReaped(at=1.0, processes=["12 EngineCore"]))
    journal.emit(Waited(at=1.0, what="room", wait_s=3.0, over=True, reason="disk was full"))
    launch(journal, hf, "w0", notes=["ran eager after 8 shapes"], patches=["torchao blocked"])
    run_point(journal, hf.points[0], "w0")
    journal.emit(ended(point=hf.points[0].id))
    journal.emit(ended("failed", point=hf.points[1].id, cause=OOM))
    release(journal, "w0", cause=OOM)
    launch(journal, vllm, "w1", dtype="bfloat16", fingerprint="f2")
    point = vllm.points[0]
    bad = record("a", point=point.id, batch="b0", incarnation="w1", error=Cause(cls="bad_prompt", message="too long"))
    journal.commit(point=point.id, batch="b0", incarnation="w1", records=[bad], stats=None)
    for number in range(LISTED_CAUSES + 2):
        cause = Cause(cls="engine_crash", message=f"signal {number}")
        journal.emit(BatchLost(at=1.0, point=point.id, batch="b9", incarnation="w1", prompts=["b"], cause=cause))
    release(journal, "w1")
    journal.emit(SlotQuarantined(at=1.0, slot="slot0", incarnation="w1", reason="held"))
    end(journal, 1)
    return RunView.load(run_dir)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


TOLD = (
    *("a note of the plan", "ran eager after 8 shapes", "torchao blocked"),
    *("Airlock: no git here", "driver: no NVML", "Linux 7.0"),
    *("12 EngineCore", "disk was full", "held"),
    *("CUDA out of memory", "first line of it", "too long", "signal 0"),
    *("dtype: hf_sdpa float32; vllm_fa bfloat16", "hf-cpu", "f2", "logs/w1.log"),
)


@pytest.mark.parametrize("what", TOLD)
def test_what_the_report_tells_is_in_both_of_its_forms(run_dir: Path, what: str) -> None:
    view = eventful(run_dir)
    assert cell(what) in markdown(view)
    told = json.loads(json.dumps(results(view), allow_nan=False))
    assert any(what in one for one in strings(told))


def test_the_json_has_each_part_of_the_report_by_name(run_dir: Path) -> None:
    view = eventful(run_dir)
    told = results(view)
    assert (told["exit_code"], told["complete"], told["methods_ran"]) == (1, False, ["hf_sdpa", "vllm_fa"])
    assert [one["missing"] for one in told["open_points"]] == [3, 2, 3]
    assert told["provenance_changes"] == [
        {"start": 2, "what": "kernel", "before": "Linux 6.1", "after": "Linux 7.0"},
    ]
    assert told["agreement"]["reference"] == "hf_sdpa"
    assert [row["method"] for row in told["agreement"]["rows"]] == ["hf_sdpa", "vllm_fa"]
    assert {"of": "hf_sdpa", "note": "torchao blocked"} in told["notes"]
    failed, lost = told["failures"]
    assert (failed["outcome"], failed["cause"]["cls"]) == ("failed", "oom")
    assert (lost["prompts"][0]["prompt"], len(lost["batches_lost"])) == ("a", LISTED_CAUSES + 2)
    worker = told["workers"][1]
    assert (worker["ready"]["dtype"], worker["released"]["reclaim"]["rung"]) == ("bfloat16", "shutdown")
    assert worker["points"] == ["vllm_fa/2/0"]
    assert [one["environment"] for one in told["environments"]] == ["hf-cpu", "vllm-cpu"]


def test_what_a_list_leaves_out_is_said(run_dir: Path) -> None:
    told = section(markdown(eventful(run_dir)), "Failures")
    assert told.count("  - 1 × engine") == LISTED_CAUSES
    assert "  - 2 × in 2 other ways" in told


def test_the_estimate_of_memory_is_told_in_both_forms(run_dir: Path) -> None:
    view = measured(run_dir, sized((HF,), repeats=1))
    (told,) = results(view)["memory"]
    assert (told["weights_estimated_bytes"], told["kv_cache_filled"]) == (2 << 20, None)
    assert f"| {bytes_text(told['estimated_bytes'])} |" in section(markdown(view), "Memory, estimated and told")


@pytest.mark.parametrize("make", [finished_run, broken_run, eventful])
def test_the_json_is_json(run_dir: Path, make: Any) -> None:
    make(run_dir)
    told = results(RunView.load(run_dir))
    assert json.loads(json.dumps(told, allow_nan=False)) == json.loads(msgspec.json.encode(told))
