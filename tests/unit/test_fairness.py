"""Every difference that makes figures incomparable is named, before a run and after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from orchestrator.judge.effective import Ran
from orchestrator.judge.fairness import lint
from orchestrator.judge.findings import Finding, merged, warnings
from orchestrator.judge.ran import lint as lint_ran
from orchestrator.judge.readback import STANDS, resolved
from orchestrator.methods import builtin
from orchestrator.report import RunView, markdown, rows, table
from orchestrator.view.fairness import warning_lines
from orchestrator.view.marks import marks
from protocol.records import EngineSettings, RuntimeMetadata
from protocol.specs import BackendConfig, MethodSpec, NgramSpec
from tests.unit.rundirs import HF as RUN_HF
from tests.unit.rundirs import VLLM as RUN_VLLM
from tests.unit.rundirs import a_plan, begin, end, run_start

BUILTIN = builtin()
HF, VLLM, SGLANG = BUILTIN["hf_sdpa"], BUILTIN["vllm_eager"], BUILTIN["sglang_torch_native"]


def asked(*methods: MethodSpec, device: Any = "cpu", **settings: Any) -> list[BackendConfig]:
    return [BackendConfig(method=m, model_path="", device=device, **settings) for m in methods]


def own(base: MethodSpec, name: str = "own", **changes: Any) -> MethodSpec:
    return replace(base, name=name, **changes)


def named(found: Sequence[Finding], what: str) -> Finding:
    (one,) = [finding for finding in found if finding.what == what]
    return one


# --- before -------------------------------------------------------------------------


def test_one_method_differs_from_nothing() -> None:
    assert lint(asked(HF)) == []
    assert lint(asked(VLLM, device="cuda")) == []


def test_what_methods_are_meant_to_differ_in_is_a_note() -> None:
    found = lint(asked(HF, VLLM, BUILTIN["vllm_default"], BUILTIN["vllm_ngram"]))
    assert {one.what for one in found} == {"attention", "eager or graphs", "batching", "speculation"}
    assert warnings(found) == []
    assert named(found, "batching").who["hf_sdpa"] == "static"


def test_a_worker_of_ones_own_is_a_note_before_and_after() -> None:
    mine = own(HF, "mine", worker=("/opt/mine",))
    found = lint(asked(HF, mine))
    assert named(found, "worker").who == {"mine": "a program of its own"}
    assert "its author" in named(found, "worker").why
    assert warnings(found) == []
    bare = RuntimeMetadata(engine="mine", engine_version="1", python_version="3")
    after = lint_ran([Ran("w1", asked(mine)[0], bare, ("p1",)), Ran("w0", asked(HF)[0], bare, ("p0",))], "hf_sdpa")
    said = named(after, "by its own worker's word")
    assert said.who == {"mine": "not told: dtype, attention, batching, end of sequence"}
    assert (said.level, said.points) == ("note", ("p1",))


GRAVE: list[tuple[MethodSpec, MethodSpec, str]] = [
    (VLLM, own(VLLM, engine_args={"quantization": "fp8"}), "quantization (quantization)"),
    (VLLM, own(VLLM, engine_args={"kv_cache_dtype": "fp8"}), "KV cache dtype (kv_cache_dtype)"),
    (VLLM, own(VLLM, engine_args={"load_format": "dummy"}), "weights (load_format)"),
    (HF, own(HF, engine_args={"generate": {"repetition_penalty": 1.1}}), "sampling of one engine (generate)"),
    (
        SGLANG,
        own(SGLANG, engine_args={"preferred_sampling_params": {"repetition_penalty": 1.1}}),
        "sampling of one engine (preferred_sampling_params)",
    ),
    (VLLM, own(VLLM, engine_args={"logits_processors": ["a.B"]}), "sampling of one engine (logits_processors)"),
    (
        SGLANG,
        own(SGLANG, engine_args={"json_model_override_args": "{}"}),
        "weights (json_model_override_args)",
    ),
    (SGLANG, own(SGLANG, engine_args={"lora_paths": ["/l"]}), "weights (lora_paths)"),
    (VLLM, own(VLLM, engine_args={"kv_cache_dtype_skip_layers": ["0"]}), "KV cache dtype (kv_cache_dtype_skip_layers)"),
    (VLLM, own(VLLM, engine_args={"kv_offloading_size": 4.0}), "KV cache size (kv_offloading_size)"),
    (SGLANG, own(SGLANG, engine_args={"hicache_size": 4}), "KV cache size (hicache_size)"),
    (VLLM, own(VLLM, engine_args={"offload_group_size": 4}), "offloading (offload_group_size)"),
    (SGLANG, own(SGLANG, engine_args={"cpu_offload_gb": 4}), "offloading (cpu_offload_gb)"),
    (HF, own(HF, engine_args={"max_memory": {"0": "4GiB"}}), "offloading (max_memory)"),
    (HF, own(HF, engine_args={"device_map": "auto"}), "offloading (device_map)"),
    (HF, own(HF, env_vars={"OMP_NUM_THREADS": "1"}), "environment variable OMP_NUM_THREADS"),
    (HF, own(HF, env_vars={"PYTHONPATH": "/x"}), "environment variable PYTHONPATH"),
    (BUILTIN["vllm_ngram"], own(BUILTIN["vllm_ngram"], ngram=NgramSpec(2, 4, 5)), "n-gram draft"),
]


@pytest.mark.parametrize(("one", "other", "what"), GRAVE, ids=lambda value: value if isinstance(value, str) else "")
def test_what_makes_figures_incomparable_is_a_warning(one: MethodSpec, other: MethodSpec, what: str) -> None:
    found = named(lint(asked(one, other)), what)
    assert found.level == "warning"
    assert set(found.who) == {one.name, other.name}
    assert found.why


def test_limits_and_unknown_arguments_are_asymmetries_that_are_noted() -> None:
    found = lint(asked(VLLM, own(VLLM, engine_args={"max_num_seqs": 64, "block_size": 32})))
    assert {one.what for one in found} == {"sequences at once (max_num_seqs)", "engine_args block_size"}
    assert {one.level for one in found} == {"note"}
    assert found[0].text == "sequences at once (max_num_seqs): vllm_eager its engine's default; own 64"


def test_memory_shares_are_comparable_in_bytes_only() -> None:
    open_share = named(lint(asked(VLLM, SGLANG, device="cuda", gpu_memory_utilization=0.8)), "memory share")
    assert open_share.level == "warning"
    assert open_share.who == {"vllm_eager": "0.8", "sglang_torch_native": "its engine's default"}
    assert "kv_cache_bytes" in open_share.advice
    given = lint(asked(VLLM, SGLANG, device="cuda", kv_cache_bytes=1 << 30))
    assert "memory share" not in {one.what for one in given}
    assert "memory share" not in {one.what for one in lint(asked(VLLM, SGLANG))}, "on a CPU all get the same bytes"


def test_tokens_per_step_left_open_are_told() -> None:
    what = "tokens per step"
    assert named(lint(asked(VLLM, SGLANG)), what).level == "note"
    assert what not in {one.what for one in lint(asked(VLLM, SGLANG, max_num_batched_tokens=512))}


def test_values_of_variables_are_not_told() -> None:
    """They may be secrets; those of threads are not."""
    found = lint(asked(own(HF, "a", env_vars={"HF_TOKEN": "abc"}), own(HF, "b", env_vars={"HF_TOKEN": "xyz"}), HF))
    text = "".join(one.line for one in found)
    assert "abc" not in text
    assert "xyz" not in text
    assert named(found, "environment variable HF_TOKEN").who == {
        "a": "set to value 1",
        "b": "set to value 2",
        "hf_sdpa": "not set",
    }


def test_each_difference_is_told_once_over_all_cells_and_warnings_come_first() -> None:
    methods = (HF, own(HF, env_vars={"OMP_NUM_THREADS": "1"}, attention="eager"))
    found = lint([config for size in (1, 2, 4) for config in asked(*methods, batch_size=size)])
    assert [one.level for one in found] == ["warning", "note"]


# --- after --------------------------------------------------------------------------


def ran(
    method: MethodSpec, *, points: tuple[str, ...] = (), settings: Any = None, config: Any = None, **told: Any
) -> Ran:
    configured = BackendConfig(method=method, model_path="", **(config or {}))
    metadata = {
        "engine": method.engine,
        "engine_version": "1",
        "python_version": "3.11",
        "stop_token_ids": list(configured.stop_token_ids),
        "settings": EngineSettings(**(settings or {})),
        **told,
    }
    return Ran("w1", configured, RuntimeMetadata(**metadata), points or (f"{method.name}/0",))


ASKED: list[tuple[MethodSpec, dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    (HF, {"dtype": "float32"}, {"dtype": "bfloat16"}, {}, "dtype", "asked float32, ran bfloat16"),
    (VLLM, {"max_model_len": 512}, {"max_model_len": 128}, {}, "max length", "asked 512, ran 128"),
    (VLLM, {"kv_cache_bytes": 1000}, {"kv_cache_bytes": 900}, {}, "KV cache bytes", "asked 1000, ran 900"),
    (VLLM, {"batch_size": 8}, {}, {"max_num_seqs": 4}, "sequences at once", "asked 8, ran 4"),
    (VLLM, {}, {}, {"prefix_caching": True}, "prefix caching", "asked off, ran on"),
    (VLLM, {}, {}, {"cuda_graphs": "full"}, "CUDA graphs", "asked none, ran full"),
    (VLLM, {}, {}, {"compile_mode": "vllm"}, "compilation", "asked none, ran vllm"),
    (VLLM, {}, {"compiled": True}, {}, "compiled", "asked off, ran on"),
    (
        own(BUILTIN["vllm_fa"], eager=False),
        {"device": "cuda"},
        {},
        {"cuda_graphs": "none"},
        "CUDA graphs",
        "asked some, ran none",
    ),
    (own(HF, compile="default"), {}, {}, {"compile_mode": "none"}, "compilation", "asked default, ran none"),
    (BUILTIN["vllm_ngram"], {}, {}, {"speculation": "none"}, "speculation", "asked ngram, ran none"),
    (
        BUILTIN["vllm_ngram"],
        {},
        {},
        {"ngram_min": 2, "ngram_max": 3, "draft_tokens": 3},
        "n-gram draft",
        "asked 1, 3, 3, ran 2, 3, 3",
    ),
    (own(HF, continuous_batching=True), {}, {}, {"batching": "static"}, "batching", "asked continuous, ran static"),
    (VLLM, {"tensor_parallel_size": 2}, {}, {"tensor_parallel_size": 1}, "tensor parallel size", "asked 2, ran 1"),
    (
        BUILTIN["vllm_fa"],
        {"device": "cuda", "gpu_memory_utilization": 0.8},
        {},
        {"memory_share": 0.9},
        "memory share",
        "asked 0.8, ran 0.9",
    ),
    (
        own(VLLM, engine_args={"enable_chunked_prefill": True}),
        {},
        {},
        {"chunked_prefill": False},
        "chunked prefill",
        "asked on, ran off",
    ),
    (VLLM, {"stop_token_ids": (2,)}, {"stop_token_ids": [2, 0]}, {}, "stop ids", "asked 2, ran 0, 2"),
    (VLLM, {"max_num_batched_tokens": 512}, {}, {"max_num_batched_tokens": 64}, "tokens per step", "asked 512, ran 64"),
    (
        HF,
        {},
        {"attention_backend": "eager", "flags": ["attention_not_honoured"]},
        {},
        "attention",
        "asked sdpa, ran eager",
    ),
    (HF, {}, {"flags": ["some_thing_not_honoured"]}, {}, "some thing", "not as asked"),
    (
        VLLM,
        {},
        {"flags": ["chunked_prefill_not_honoured"]},
        {"chunked_prefill": False},
        "chunked prefill",
        "not as asked, ran off",
    ),
    (
        VLLM,
        {"max_model_len": 512},
        {"max_model_len": 128, "flags": ["max_model_len_not_honoured"]},
        {},
        "max length",
        "asked 512, ran 128",
    ),
    (HF, {}, {"flags": ["recompile_limit"]}, {}, "compilation", "given up at the recompile limit"),
    (HF, {}, {"flags": ["engine_args_override:generate.top_k"]}, {}, "engine_args generate.top_k", "of its own"),
]


@pytest.mark.parametrize(("method", "config", "told", "settings", "what", "value"), ASKED, ids=[a[4] for a in ASKED])
def test_what_ran_is_set_against_what_was_asked(
    method: MethodSpec, config: Any, told: Any, settings: Any, what: str, value: str
) -> None:
    found = named(lint_ran([ran(method, config=config, settings=settings, **told)], None), what)
    assert (found.level, found.who, found.points) == ("warning", {method.name: value}, (f"{method.name}/0",))


def test_what_is_as_asked_or_not_told_is_no_finding() -> None:
    config: Any = {"dtype": "float32", "max_model_len": 512, "kv_cache_bytes": 1000, "batch_size": 4}
    settings = {"max_num_seqs": 4, "prefix_caching": False, "cuda_graphs": "none", "compile_mode": "none"}
    told: Any = {"dtype": "float32", "max_model_len": 600, "kv_cache_bytes": 990, "compiled": False}
    assert lint_ran([ran(VLLM, config=config, settings=settings, **told)], None) == []
    assert lint_ran([ran(VLLM, config=config)], None) == []


def test_a_seed_that_is_not_honoured_matters_where_something_is_drawn() -> None:
    greedy = ran(SGLANG, flags=["seed_not_honoured"])
    drawn = Ran("w", greedy.config, greedy.metadata, greedy.points, sampled=True)
    assert lint_ran([greedy], None) == []
    assert named(lint_ran([drawn], None), "seed").level == "warning"


def test_what_differs_between_methods_is_named_with_who_has_what() -> None:
    both = [
        ran(HF, settings={"batching": "static", "chunked_prefill": None}),
        ran(VLLM, settings={"batching": "continuous", "chunked_prefill": True}),
    ]
    found = lint_ran(both, "hf_sdpa")
    assert warnings(found) == []
    assert named(found, "chunked prefill").text == "chunked prefill: hf_sdpa none; vllm_eager on"


BETWEEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"dtype": "float32"}, {"dtype": "bfloat16"}, "dtype"),
    ({"threads": 2}, {"threads": 1}, "threads"),
    ({"settings": {}}, {"settings": {"quantization": "fp8"}}, "quantization"),
    ({"dtype": "float32"}, {"dtype": "float32", "settings": {"kv_cache_dtype": "fp8"}}, "KV cache dtype"),
    ({"settings": {"eos": "stop"}}, {"settings": {"eos": "ignore"}}, "end of sequence"),
    ({"devices": ["NVIDIA A100"]}, {"devices": ["NVIDIA H100"]}, "device"),
    (
        {"settings": {"speculation": "ngram", "draft_tokens": 3}},
        {"settings": {"speculation": "ngram", "draft_tokens": 5}},
        "draft",
    ),
]


@pytest.mark.parametrize(("one", "other", "what"), BETWEEN, ids=[b[2] for b in BETWEEN])
def test_points_that_are_not_as_the_reference_is_are_marked(one: Any, other: Any, what: str) -> None:
    found = named(lint_ran([ran(VLLM, **other), ran(BUILTIN["vllm_default"], **one)], "vllm_default"), what)
    assert (found.level, found.points) == ("warning", ("vllm_eager/0",))
    assert set(found.who) == {"vllm_eager", "vllm_default"}


def test_which_of_a_machines_devices_it_was_is_no_difference() -> None:
    assert lint_ran([ran(VLLM, devices=["GPU-1a"]), ran(BUILTIN["vllm_default"], devices=["GPU-2b"])], None) == []


def test_cells_of_different_settings_are_not_compared_with_each_other() -> None:
    both = [
        ran(HF, config={"dtype": "float32"}, dtype="float32"),
        ran(VLLM, config={"dtype": "bfloat16"}, dtype="bfloat16"),
    ]
    assert lint_ran(both, "hf_sdpa") == []


@pytest.mark.parametrize(("small", "level"), [(1024, "note"), (64, "warning")])
def test_a_smaller_cache_matters_where_the_largest_batch_does_not_fit(small: int, level: str) -> None:
    config: Any = {"batch_size": 4, "max_model_len": 128}
    both = [ran(VLLM, config=config, kv_cache_tokens=4096), ran(SGLANG, config=config, kv_cache_tokens=small)]
    found = named(lint_ran(both, None), "KV cache")
    assert found.level == level
    assert found.points == (("sglang_torch_native/0",) if level == "warning" else ())


CHANGED = [
    ({"engine_version": "1"}, {"engine_version": "2"}, "engine"),
    ({"kv_cache_tokens": 1000}, {"kv_cache_tokens": 2000}, "KV cache"),
    ({"settings": {"max_num_seqs": 256}}, {"settings": {"max_num_seqs": 128}}, "max_num_seqs"),
    ({"patches": ["a"]}, {"patches": ["a", "torchvision blocked"]}, "patches"),
    ({"threads": 1}, {"threads": 2}, "threads"),
    ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": "TRITON_ATTN"}, "attention"),
]


@pytest.mark.parametrize(("one", "other", "what"), CHANGED)
def test_workers_of_one_method_must_have_run_the_same(one: Any, other: Any, what: str) -> None:
    found = lint_ran([ran(VLLM, points=("a",), **one), ran(VLLM, points=("b",), **other)], None)
    change = named(found, f"{what} changed between its workers")
    assert (change.level, change.points) == ("warning", ("a", "b"))


def test_the_same_finding_of_several_workers_is_told_once_with_all_points() -> None:
    one = Finding(level="note", what="x", who={"m": "1"}, why="y", points=("a",))
    assert merged([one, replace(one, points=("b",))]) == [replace(one, points=("a", "b"))]


# --- what became of a warning from before ------------------------------------------------

OMP = [HF, own(VLLM, env_vars={"OMP_NUM_THREADS": "2"})]
KV = [VLLM, own(VLLM, "own", engine_args={"num_gpu_blocks_override": 64})]
FP8 = [VLLM, own(VLLM, "own", engine_args={"quantization": "fp8"})]
BOUND = [VLLM, own(VLLM, "own", env_vars={"VLLM_CPU_OMP_THREADS_BIND": "0-3"})]
NGRAM = [BUILTIN["vllm_ngram"], own(BUILTIN["vllm_ngram"], ngram=NgramSpec(2, 3, 3))]
DRAFT = {"ngram_min": 1, "ngram_max": 3, "draft_tokens": 3, "speculation": "ngram"}


@pytest.mark.parametrize(
    ("methods", "one", "other", "ran_text", "marked"),
    [
        (OMP, {"threads": 1}, {"threads": 1}, "the same (threads: 1)", False),
        (OMP, {"threads": 1}, {"threads": 2}, "threads differs, see After", False),
        (OMP, {"threads": 1}, {}, STANDS, True),
        (OMP, {}, {"threads": 1}, STANDS, True),
        (KV, {"kv_cache_tokens": 1000}, {"kv_cache_tokens": 1010}, "the same (KV cache: 1000, 1010)", False),
        (KV, {"kv_cache_tokens": 1000}, {"kv_cache_tokens": 2000}, "KV cache differs, see After", False),
        (FP8, {}, {"settings": {"quantization": "fp8"}}, "quantization differs, see After", False),
        (FP8, {}, {}, STANDS, True),
        (BOUND, {"threads": 4}, {"threads": 4}, STANDS, True),
        (NGRAM, {"settings": DRAFT}, {"settings": DRAFT}, "the same (draft: 1, 3, 3)", False),
        (NGRAM, {"settings": DRAFT}, {"settings": {**DRAFT, "ngram_min": 2}}, STANDS, True),
    ],
)
def test_a_warning_from_before_is_settled_by_what_ran(
    methods: Sequence[MethodSpec], one: Any, other: Any, ran_text: str, marked: bool
) -> None:
    first, second = methods
    workers = [ran(first, points=("a",), **one), ran(second, points=("b",), **other)]
    asked_for = [found for found in lint(asked(*methods)) if found.level == "warning"]
    (found,) = resolved(asked_for, workers, lint_ran(workers, first.name), first.name)
    assert (found.ran, found.points) == (ran_text, ("b",) if marked else ())


def test_a_warning_from_before_is_settled_among_the_same_load_settings() -> None:
    workers = [
        ran(method, points=(f"{method.name}/{size}",), config={"max_model_len": size}, kv_cache_tokens=size)
        for method in KV
        for size in (100, 200)
    ]
    warned = [found for found in lint(asked(*KV)) if found.level == "warning"]
    (found,) = resolved(warned, workers, [], KV[0].name)
    assert (found.ran, found.points) == ("the same (KV cache: 100, 200)", ())


def test_before_a_run_or_of_one_method_alone_nothing_is_settled() -> None:
    warned = [found for found in lint(asked(*OMP)) if found.level == "warning"]
    assert resolved(warned, [], [], None) == warned
    (alone,) = resolved(warned, [ran(OMP[0], threads=1)], [], None)
    assert (alone.ran, alone.points) == ("no two methods that were asked otherwise", ())


# --- in a run directory -----------------------------------------------------------------


def test_a_lowered_length_marks_the_rows_of_its_points(tmp_path: Path) -> None:
    plan = a_plan((RUN_HF, RUN_VLLM), sizes=(1,), repeats=1)
    longer = [
        replace(
            start,
            config=replace(start.config, max_model_len=512),
            points=tuple(replace(p, config=replace(p.config, max_model_len=512)) for p in start.points),
        )
        for start in plan.starts
    ]
    plan = replace(plan, starts=tuple(longer))
    journal = begin(tmp_path / "run", plan)
    for number, (start, length) in enumerate(zip(plan.starts, (512, 128), strict=True)):
        run_start(journal, start, f"w{number}", max_model_len=length)
    end(journal)
    view = RunView.load(tmp_path / "run")
    assert marks(view) == {"vllm_fa/1/0": ["max length: vllm_fa asked 512, ran 128"]}
    assert [row.shown_method for row in rows(view)] == ["hf_sdpa", "vllm_fa *"]
    text = markdown(view)
    assert "- **max length: vllm_fa asked 512, ran 128" in text
    assert "| vllm_fa \\* |" in text
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(table(rows(view)))
    assert "* vllm_fa batch_size=1: not to be compared as it is: max length" in captured.get()
    assert [line.startswith("warning: max length") for line in warning_lines(view)] == [True]


@pytest.mark.parametrize(
    ("threads", "said", "stands"),
    [
        ((1, 1), "Asked: differs; what ran: the same (threads: 1).", False),
        ((1, None), f"Asked: differs; what ran: {STANDS}.", True),
    ],
)
def test_a_warning_from_before_marks_rows_only_where_nothing_settles_it(
    tmp_path: Path, threads: tuple[int | None, ...], said: str, stands: bool
) -> None:
    plan = a_plan((RUN_HF, replace(RUN_VLLM, env_vars={"OMP_NUM_THREADS": "2"})), sizes=(1,), repeats=1)
    journal = begin(tmp_path / "run", plan)
    for number, (start, count) in enumerate(zip(plan.starts, threads, strict=True)):
        run_start(journal, start, f"w{number}", threads=count)
    end(journal)
    view = RunView.load(tmp_path / "run")
    assert f"one method computes with more threads than another (set it for all methods, or for none)** {said}" in (
        markdown(view)
    )
    assert [any("OMP_NUM_THREADS" in why for why in row.marks) for row in rows(view)] == [False, stands]
    assert any("OMP_NUM_THREADS" in line for line in warning_lines(view)) is stands
