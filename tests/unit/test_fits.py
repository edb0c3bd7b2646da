"""What of a sweep can't run here, each with its place in the file: GPUs, packages, buckets, continuations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator import config
from orchestrator.config import Draft
from orchestrator.definition import attentions, fits
from orchestrator.devices import Machine
from orchestrator.errors import EnvironmentFailed
from orchestrator.methods import builtin, misfits
from orchestrator.nvml import Device
from orchestrator.run import checks, prepare
from orchestrator.run.environments import package_problems
from orchestrator.stores.envstate import EngineEnv, Fingerprint
from protocol.specs import BackendConfig, call_fields, load_fields

H200 = Device(0, "GPU-h", "NVIDIA H200", None, (9, 0))
T4 = Device(1, "GPU-t", "Tesla T4", None, (7, 5))


def draft(methods: str, extra: str = "") -> Draft:
    return config.draft(f"name: a\nmodel: demo\nprompts: [x]\nmethods:\n- {methods}\n{extra}", "s.yaml")


def gpus(*devices: Device) -> Machine:
    return Machine("cuda", devices, 8, 1 << 40, ())


def environment(packages: dict[str, str], broken: dict[str, str] | None = None) -> EngineEnv:
    fingerprint = Fingerprint.of("3.11", packages, "")
    return EngineEnv("mine", "hf", "/python", fingerprint, "user", tuple(broken or {}), broken=broken or {})


def test_the_gpu_that_a_method_can_t_run_on_is_named_with_the_line_of_the_method() -> None:
    both = draft("hf_sdpa\n- hf_flash\n- {name: own, base: vllm_fa}")
    assert checks.machine_problems(both, gpus(H200)) == []
    found = [str(problem) for problem in checks.machine_problems(both, gpus(H200, T4))]
    assert found == [
        "s.yaml:6: methods[1]: hf_flash: flash_attention_2 needs compute capability 8.0 or more, "
        "and GPU 1 (GPU-t) Tesla T4 has 7.5",
        "s.yaml:7: methods[2]: own: FLASH_ATTN needs compute capability 8.0 or more, "
        "and GPU 1 (GPU-t) Tesla T4 has 7.5",
    ]


def test_a_package_that_is_missing_is_named_with_the_environment_and_what_to_do() -> None:
    asked = draft("hf_sdpa\n- hf_flash")
    env = {"hf": environment({"flash-attn": "2.8.3"})}
    assert package_problems(asked.methods, env, "cuda", asked.places) == []
    undefined = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"
    for packages, state in (({}, "not installed"), ({"flash-attn": "2"}, f"installed, but broken: {undefined}")):
        env = {"hf": environment(packages, {"flash_attn": undefined})}
        (only,) = package_problems(asked.methods, env, "cuda", asked.places)
        assert (only.where, only.key) == ("s.yaml:6", "methods[1]")
        assert f"(flash-attn: {state}, kernels==0.17.*: not installed) in environment mine; " in only.message
        assert "`env add NAME --engine hf --python PATH`" in only.message
        assert "environments: {hf: NAME}" in only.message


def test_nothing_is_said_of_packages_where_it_is_not_known_or_another_reason_stands() -> None:
    asked = draft("hf_flash")
    env = {"hf": environment({})}
    assert len(package_problems(asked.methods, env, "cuda", asked.places)) == 1
    assert package_problems(asked.methods, env, "cpu", asked.places) == []
    assert package_problems(asked.methods, {}, "cuda", asked.places) == []
    broken = {"hf": EnvironmentFailed("hf", "half made")}
    assert package_problems(asked.methods, broken, "cuda", asked.places) == []


def test_settings_that_act_in_no_method_are_found_before_an_environment_is_built() -> None:
    extra = "settings: {bucket_lengths: [64, 128]}\nmatrix: {bucket_batch_sizes: [[1], [1, 4]]}\n"
    found = checks.machine_problems(draft("hf_sdpa", extra), Machine("cpu", (), 2, 1, ()))
    assert [(p.where, p.key) for p in found] == [
        ("s.yaml:7", "matrix.bucket_batch_sizes"),
        ("s.yaml:6", "settings.bucket_lengths"),
    ]
    assert all("for example hf_rocket" in p.suggestion for p in found)
    unread = draft("hf_sdpa\n- hf_rockt", extra)
    assert checks.machine_problems(unread, Machine("cpu", (), 2, 1, ())) == [], "the other may be one that has them"


def test_many_prompts_without_a_continuation_are_counted_and_some_are_named() -> None:
    asked = draft("hf_sdpa", "sampling: {task: score}\n")
    without = [f"p{n} (p.jsonl:{n})" for n in range(12)]
    (only,) = fits.scoring_problems(asked.cells, without, 20, asked.places)
    assert (only.where, only.key) == ("s.yaml:6", "sampling.task")
    assert "12 of 20 have none: p0 (p.jsonl:0), " in only.message
    assert only.message.endswith("p9 (p.jsonl:9) and 2 more")
    assert fits.scoring_problems(asked.cells, [], 20, asked.places) == []
    assert fits.scoring_problems(draft("hf_sdpa").cells, without, 20, asked.places) == []


def values_of(name: str) -> st.SearchStrategy[Any]:
    if name == "method":
        return st.sampled_from(list(builtin().values()))
    if name in ("tensor_parallel_size", "pipeline_parallel_size"):
        return st.integers(1, 2)
    return st.from_type(get_type_hints(BackendConfig)[name])


configurations = st.fixed_dictionaries(
    {name: values_of(name) for name in (*load_fields(), *call_fields()) if name != "model_path"}
)


@given(configurations, st.data())
def test_no_misfit_depends_on_what_it_is_said_not_to(values: dict[str, Any], data: st.DataObject) -> None:
    """Or a configuration would be judged by another one."""
    other = {name: data.draw(values_of(name)) for name in fits.FITTING_ANYWAY if name != "model_path"}
    one = BackendConfig(model_path="", **values)
    assert misfits(one) == misfits(replace(one, model_path="/m", **other))


@given(st.lists(configurations, max_size=6))
def test_misfits_are_those_of_each_configuration(values: list[dict[str, Any]]) -> None:
    configs = [BackendConfig(model_path="", **one) for one in values]
    found = fits.misfit_problems(configs, draft("hf_sdpa").places)
    expected = {f"{one.method.name}: {reason}" for one in configs for reason in misfits(one)}
    assert {problem.message.partition(" (at ")[0] for problem in found} == expected


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("base: hf_sdpa, attention: flsh_attention_2", "Transformers has no attention flsh_attention_2: did you mean"),
        ("base: hf_sdpa, attention: zz", "Transformers has no attention zz: for example eager, sdpa, "),
        ("base: vllm_eager, attention: FLASHATTN", "vLLM has no attention FLASHATTN: did you mean FLASH_ATTN?"),
        ("base: sglang_triton, attention: tritn", "SGLang has no attention tritn: did you mean triton?"),
        ("base: hf_sdpa, attention: tritn, worker: [/w]", ""),
        ("base: hf_sdpa, attention: kernels-community/paged-attention", ""),
        ("base: hf_sdpa, attention: paged|sdpa", ""),
        ("base: vllm_eager, attention: flash_attn", ""),
        ("base: sglang_triton, attention: null", ""),
    ],
)
def test_an_attention_that_the_engine_does_not_know_is_named_with_what_was_meant(method: str, says: str) -> None:
    asked = draft(f"{{name: own, {method}}}")
    found = checks.attention_problems(asked, gpus(H200))
    assert [one.key for one in found] == (["methods[0]"] if says else [])
    assert all(one.message.startswith(f"own: {says}") for one in found)


def test_of_an_environment_of_the_users_own_it_is_not_known_which_attention_it_has() -> None:
    asked = draft("{name: own, base: hf_sdpa, attention: newest}\nenvironments: {hf: mine}")
    assert checks.attention_problems(asked, gpus(H200)) == []


def test_every_attention_of_a_registered_method_is_known() -> None:
    assert [one.name for one in builtin().values() if attentions.unknown(one)] == []


def test_a_plan_says_that_a_model_of_the_hub_is_not_checked_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    file = tmp_path / "s.yaml"
    file.write_text("name: a\nmodel: no-one/no-model\nprompts: [x]\nmethods: [hf_sdpa]\n")
    lines = list(prepare.describe(prepare.survey(file, (), list[str]().append), list[str]().append))
    assert "model no-one/no-model is not fetched yet, so neither its name nor what it holds is checked" in lines
