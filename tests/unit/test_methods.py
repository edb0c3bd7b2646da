"""Methods: what the built-ins are, what a user's own may be, and where each can't run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import config, methods
from orchestrator.errors import InputError, Problem
from protocol.specs import BackendConfig, MethodSpec, NgramSpec
from workers.backends.admission import refusals

BUILTIN = methods.builtin()


def own(text: str) -> MethodSpec:
    model = "scripted" if "scripted" in text else "demo"
    return config.parse(f"name: a\nmodel: {model}\nprompts: [x]\nmethods: [{text}]\n", "s.yaml").methods[0]


def problems(text: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        own(text)
    return list(caught.value.problems)


def configured(method: MethodSpec, **more: Any) -> BackendConfig:
    return BackendConfig(method=method, model_path="/m", **more)


# --- built-ins ------------------------------------------------------------------


def test_every_builtin_says_what_it_is_and_is_fixed() -> None:
    for name, method in BUILTIN.items():
        assert (name, methods.is_name(name)) == (method.name, True)
        assert name.split("_")[0] == method.engine
        assert method.summary
        assert not method.rocket_bucket
        with pytest.raises(AttributeError):
            method.attention = "other"  # type: ignore[misc]


def test_the_registry_can_t_be_changed_through_what_it_gives() -> None:
    methods.builtin().clear()
    assert methods.builtin() == BUILTIN


def test_engines_are_told_apart_by_one_thing_at_a_time() -> None:
    assert {m.attention for m in BUILTIN.values() if m.engine == "hf"} == {"eager", "sdpa", "flash_attention_2"}
    assert BUILTIN["vllm_eager"].eager is True
    assert BUILTIN["vllm_default"] == MethodSpec("vllm_default", "vllm", summary=BUILTIN["vllm_default"].summary)
    assert BUILTIN["hf_ngram"].ngram == BUILTIN["vllm_ngram"].ngram == NgramSpec(1, 3, 3)
    assert BUILTIN["sglang_ngram"].engine_args["speculative_algorithm"] == "NGRAM"


@pytest.mark.parametrize("name", ["hf_eager", "hf_sdpa", "hf_ngram", "vllm_default", "vllm_eager", "vllm_ngram"])
def test_runs_on_cpus(name: str) -> None:
    assert methods.refuse(BUILTIN[name], "cpu") is None


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("hf_flash", "hf_sdpa"),
        ("vllm_fa", "vllm_eager"),
        ("vllm_flashinfer", "vllm_eager"),
        ("vllm_triton", "vllm_eager"),
        ("sglang_default", "sglang_torch_native"),
        ("sglang_flashinfer", "sglang_torch_native"),
        ("sglang_triton", "sglang_torch_native"),
        ("sglang_ngram", "sglang_torch_native"),
    ],
)
def test_refused_on_cpus_with_what_to_use_instead(name: str, instead: str) -> None:
    assert instead in (methods.refuse(BUILTIN[name], "cpu") or "")
    assert methods.refuse(BUILTIN[instead], "cpu") is None


def test_every_builtin_runs_on_gpus_and_cpu_attention_does_not() -> None:
    assert [m.name for m in BUILTIN.values() if methods.refuse(m, "cuda")] == []
    assert methods.refuse(MethodSpec("x", "vllm", "CPU_ATTN"), "cuda")
    assert methods.refuse(MethodSpec("x", "sglang", "intel_amx"), "cuda")


# --- a user's own -----------------------------------------------------------------


def test_a_base_and_what_differs() -> None:
    got = own("{name: mine, base: vllm_eager, attention: FLASH_ATTN, engine_args: {max_num_seqs: 64}}")
    assert got == MethodSpec(
        "mine", "vllm", "FLASH_ATTN", eager=True, engine_args={"max_num_seqs": 64}, summary="vllm_eager with changes"
    )
    assert own("{name: n, base: hf_ngram, ngram: {max_n: 2}}").ngram == NgramSpec(1, 2, 3)
    assert own("{name: n, base: hf_ngram, ngram: null}").ngram is None


def test_engine_args_merge_level_by_level() -> None:
    got = own("{name: n, base: sglang_ngram, engine_args: {speculative_num_draft_tokens: 8, a: {b: [1], c: null}}}")
    assert got.engine_args == {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 8,
        "a": {"b": [1], "c": None},
    }
    assert BUILTIN["sglang_ngram"].engine_args["speculative_num_draft_tokens"] == 4


def test_spelled_out_whole() -> None:
    assert own("{name: n, engine: hf, attention: flex_attention}") == MethodSpec("n", "hf", "flex_attention")
    fault = own("{name: n, base: scripted, engine_args: {fault: {at: 'batch:3', do: exit0}}}")
    assert fault.engine_args == {"fault": {"at": "batch:3", "do": "exit0"}}


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("hf_spda", "methods[0]", "did you mean hf_sdpa?"),
        ("3", "methods[0]", "must be a method's name or a mapping, not 3"),
        ("{base: hf_sdpa}", "methods[0].name", "is missing"),
        ("{name: n}", "methods[0]", "needs a base, or an engine"),
        ("{name: n, base: hf_spda}", "methods[0].base", "did you mean hf_sdpa?"),
        ("{name: n, base: [hf_sdpa]}", "methods[0].base", "no built-in"),
        ("{name: n, base: null}", "methods[0].base", "no built-in"),
        ("{name: hf_sdpa, base: hf_sdpa, attention: eager}", "methods[0].name", "choose another name"),
        ("{name: a/b, base: hf_sdpa}", "methods[0].name", "use letters"),
        ("{name: n, base: hf_sdpa, engine: vllm}", "methods[0].engine", "can't change its base's engine"),
        ("{name: n, engine: vlm}", "methods[0].engine", "did you mean vllm?"),
        ("{name: n, base: hf_sdpa, atention: eager}", "methods[0].atention", "did you mean attention?"),
        ("{name: n, base: hf_sdpa, rocket_bucket: true}", "methods[0].rocket_bucket", "not available yet"),
        ("{name: n, base: hf_sdpa, eager: 1}", "methods[0].eager", "must be true or false or null, not 1"),
        ("{name: n, base: hf_sdpa, eager: true, compile: default}", "methods[0].compile", "contradicts"),
        ("{name: n, base: hf_sdpa, compile: fast}", "methods[0].compile", "default, max-autotune"),
        ("{name: n, base: vllm_ngram, ngram: {min_n: 4}}", "methods[0].ngram", "min_n 4 is more than max_n 3"),
        ("{name: n, base: hf_ngram, ngram: {min_n: 2}}", "methods[0].ngram", "must be 1"),
        ("{name: n, base: vllm_default, ngram: {min_n: 1}}", "methods[0].ngram", "lacks max_n"),
        (
            "{name: n, base: hf_ngram, ngram: {min_n: 0}}",
            "methods[0].ngram",
            "min_n: must be a whole number of at least 1",
        ),
        ("{name: n, base: hf_ngram, ngram: {n: 1}}", "methods[0].ngram", "has no such key as n"),
        ("{name: n, base: sglang_default, ngram: {min_n: 1, max_n: 2, draft_tokens: 2}}", "methods[0].ngram", "NGRAM"),
        ("{name: n, base: vllm_default, engine_args: {dtype: auto}}", "methods[0].engine_args", "settings.dtype"),
        ("{name: n, base: vllm_default, engine_args: {enforce_eager: true}}", "methods[0].engine_args", "write eager"),
        ("{name: n, base: vllm_default, engine_args: {a: {b: .nan}}}", "methods[0].engine_args", "finite"),
        (
            f"{{name: n, base: vllm_default, engine_args: {{a: [{2**64}]}}}}",
            "methods[0].engine_args",
            "than 2^63-1",
        ),
        ("{name: n, base: vllm_default, engine_args: 3}", "methods[0].engine_args", "must be a mapping"),
        (
            "{name: n, base: hf_sdpa, env_vars: {OMP_NUM_THREADS: 1}}",
            "methods[0].env_vars",
            "one of its values: must be text, not a whole number",
        ),
        ("{name: n, base: hf_sdpa, env_vars: {AIRLOCK_RUN: x}}", "methods[0].env_vars", "can't be set"),
        ("{name: n, base: hf_sdpa, env_vars: {'a=b': x}}", "methods[0].env_vars", "can't be set"),
    ],
)
def test_wrong_ones(text: str, key: str, says: str) -> None:
    found = problems(text)
    assert [(p.where, p.key) for p in found] == [("s.yaml:4", key)]
    assert says in str(found[0])


# --- what an engine can't do as asked ---------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("hf_ngram", {"batch_size": 2}, "batch_size 1"),
        ("hf_sdpa", {"tensor_parallel_size": 2}, "one device"),
        ("hf_sdpa", {"prefix_caching": True}, "prefix_caching"),
        ("hf_sdpa", {"torch_compile_mode": "default"}, "a method that compiles"),
        ("hf_sdpa", {"input_mode": "vision"}, "vision"),
        ("vllm_eager", {"torch_compile_cache_size_limit": 4}, "options of its own"),
        ("vllm_eager", {"tensor_parallel_size": 2}, "on a CPU"),
        ("sglang_torch_native", {"pipeline_parallel_size": 2}, "on a CPU"),
    ],
)
def test_misfits(name: str, more: dict[str, Any], says: str) -> None:
    assert methods.misfits(configured(BUILTIN[name], kv_cache_bytes=1)) == []
    found = methods.misfits(configured(BUILTIN[name], kv_cache_bytes=1, **more))
    assert len(found) == 1
    assert says in found[0]


def test_what_a_worker_would_refuse_is_refused_before_it_starts() -> None:
    """The worker checks again, after minutes of installing and importing."""
    changes: list[dict[str, Any]] = [
        {},
        {"tensor_parallel_size": 2},
        {"prefix_caching": True},
        {"torch_compile_mode": "default"},
        {"torch_compile_cache_size_limit": 3},
        {"input_mode": "vision"},
    ]
    extra = [
        MethodSpec("c", "hf", compile="default"),
        MethodSpec("d", "hf", compile="default", ngram=NgramSpec(1, 2, 2)),
        MethodSpec("e", "hf", eager=False),
        MethodSpec("f", "vllm", compile="default"),
        MethodSpec("g", "sglang", "torch_native", eager=False),
    ]
    seen = 0
    for method in [*BUILTIN.values(), *extra]:
        for change in changes:
            for device in ("cpu", "cuda"):
                config_ = configured(method, device=device, kv_cache_bytes=1, **change)
                if method.engine != "scripted" and list(refusals(config_)):
                    assert methods.misfits(config_), (method.name, change, list(refusals(config_)))
                    seen += 1
    assert seen > 20


def test_names() -> None:
    assert all(methods.is_name(n) for n in ("a", "A.b_c-9", "9"))
    assert not any(methods.is_name(n) for n in ("", ".a", "-a", "a/b", "a b", "ä", "a" * 65, "a\n"))
