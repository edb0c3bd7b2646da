"""Which settings act in which methods: nothing that is asked for does nothing without a word."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator import config
from orchestrator.definition import acting, fits
from orchestrator.definition.acting import RULES
from orchestrator.definition.fields import DEFAULTS, SETTABLE
from orchestrator.errors import InputError
from orchestrator.methods import Kind, builtin
from orchestrator.plan import Plan, build
from protocol.specs import BackendConfig, MethodSpec
from tests.unit.plans import MODEL
from tests.unit.test_sizes import with_continuations

#: All methods act on them, or are refused: `orchestrator.methods` and the worker know which can't.
OF_ALL = {
    *("dtype", "max_model_len", "input_mode", "expert_load", "prefix_caching", "batch_size", "logprobs", "task"),
    *("tensor_parallel_size", "pipeline_parallel_size"),
}
VALUES: dict[str, tuple[Any, Any]] = {
    "max_num_batched_tokens": (512, 1024),
    "kv_cache_bytes": (10**9, 10**10),
    "gpu_memory_utilization": (0.5, 0.75),
    "sglang_mem_fraction_static": (0.5, 0.75),
    "torch_compile_mode": ("max-autotune", "reduce-overhead"),
    "torch_compile_cache_size_limit": (9, 10),
    "bucket_batch_sizes": ([1], [1, 2]),
    "bucket_lengths": ([128], [64, 128]),
    "max_new_tokens": (8, 16),
    "ignore_eos": ("true", "false"),
    "temperature": (0.5, 1.0),
    "top_p": (0.5, 0.75),
    "seed": (7, 8),
}
#: By setting: methods that have it, and methods that have not.
HAVING = {
    "max_num_batched_tokens": ("hf_paged, vllm_eager, sglang_triton", "hf_sdpa, hf_compile, hf_rocket"),
    "kv_cache_bytes": ("hf_paged, vllm_eager, sglang_triton", "hf_sdpa, hf_compile, hf_rocket"),
    "gpu_memory_utilization": ("vllm_eager", "hf_sdpa, hf_paged, sglang_triton"),
    "sglang_mem_fraction_static": ("sglang_triton", "hf_sdpa, hf_paged, vllm_eager"),
    "torch_compile_mode": ("hf_compile, hf_rocket", "hf_sdpa, hf_flex, hf_paged, vllm_default, sglang_triton"),
    "torch_compile_cache_size_limit": ("hf_compile, hf_rocket, hf_flex", "hf_sdpa, vllm_default, sglang_triton"),
    "bucket_batch_sizes": ("hf_rocket, vllm_rocket, sglang_rocket", "hf_sdpa, hf_compile, vllm_default"),
    "bucket_lengths": ("hf_rocket", "hf_sdpa, vllm_default, vllm_rocket, sglang_rocket"),
    "seed": ("hf_sdpa, hf_paged, vllm_eager", "sglang_triton, sglang_rocket"),
}
#: No slip where no method has it.
HARMLESS = {"kv_cache_bytes", "seed"}
BASE = "name: a\nmodel: demo\nprompts: p.jsonl\n"
PROMPTS = with_continuations((10, 5), (20, 5))


def planned(methods: str, sections: Mapping[str, str], device: Kind = "cuda") -> Plan:
    text = f"{BASE}methods: [{methods}]\n" + "".join(f"{name}: {{{parts}}}\n" for name, parts in sections.items())
    return build(config.parse(text, "s.yaml"), MODEL, PROMPTS, device)


def refused(methods: str, sections: Mapping[str, str], device: Kind = "cuda") -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(methods, sections, device)
    return [str(problem) for problem in caught.value.problems]


def of(name: str) -> dict[str, str]:
    """The sections of a sweep that give `name` one value, and let it act as far as the method does."""
    section = "sampling" if name in ("seed", "top_p") else "settings"
    warm = ", temperature: 0.7" if name in ("seed", "top_p") else ""
    return {section: f"{name}: {VALUES[name][0]}{warm}"}


def along(name: str) -> dict[str, str]:
    """As `of`, with an axis of two values."""
    warm = {"sampling": "temperature: 0.7"} if name in ("seed", "top_p") else {}
    return {**warm, "matrix": f"{name}: [{', '.join(str(value) for value in VALUES[name])}]"}


def said(notes: tuple[str, ...], name: str) -> list[str]:
    return [note for note in notes if note.startswith(f"{name} does nothing")]


def test_of_every_setting_it_is_decided_where_it_acts() -> None:
    """A new one: does every method heed it? Else it needs a rule."""
    assert set(RULES) | OF_ALL == set(SETTABLE)
    assert not set(RULES) & OF_ALL
    assert set(VALUES) == set(RULES)
    examples = {rule.example for rules in RULES.values() for rule in rules} - {""}
    assert examples <= set(builtin())
    assert set(HAVING) == {name for name, rules in RULES.items() if any(rule.example for rule in rules)} | HARMLESS


def test_the_guide_has_every_setting_that_does_not_act_everywhere() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweep-file.md").read_text()
    section = text.partition("### Settings that act in some methods only")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall("`(\\w+)`", row)) == sorted(RULES)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_every_sweep_has_is_noted_where_no_method_has_it(name: str) -> None:
    lacking = HAVING[name][1]
    (note,) = said(planned(lacking, of(name)).notes, name)
    assert all(method in note for method in lacking.split(", "))


@pytest.mark.parametrize("name", sorted(HAVING.keys() - HARMLESS))
def test_what_acts_in_no_method_of_the_sweep_is_refused_with_one_that_has_it(name: str) -> None:
    having, lacking = HAVING[name]
    assert said(planned(having, of(name)).notes, name) == []
    (only,) = refused(lacking, of(name))
    assert only.startswith(f"s.yaml:5: {next(iter(of(name)))}.{name}: does nothing in ")
    assert all(method in only for method in lacking.split(", "))
    example = only.partition("for example ")[2].rstrip(")")
    assert example in builtin()
    assert planned(f"{lacking}, {example}", of(name))


@pytest.mark.parametrize("name", HAVING)
def test_what_acts_in_some_is_noted_with_the_others(name: str) -> None:
    having, lacking = (methods.split(", ") for methods in HAVING[name])
    notes = said(planned(", ".join([*having, *lacking]), of(name)).notes, name)
    told = " ".join(notes)
    assert all(f" {method}" in told for method in lacking)
    assert not any(f" {method}" in told.replace(",", " ").split() for method in having)


@pytest.mark.parametrize("name", HAVING)
def test_an_axis_that_would_measure_a_method_again_is_refused(name: str) -> None:
    having, lacking = HAVING[name]
    assert len(planned(having, along(name)).points) == 2 * len(having.split(", "))
    (only,) = refused(f"{having}, {lacking}", along(name))
    assert f": matrix.{name}: does nothing in " in only
    assert all(method in only for method in lacking.split(", "))
    assert "measured all the same" in only
    (alone,) = refused(lacking, along(name))
    assert f": matrix.{name}: does nothing in " in alone


@pytest.mark.parametrize(
    ("name", "sections", "device", "why"),
    [
        ("seed", {"sampling": "seed: 7"}, "cpu", "temperature is 0"),
        ("top_p", {"sampling": "top_p: 0.5"}, "cpu", "temperature is 0"),
        ("temperature", {"sampling": "temperature: 0.5, task: score"}, "cpu", "task is score"),
        ("max_new_tokens", {"sampling": "max_new_tokens: 8, task: score"}, "cpu", "task is score"),
        ("ignore_eos", {"sampling": "ignore_eos: true, task: score"}, "cpu", "task is score"),
        ("gpu_memory_utilization", {"settings": "gpu_memory_utilization: 0.5"}, "cpu", "on a CPU"),
        ("sglang_mem_fraction_static", {"settings": "sglang_mem_fraction_static: 0.5"}, "cpu", "on a CPU"),
        (
            "gpu_memory_utilization",
            {"settings": "gpu_memory_utilization: 0.5, kv_cache_bytes: 1000000000"},
            "cuda",
            "the size of the KV cache is given",
        ),
    ],
)
def test_what_another_setting_or_the_machine_puts_out_of_action_is_noted(
    name: str, sections: dict[str, str], device: Kind, why: str
) -> None:
    assert any(why in note for note in said(planned("vllm_eager, sglang_torch_native", sections, device).notes, name))


@pytest.mark.parametrize(
    ("matrix", "name"),
    [
        ("temperature: [0, 0.5], seed: [0, 1]", "seed"),
        ("temperature: [0, 0.5], top_p: [0.5, 1]", "top_p"),
        ("task: [generate, score], max_new_tokens: [8, 16]", "max_new_tokens"),
        ("kv_cache_bytes: [null, 1000000000], gpu_memory_utilization: [0.5, 0.9]", "gpu_memory_utilization"),
    ],
)
def test_combinations_that_come_to_the_same_are_refused(matrix: str, name: str) -> None:
    (only,) = refused("vllm_eager", {"matrix": matrix})
    assert f"matrix.{name}: does nothing in vllm_eager" in only
    assert "zip" in only


def test_what_acts_in_some_cells_of_a_method_is_no_note() -> None:
    for sections in ({"sampling": "seed: 7", "matrix": "temperature: [0, 0.5]"}, {"matrix": "task: [generate, score]"}):
        given = {"sampling": "max_new_tokens: 8"} | sections
        assert [note for note in planned("vllm_eager", given).notes if "does nothing" in note] == []


def test_the_same_combinations_spelt_out_are_not() -> None:
    rows = {"zip": "temperature: [0, 0.5, 0.5], seed: [0, 0, 1]"}
    assert len(planned("vllm_eager", rows).points) == 3


def test_defaults_are_no_claim_and_null_is_none() -> None:
    given = "temperature: 0, seed: 0, top_p: 1"
    left_open = ", ".join(f"{name}: null" for name in HAVING if DEFAULTS[name] is None)
    assert [
        n for n in planned("hf_sdpa", {"sampling": given, "settings": left_open}).notes if "does nothing" in n
    ] == []


def test_the_scripted_engine_stands_in_for_any_other() -> None:
    text = f"{BASE}methods: [scripted]\nsettings: {{gpu_memory_utilization: 0.5, bucket_lengths: [64]}}\n"
    asked = config.parse(text.replace("demo", "scripted") + "matrix: {seed: [1, 2]}\n", "s.yaml")
    assert acting.problems(fits.asked(asked.methods, asked.cells, "cpu"), asked.cells, asked.places) == []


@given(
    st.lists(st.sampled_from([m for m in builtin().values() if m.engine != "scripted"]), min_size=1, max_size=3),
    st.sets(st.sampled_from(sorted(set(VALUES) - {"ignore_eos"})), max_size=4),
    st.sampled_from(["cpu", "cuda"]),
)
def test_nothing_that_is_given_is_idle_without_a_word(methods: list[MethodSpec], names: set[str], device: Kind) -> None:
    cell = {name: tuple(v) if isinstance(v := VALUES[name][0], list) else v for name in names}
    configs = fits.asked(methods, [cell], device)
    places = config.draft(BASE, "s.yaml").places
    told = [p.key + " " + p.message for p in acting.problems(configs, [cell], places)] + acting.notes(configs, [cell])
    for one in configs:
        for name in names:
            words = [text for text in told if text.startswith(name)]
            assert bool(acting.idle(one, name)) == any(
                one.method.name in text.replace(",", " ").replace(";", " ").split() for text in words
            )


configurations = st.builds(
    BackendConfig,
    method=st.sampled_from(list(builtin().values())),
    model_path=st.just(""),
    device=st.sampled_from(["cpu", "cuda"]),
    task=st.sampled_from(["generate", "score"]),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 2),
    max_new_tokens=st.integers(1, 2),
    ignore_eos=st.booleans(),
    kv_cache_bytes=st.none() | st.integers(1, 2),
    gpu_memory_utilization=st.none() | st.just(0.5),
    torch_compile_mode=st.none() | st.just("default"),
    bucket_lengths=st.none() | st.just((64,)),
    batch_size=st.integers(1, 3),
    tensor_parallel_size=st.integers(1, 2),
    logprobs=st.integers(0, 1),
    prefix_caching=st.booleans(),
)


@given(st.lists(configurations, max_size=20))
def test_rules_are_asked_once_for_each_case_and_hold_for_all_of_it(configs: list[BackendConfig]) -> None:
    """A rule that looks at something else has to be told of in `case_of`."""
    cases = acting.Cases()
    for one in configs:
        assert cases.idle(one) == {name: rule for name in RULES if (rule := acting.idle(one, name))}


def cells_of(base: BackendConfig) -> st.SearchStrategy[list[BackendConfig]]:
    axes = st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.5, 1.0]), st.integers(0, 1), st.integers(1, 2))
    names = ("temperature", "top_p", "seed", "max_new_tokens")
    return st.lists(axes, max_size=6).map(
        lambda cells: [replace(base, **dict(zip(names, cell, strict=True))) for cell in cells]
    )


@given(st.lists(configurations.flatmap(cells_of), max_size=3).map(lambda some: list(itertools.chain(*some))))
def test_what_would_be_measured_again_is_found_by_comparing_all_with_all(configs: list[BackendConfig]) -> None:
    def muted(one: BackendConfig) -> bytes:
        off = {name: DEFAULTS[name] for name in RULES if acting.idle(one, name)}
        return msgspec.json.encode(replace(one, **off))

    pairs = [(a, b) for a, b in itertools.combinations(configs, 2) if muted(a) == muted(b)]
    expected = {name for name in RULES if any(getattr(a, name) != getattr(b, name) for a, b in pairs)}
    found = acting.problems(configs, [], config.draft(BASE, "s.yaml").places)
    assert {problem.key.split(".")[-1] for problem in found} == expected
