"""Plans: which points there are, what makes them different, what is decided for all engines, what can't run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace as with_
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator import plan
from orchestrator.config import ModelRef, SweepConfig, parse
from orchestrator.definition import fits, starts
from orchestrator.definition.inputs import Prompt, PromptSet
from orchestrator.errors import InputError
from orchestrator.plan import Plan, SweepPoint, build
from orchestrator.view.asked import same_lines, sampling_text
from orchestrator.view.planned import render
from protocol.specs import MethodSpec, call_fields, load_fields, pack_ids
from tests.unit.plans import MODEL

BASE = "name: a\nmodel: demo\nprompts: p.jsonl\n"


def prompt_set(*lengths: int) -> PromptSet:
    packed = [pack_ids([5] * n) for n in lengths]
    prompts = tuple(Prompt(id=f"p{k}", token_ids=b, digest=f"d{k}", source={}) for k, b in enumerate(packed))
    return PromptSet(digest=f"set-{lengths}", prompts=prompts, templated=False)


PROMPTS = prompt_set(10, 20, 30)
SCORED = PromptSet(
    digest="scored",
    prompts=(Prompt("p0", pack_ids([5]), "d0", {}, continuation=pack_ids([6]), score_digest="s0"),),
    templated=False,
)


def sweep(extra: str = "", methods: str = "hf_sdpa") -> SweepConfig:
    return parse(f"{BASE}methods: [{methods}]\n{extra}", "s.yaml")


def planned(extra: str = "", methods: str = "hf_sdpa", **more: Any) -> Plan:
    given: dict[str, Any] = {"model": MODEL, "prompts": PROMPTS, "device": "cpu", **more}
    return build(sweep(extra, methods), **given)


def refused(extra: str = "", methods: str = "hf_sdpa", **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(extra, methods, **more)
    return [str(p) for p in caught.value.problems]


# --- points and order -----------------------------------------------------------


def test_points_are_methods_times_cells_times_repeats() -> None:
    got = planned("matrix: {batch_size: [1, 2], dtype: [auto, float32]}\nrepeats: 2\n", "hf_sdpa, vllm_eager")
    assert len(got.points) == len({p.id for p in got.points}) == 2 * 4 * 2
    assert [(s.config.method.name, s.config.dtype, s.env) for s in got.starts] == [
        ("hf_sdpa", "auto", "hf"),
        ("hf_sdpa", "float32", "hf"),
        ("vllm_eager", "auto", "vllm"),
        ("vllm_eager", "float32", "vllm"),
    ]
    assert [(p.repeat, p.config.batch_size) for p in got.starts[0].points] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert len({s.key for s in got.starts}) == 4


def test_points_are_told_what_every_engine_must_share() -> None:
    point = planned("sampling: {temperature: 1, seed: 3}\n").points[0]
    assert (point.config.stop_token_ids, point.config.model_path, point.config.device) == ((2,), "/models/small", "cpu")
    assert (point.config.temperature, point.config.seed, point.method) == (1.0, 3, "hf_sdpa")


def test_remote_code_is_the_model_s() -> None:
    config = with_(sweep(), model=ModelRef("hub", "a/b", None, trust_remote_code=True))
    assert build(config, MODEL, PROMPTS, "cpu").points[0].config.trust_remote_code


def test_a_start_is_loaded_for_the_largest_of_its_points() -> None:
    start = planned("matrix: {batch_size: [4, 8, 1], max_new_tokens: [16, 64], temperature: [0, 1]}\n").starts[0]
    assert (start.config.batch_size, start.config.max_new_tokens, start.config.temperature) == (8, 64, 0.0)
    assert len(start.points) == 12


def test_environments() -> None:
    got = planned("environments: {hf: mine}\n", "hf_sdpa, vllm_eager")
    assert [s.env for s in got.starts] == ["mine", "vllm"]
    scripted = parse("name: a\nmodel: scripted\nprompts: p.jsonl\nmethods: [scripted]\n", "s.yaml")
    assert [s.env for s in build(scripted, MODEL, PROMPTS, "cpu").starts] == ["own"]


def test_batches_that_can_t_be_filled_are_noted() -> None:
    notes = planned("matrix: {batch_size: [3, 4]}\n").notes
    assert [n for n in notes if "batch_size" in n] == ["batch_size 4: with 3 prompts no batch is ever that large"]


def test_plans_survive_their_file() -> None:
    got = planned("matrix: {batch_size: [1, 2]}\n", "hf_sdpa, {name: n, base: vllm_eager, engine_args: {a: {b: [1]}}}")
    assert msgspec.json.decode(msgspec.json.encode(got), type=Plan) == got


@given(
    st.permutations(["hf_sdpa", "hf_eager", "vllm_eager"]),
    st.permutations([1, 2, 4]),
    st.permutations(["auto", "float32"]),
    st.integers(1, 3),
)
def test_order_changes_no_id_and_no_digest(methods: list[str], batches: list[int], dtypes: list[str], n: int) -> None:
    extra = f"matrix: {{batch_size: {batches}, dtype: {dtypes}}}\nrepeats: {n}\n".replace("'", "")
    got = planned(extra, ", ".join(methods))
    same = planned(
        f"repeats: {n}\nmatrix: {{dtype: [auto, float32], batch_size: [1, 2, 4]}}\n", "hf_sdpa, hf_eager, vllm_eager"
    )
    assert {p.id: p for p in got.points} == {p.id: p for p in same.points}
    assert (got.digest, {s.key for s in got.starts}) == (same.digest, {s.key for s in same.starts})
    assert plan.changes(same, got) == []


@given(st.lists(st.sampled_from(["dtype", "batch_size", "seed", "temperature"]), unique=True), st.integers(1, 3))
def test_points_of_a_start_differ_in_call_time_fields_alone(axes: list[str], repeats: int) -> None:
    values = {"dtype": "[auto, float16]", "batch_size": "[1, 3]", "seed": "[1, 2]", "temperature": "[0.2, 0.5]"}
    sampled = "" if "temperature" in axes else "sampling: {temperature: 1}\n"
    matrix = f"{sampled}matrix:\n" + "".join(f"  {a}: {values[a]}\n" for a in axes)
    got = planned(f"{matrix}repeats: {repeats}\n", "hf_sdpa, hf_eager")
    for start in got.starts:
        for point in start.points:
            assert all(getattr(point.config, f) == getattr(start.config, f) for f in load_fields())
    assert len({(s.config.method.name, s.config.dtype) for s in got.starts}) == len(got.starts)
    assert len({p.id for p in got.points}) == 2 * 2 ** len(axes) * repeats


# --- identity ---------------------------------------------------------------------


def only_point(extra: str = "", methods: str = "hf_sdpa", **more: Any) -> str:
    (point,) = planned(extra, methods, **more).points
    return point.id


@pytest.mark.parametrize(
    "extra",
    [
        "sampling: {seed: 1}\n",
        "sampling: {temperature: 0.5}\n",
        "sampling: {top_p: 0.5}\n",
        "sampling: {max_new_tokens: 31}\n",
        "sampling: {batch_size: 2}\n",
        "sampling: {ignore_eos: true}\n",
        "settings: {dtype: float32}\n",
        "settings: {max_model_len: 200}\n",
        "settings: {max_num_batched_tokens: 200}\n",
        "settings: {kv_cache_bytes: 999999999}\n",
        "settings: {gpu_memory_utilization: 0.5}\n",
    ],
)
def test_what_can_change_the_output_changes_the_id(extra: str) -> None:
    assert only_point(extra, "vllm_eager") != only_point(methods="vllm_eager")


def test_so_do_model_prompts_method_and_machine() -> None:
    base = only_point()
    others = [
        only_point(model=replace(MODEL, digest="other")),
        only_point(model=replace(MODEL, stop_token_ids=(2, 3))),
        only_point(prompts=replace(PROMPTS, digest="other")),
        only_point(methods="hf_eager"),
        only_point(methods="{name: n, base: hf_sdpa}"),
        only_point(methods="{name: n, base: hf_sdpa, engine_args: {a: 1}}"),
        only_point(methods="{name: n, base: hf_sdpa, env_vars: {A: b}}"),
        only_point(device="cuda"),
    ]
    assert len({base, *others}) == len(others) + 1
    first, second = planned("repeats: 2\n").points
    assert first.id == base != second.id


def test_what_can_t_change_the_output_does_not() -> None:
    base = only_point()
    assert base == only_point(model=replace(MODEL, path="/elsewhere", name="other"))
    assert base == only_point("limits: {load_s: 3}\nwarmup: 7\nenvironments: {hf: mine}\n")
    config = sweep()
    said = with_(config, methods=(replace(config.methods[0], summary="other words"),), name="other", source="t.yaml")
    assert build(said, MODEL, PROMPTS, "cpu").points[0].id == base


def test_ids_are_stable() -> None:
    """A change here orphans every run that exists: raise PLAN_SCHEMA, and say so."""
    assert (plan.PLAN_SCHEMA, only_point()) == (2, "048efcd5915efe72")


OWN = "{name: q, base: vllm_eager, engine_args: {max_num_seqs: 4}, summary: x}"


@pytest.mark.parametrize(
    ("methods", "extra", "known"),
    [
        (
            "hf_sdpa, vllm_eager",
            "matrix: {batch_size: [1, 2], dtype: [auto, float32]}\nrepeats: 2\n",
            "9c1a41719f5587ed",
        ),
        ("hf_sdpa", "matrix: {temperature: [0.5, 1], top_p: [0.5, 1], seed: [0, 7]}\n", "ae3f0f8731b524f5"),
        (
            "hf_rocket, hf_eager",
            "settings: {bucket_batch_sizes: [1, 8], max_model_len: 512}\nsampling: {ignore_eos: true}\n"
            "matrix: {batch_size: [2, 8]}\nmeasurement: {drift: true}\n",
            "5fc900071bb527da",
        ),
        (
            f"{OWN}, sglang_torch_native",
            "matrix: {max_model_len: [512, 768], kv_cache_bytes: [1000000000, null], input_mode: [text, auto]}\n"
            "measurement: {order: interleaved}\nrepeats: 2\n",
            "cfe1ff9d5fc568be",
        ),
        (
            "hf_sdpa",
            "sampling: {logprobs: 3}\nzip: {temperature: [0, 1.5], max_new_tokens: [4, 5]}\n"
            "measurement: {order: random}\nrepeats: 3\n",
            "1c0ce8e53bb1ecdc",
        ),
    ],
)
def test_so_are_those_of_points_and_starts_of_any_kind(methods: str, extra: str, known: str) -> None:
    got = planned(extra, methods)
    names = {"ids": [p.id for p in got.points], "keys": [s.key for s in got.starts], "plan": got.digest}
    assert starts.digest(names) == known


def test_starts_that_are_compiled_for_the_same_stand_side_by_side() -> None:
    """Within a method, in the order in which the file comes to each kind; it is shown as the file has it."""
    extra = "matrix: {kv_cache_bytes: [2000000, 1000000], dtype: [float32, bfloat16], top_p: [0.5, 1]}\n"
    got = planned(f"sampling: {{temperature: 1}}\n{extra}", "vllm_eager, sglang_torch_native")

    def loads(points: Iterable[SweepPoint]) -> list[tuple[str, str, int | None]]:
        return list(dict.fromkeys((p.method, p.config.dtype, p.config.kv_cache_bytes) for p in points))

    one = [("float32", 2000000), ("float32", 1000000), ("bfloat16", 2000000), ("bfloat16", 1000000)]
    assert loads(got.points) == [(name, *load) for name in ("vllm_eager", "sglang_torch_native") for load in one]
    assert loads(got.listed) == [
        (name, dtype, size)
        for name in ("vllm_eager", "sglang_torch_native")
        for size in (2000000, 1000000)
        for dtype in ("float32", "bfloat16")
    ]


axes = st.lists(
    st.sampled_from(["dtype: [auto, float32]", "max_model_len: [400, 500]", "prefix_caching: [true, false]"]),
    unique=True,
)


@given(axes, st.lists(st.sampled_from(["vllm_eager", "sglang_torch_native"]), unique=True, min_size=1))
def test_no_kind_is_come_to_twice(given: list[str], methods: list[str]) -> None:
    got = planned(f"matrix: {{{', '.join(given)}}}\n" if given else "", ", ".join(methods))
    kinds = [(s.config.method.name, s.config.dtype, s.config.max_model_len) for s in got.starts]
    assert len([kind for kind, _ in itertools.groupby(kinds)]) == len(set(kinds))
    assert list(dict.fromkeys(s.config.method.name for s in got.starts)) == methods
    assert sorted(p.id for p in got.listed) == sorted(p.id for p in got.points)
    assert not got.listing or [p.id for p in got.listed] != [p.id for p in got.points]


def test_changes_between_plans() -> None:
    base = planned()
    assert plan.changes(base, planned("limits: {load_s: 3}\n")) == []
    assert plan.changes(base, planned("warmup: 2\n")) == ["warmup changed since this run began"]
    assert "the model changed" in plan.changes(base, planned(model=replace(MODEL, digest="x")))[0]
    assert "the prompts changed" in plan.changes(base, planned(prompts=prompt_set(10, 20)))[0]
    changed = plan.changes(base, planned("sampling: {seed: 9}\n"))
    assert all(": their settings changed: seed was 0, is 9" in sentence for sentence in changed)
    assert [line.split(" (")[0] for line in changed] == [
        "1 point of this run not in the sweep any more",
        "1 point of the sweep not in this run",
    ]


# --- what can't run ------------------------------------------------------------------


def test_all_that_can_t_run_is_listed_at_once() -> None:
    found = refused(
        "matrix: {batch_size: [1, 2], max_new_tokens: [31, 32]}\n",
        "hf_flash, hf_ngram, hf_sdpa",
        prompts=prompt_set(999),
    )
    assert [text.split(": ")[:3] for text in found] == [
        ["s.yaml:3", "prompts", "too long with 32 new tokens for the model's context of 1000"],
        ["s.yaml:4", "methods[0]", "hf_flash"],
        ["s.yaml:4", "methods[1]", "hf_ngram"],
    ]
    assert found[2].endswith("needs batch_size 1 (at batch_size=2 max_new_tokens=31; batch_size=2 max_new_tokens=32)")
    assert planned("sampling: {batch_size: 1}\n", "hf_ngram").points


def test_gpu_methods_are_planned_on_gpus() -> None:
    assert planned(methods="hf_flash, sglang_default", device="cuda").points
    assert len(refused(methods="hf_flash, sglang_default")) == 2


# --- how it looks ------------------------------------------------------


def test_render_names_every_start_and_point() -> None:
    got = planned("matrix: {batch_size: [1, 2], dtype: [auto, float32]}\nrepeats: 2\n", "hf_sdpa, vllm_eager")
    text = "\n".join(render(got))
    assert "a: 16 points, 3 prompts each, 4 worker starts" in text
    assert all(point.id in text for point in got.points)
    assert "3. vllm_eager  (environment vllm)  dtype=auto" in text
    assert "batch_size=2  repeat 2 of 2" in text
    assert "max_model_len 128" in text


RULE = "measurement: {stop_early: 0.1}\n"


@pytest.mark.parametrize(
    ("extra", "acts"),
    [
        ("repeats: 9\n", True),
        ("repeats: 2\n", False),
        ("repeats: 9\nsampling: {task: score}\n", False),
        ("repeats: 9\nmatrix: {task: [score, generate]}\n", True),
    ],
)
def test_a_rule_that_can_t_act_is_not_told(extra: str, acts: bool) -> None:
    text = "\n".join(render(planned(RULE + extra, prompts=SCORED)))
    assert ("a cell ends after" in text) is acts
    assert ("can't act" in text) is ("repeats: 2" in extra or "score" in extra)


def test_more_ranks_than_cpus_are_noted() -> None:
    asked = "settings: {tensor_parallel_size: 3}\n"
    assert "hf_sdpa: 3 ranks take turns on 2 CPUs" in planned(asked, cpus=2).notes
    for few in (planned(asked, cpus=3), planned(asked), planned(cpus=2)):
        assert not any("take turns" in note for note in few.notes)


def same(extra: str = "", **more: Any) -> list[str]:
    return list(same_lines(planned(extra, **more)))[1:]


def test_what_is_held_equal_is_told_once_and_an_axis_is_not() -> None:
    head, sampling, load, warmup = same("matrix: {max_new_tokens: [4, 8], dtype: [auto, float32]}\nwarmup: 3\n")
    assert head == "the same for all:"
    assert sampling == "   sampling: temperature 0; top_p 1; seed 0; ignore_eos off"
    assert load == "   load: tensor_parallel_size 1; pipeline_parallel_size 1; prefix_caching off"
    assert warmup == "   warm-up batches 3"
    assert not any("sampling" in line for line in same("sampling: {task: score}\n", prompts=SCORED))


def test_what_is_held_equal_has_the_words_of_the_report() -> None:
    got = planned()
    told = same_lines(got)
    sampling = next(line for line in told if "sampling" in line).partition(": ")[2]
    assert set(sampling.split("; ")) < set(sampling_text(got).split("; "))


def test_methods_of_the_same_settings_stay_apart() -> None:
    config = sweep()
    twin = (MethodSpec("one", "hf", "sdpa"), MethodSpec("two", "hf", "sdpa"))
    got = build(with_(config, methods=twin), MODEL, PROMPTS, "cpu")
    assert len(got.starts) == len({p.id for p in got.points}) == 2


def test_call_fields_never_split_a_start() -> None:
    text = {"batch_size": "[1, 2]", "max_new_tokens": "[1, 2]", "temperature": "[0, 1]", "top_p": "[0.5, 1]"}
    text |= {"seed": "[0, 1]", "ignore_eos": "[true, false]", "logprobs": "[0, 1]", "task": "[generate, score]"}
    assert set(text) == set(call_fields()) - {"stop_token_ids"}
    for name, values in text.items():
        sampled = "sampling: {temperature: 1}\n" if name in ("top_p", "seed") else ""
        assert len(planned(f"{sampled}matrix: {{{name}: {values}}}\n").starts) == 1


def test_more_gpus_than_there_are_is_placed_where_the_file_asks_for_them() -> None:
    config = sweep("matrix:\n  tensor_parallel_size: [1, 2, 4]\n", "vllm_eager")
    assert [str(p) for p in fits.too_many_devices(config.cells, 2, config.places)] == [
        "s.yaml:6: matrix.tensor_parallel_size: needs 4 GPUs, 2 are visible"
    ]
    config = sweep("settings:\n  pipeline_parallel_size: 3\n", "vllm_eager")
    assert [p.key for p in fits.too_many_devices(config.cells, 2, config.places)] == ["settings.pipeline_parallel_size"]


def test_no_method_is_spread_over_slices_of_a_gpu() -> None:
    config = sweep("settings: {dtype: float32}\nmatrix:\n  tensor_parallel_size: [1, 2]\n", "vllm_eager")
    (found,) = fits.split_over_slices(config.cells, config.places)
    assert (found.key, "MIG" in found.message) == ("matrix.tensor_parallel_size", True)
    assert fits.split_over_slices(sweep("settings: {dtype: float32}\n", "vllm_eager").cells, config.places) == []


def test_what_an_engine_can_t_do_is_known_without_model_and_prompts() -> None:
    config = sweep("matrix: {batch_size: [1, 2]}\n", "hf_ngram, hf_flash")
    found = fits.problems(config.methods, config.cells, "cpu", config.places)
    assert {str(p) for p in found} == set(refused("matrix: {batch_size: [1, 2]}\n", "hf_ngram, hf_flash"))
    assert {(p.where, p.key) for p in found} == {("s.yaml:4", "methods[0]"), ("s.yaml:4", "methods[1]")}


@pytest.mark.parametrize(
    "where", ["launcher: slurm\n", "launcher: ray\ncluster: {slots: 9, cpus: 3, options: [a=1]}\n"]
)
def test_where_the_workers_run_changes_no_point_and_no_plan(where: str) -> None:
    here, there = planned("matrix: {batch_size: [1, 2]}\n"), planned("matrix: {batch_size: [1, 2]}\n" + where)
    assert here.launcher != there.launcher
    assert (here.digest, [p.id for p in here.points]) == (there.digest, [p.id for p in there.points])
