"""What `plan` and the report say of memory: what is needed, and beside it what was measured and told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.definition.memory import CacheLayers, ModelShape
from orchestrator.nvml import Device
from orchestrator.plan import Plan, WorkerStart
from orchestrator.view import memory
from orchestrator.view.runview import RunView
from orchestrator.view.wording import bytes_text
from protocol.records import MemoryUse
from protocol.specs import MethodSpec
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, launch, release, run_point

MIB = 1 << 20
#: 64 KiB of keys and values a token, 2 MiB of weights, in float32.
SHAPE = ModelShape((CacheLayers("full", 16, 1024, heads=8),), 128, 512, 1024, {"F32": 2 * MIB}, MIB // 2)


def sized(
    methods: Sequence[MethodSpec] = (HF, VLLM), batches: Sequence[int] = (1, 2), repeats: int = 1, **more: Any
) -> Plan:
    plan = a_plan(methods, batches, repeats)
    given = {"max_model_len": 64, "dtype": "float32", **more}
    return replace(
        plan,
        model=replace(plan.model, shape=SHAPE),
        starts=tuple(with_settings(start, start.key, **given) for start in plan.starts),
    )


def with_settings(start: WorkerStart, key: str, **given: Any) -> WorkerStart:
    points = tuple(replace(p, id=f"{key}/{p.id}", config=replace(p.config, **given)) for p in start.points)
    return replace(start, key=key, config=replace(start.config, **given), points=points)


def rows(run_dir: Path, plan: Plan, *proofs: dict[str, Any], **metadata: Any) -> list[dict[str, str]]:
    """Of a run in which each start of the plan had a worker."""
    journal = begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        name = f"w{number}-x"
        launch(journal, start, name, **metadata)
        for point in start.points:
            run_point(journal, point, name)
        release(journal, name, **(proofs[number] if proofs else {}))
    end(journal)
    return [dict(zip(memory.HEADER, row, strict=True)) for row in memory.estimates_told(RunView.load(run_dir))]


def test_the_estimate_stands_beside_the_peak_of_the_host_on_a_cpu(tmp_path: Path) -> None:
    told = {"kv_cache_bytes": 16 * MIB, "memory": MemoryUse(weights_bytes=3 * MIB, host_peak_rss_bytes=MIB)}
    found = rows(tmp_path / "run", sized(), {"peak_bytes": 5 << 30}, {"peak_bytes": 6 << 30}, **told)
    assert [row["method"] for row in found] == ["hf_sdpa", "vllm_fa"]
    assert [row["peak measured"] for row in found] == ["5.0 GiB on the host", "6.0 GiB on the host"]
    assert {row["weights (told)"] for row in found} == {"2.0 MiB (3.0 MiB)"}
    assert {row["KV cache (told)"] for row in found} == {"8.0 MiB (16.0 MiB)"}
    assert {row["graphs (told)"] for row in found} == {"0 B (–)"}
    assert {row["KV cache filled"] for row in found} == {"50%"}
    assert all(10 < float(row["estimated"].removesuffix(" MiB")) < 12 for row in found)


def test_on_a_gpu_it_is_that_of_the_devices_and_all_of_them(tmp_path: Path) -> None:
    plan = sized((VLLM,), device="cuda", tensor_parallel_size=2)
    told = {"device": "cuda", "memory": MemoryUse(device_peak_bytes=9 << 30, host_peak_rss_bytes=20 << 30)}
    (row,) = rows(tmp_path / "run", plan, {"device": "cuda", "peak_bytes": 8 << 30}, **told)
    assert row["peak measured"] == "9.0 GiB on devices"
    assert (row["weights (told)"], row["KV cache (told)"]) == ("2.0 MiB (–)", "8.0 MiB (–)")
    assert row["KV cache filled"] == "–"


def test_workers_that_were_loaded_alike_have_one_line_and_others_say_what_differs(tmp_path: Path) -> None:
    base = sized((HF,), repeats=2)
    (start,) = base.starts
    again = [replace(start, key=f"r{n}", points=(point,)) for n, point in enumerate(start.points)]
    half = with_settings(start, "half", dtype="bfloat16")
    proofs = [{"peak_bytes": size << 30} for size in (5, 7, 6, 5, 4)]
    found = rows(tmp_path / "run", replace(base, starts=(*again, half)), *proofs)
    assert [row["method"] for row in found] == ["hf_sdpa dtype=float32", "hf_sdpa dtype=bfloat16"]
    assert [row["peak measured"] for row in found] == ["7.0 GiB on the host", "4.0 GiB on the host"]
    assert [row["weights (told)"] for row in found] == ["2.0 MiB (–)", "1.0 MiB (–)"]


def test_what_no_worker_loaded_or_no_file_tells_the_size_of_has_no_line(tmp_path: Path) -> None:
    plan = sized()
    journal = begin(tmp_path / "run", plan)
    end(journal)
    assert list(memory.estimates_told(RunView.load(tmp_path / "run"))) == []
    shapeless = replace(plan, model=replace(plan.model, shape=None))
    assert rows(tmp_path / "other", shapeless) == []
    assert list(memory.plan_lines(shapeless, (), 1 << 30)) == []


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({}, "8.0 MiB KV cache (64.0 KiB a token)"),
        ({"dtype": "bfloat16"}, "4.0 MiB KV cache (32.0 KiB a token)"),
        ({"kv_cache_bytes": 2**28}, "256.0 MiB KV cache (64.0 KiB a token)"),
    ],
)
def test_a_plan_tells_the_cache_and_what_a_token_takes_of_it(more: dict[str, Any], part: str) -> None:
    (line,) = list(memory.plan_lines(sized((VLLM,), **more), (), 1 << 30))[2:]
    assert part in line
    assert line.endswith("% of this machine")


def test_a_plan_tells_loads_of_one_method_apart() -> None:
    plan = sized((HF,))
    (start,) = plan.starts
    both = replace(plan, starts=(start, with_settings(start, "half", dtype="bfloat16")))
    one, other = list(memory.plan_lines(both, (), 1 << 30))[2:]
    assert one.startswith("   hf_sdpa dtype=float32: 2.0 MiB weights")
    assert other.startswith("   hf_sdpa dtype=bfloat16: 1.0 MiB weights")


def test_all_ranks_of_a_cpu_share_the_host_and_a_gpu_holds_one() -> None:
    gpu = Device(0, "GPU-a", "NVIDIA H200", 11 * MIB, (9, 0))
    on_cpu = sized((VLLM,), tensor_parallel_size=2)
    on_gpus = sized((VLLM,), tensor_parallel_size=2, device="cuda", kv_cache_bytes=4 * MIB)
    shared = list(memory.plan_lines(on_cpu, (), 10 * MIB))[2]
    assert "does NOT fit this machine" in shared
    (needed,) = {memory.estimate_of(on_cpu, start) for start in on_cpu.starts}
    assert needed is not None
    assert f"= {bytes_text(needed.total_bytes)} × 2 ranks = {bytes_text(2 * needed.total_bytes)}; " in shared
    own = list(memory.plan_lines(on_gpus, (gpu,), 11 * MIB))[2]
    assert own.endswith("% of NVIDIA H200")
    assert "ranks" not in own


def test_to_score_the_whole_of_each_sequence_runs_at_once() -> None:
    made, scored = (memory.estimate_of(plan, plan.starts[0]) for plan in (sized((HF,)), scoring(sized((HF,)))))
    assert made is not None
    assert scored is not None
    assert scored.activations_bytes > made.activations_bytes


def scoring(plan: Plan) -> Plan:
    (start,) = plan.starts
    points = tuple(replace(point, config=replace(point.config, task="score")) for point in start.points)
    return replace(plan, starts=(replace(start, points=points),))
