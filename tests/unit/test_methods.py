"""Methods: what the built-ins are, what a user's own may be, and where each can't run."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator import config, methods
from orchestrator.definition.requirements import lacking
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
        with pytest.raises(AttributeError):
            method.attention = "other"  # type: ignore[misc]


def test_the_registry_can_t_be_changed_through_what_it_gives() -> None:
    methods.builtin().clear()
    assert methods.builtin() == BUILTIN


def test_engines_are_told_apart_by_one_thing_at_a_time() -> None:
    hf = {m.attention for m in BUILTIN.values() if m.engine == "hf"}
    assert hf == {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}
    whole = [replace(m, name="", summary="") for m in BUILTIN.values()]
    assert all(one not in whole[:n] for n, one in enumerate(whole)), "two names for one thing"
    assert BUILTIN["hf_paged"].continuous_batching
    assert (BUILTIN["hf_rocket"].compile, BUILTIN["hf_compile"].compile) == ("reduce-overhead", "default")
    assert [name for name, m in BUILTIN.items() if m.rocket_bucket] == [
        "hf_rocket",
        "vllm_rocket",
        "vllm_rocket_flash",
        "sglang_rocket",
    ]
    assert BUILTIN["vllm_eager"].eager is True
    assert BUILTIN["vllm_default"] == MethodSpec("vllm_default", "vllm", summary=BUILTIN["vllm_default"].summary)
    assert BUILTIN["hf_ngram"].ngram == BUILTIN["vllm_ngram"].ngram == NgramSpec(1, 3, 3)
    assert BUILTIN["sglang_ngram"].engine_args["speculative_algorithm"] == "NGRAM"


def test_these_run_on_cpus() -> None:
    refused = {n for n, m in BUILTIN.items() if methods.refuse(m, "cpu") or methods.misfits(configured(m))}
    assert [name for name in BUILTIN if name not in refused] == [
        *("hf_eager", "hf_sdpa", "hf_flex", "hf_paged", "hf_compile", "hf_rocket", "hf_ngram"),
        *("vllm_default", "vllm_eager", "vllm_multiprocess", "vllm_ngram"),
        *("sglang_torch_native", "sglang_flex", "scripted"),
    ]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("hf_flash", "hf_sdpa"),
        ("hf_flash3", "hf_sdpa"),
        ("vllm_fa", "vllm_eager"),
        ("vllm_rocket_flash", "vllm_eager"),
        ("vllm_flashinfer", "vllm_eager"),
        ("vllm_triton", "vllm_eager"),
        ("sglang_default", "sglang_torch_native"),
        ("sglang_flashinfer", "sglang_torch_native"),
        ("sglang_triton", "sglang_torch_native"),
        ("sglang_ngram", "sglang_torch_native"),
        ("sglang_rocket", "sglang_torch_native"),
    ],
)
def test_refused_on_cpus_with_what_to_use_instead(name: str, instead: str) -> None:
    assert instead in (methods.refuse(BUILTIN[name], "cpu") or "")
    assert methods.refuse(BUILTIN[instead], "cpu") is None


def test_every_builtin_runs_on_gpus_and_cpu_attention_does_not() -> None:
    assert [m.name for m in BUILTIN.values() if methods.refuse(m, "cuda")] == []
    assert methods.refuse(MethodSpec("x", "vllm", "CPU_ATTN"), "cuda")
    assert methods.refuse(MethodSpec("x", "sglang", "intel_amx"), "cuda")


@pytest.mark.parametrize(
    ("capability", "refused"),
    [
        ((7, 0), {"hf_flash", "hf_flash3", "vllm_fa", "vllm_rocket_flash", "vllm_flashinfer", "every sglang"}),
        ((7, 5), {"hf_flash", "hf_flash3", "vllm_fa", "vllm_rocket_flash", "vllm_flashinfer"}),
        ((8, 0), set()),
        ((9, 0), set()),
        ((10, 0), {"hf_flash3"}),
    ],
)
def test_a_gpu_whose_compute_capability_does_not_do_is_named(capability: tuple[int, int], refused: set[str]) -> None:
    every = {"every sglang"} & refused
    expected = (refused - every) | ({n for n in BUILTIN if n.startswith("sglang")} if every else set())
    gpus = [("GPU 0 (GPU-a)", None), ("GPU 1 (GPU-b) Tesla", capability)]
    found = {name: methods.refuse(m, "cuda", gpus) for name, m in BUILTIN.items()}
    assert {name for name, why in found.items() if why} == expected
    assert all("GPU 1 (GPU-b) Tesla has " + ".".join(map(str, capability)) in why for why in found.values() if why)


def test_bounds_of_capabilities_are_in_the_sentence() -> None:
    (too_new, too_old) = (methods.refuse(BUILTIN["hf_flash3"], "cuda", [("GPU 0", c)]) for c in ((12, 0), (7, 5)))
    assert too_new == "flash_attention_3 needs compute capability 8.0 to 9.0, and GPU 0 has 12.0"
    assert too_old == "flash_attention_3 needs compute capability 8.0 to 9.0, and GPU 0 has 7.5"
    compiled = methods.refuse(BUILTIN["hf_compile"], "cuda", [("GPU 0", (6, 1))])
    assert compiled == "torch.compile needs compute capability 7.0 or more, and GPU 0 has 6.1"


def test_a_missing_package_is_named_and_one_of_several_is_enough() -> None:
    flash = BUILTIN["hf_flash"]
    assert lacking(flash, {"flash-attn": "2.8.3"}, {}) is None
    assert lacking(flash, {"kernels": "0.17.2"}, {}) is None
    assert lacking(flash, {"flash-attn": "2.8.3", "kernels": "0.14.1"}, {"kernels": "ImportError: x"}) is None
    none = "flash_attention_2 needs flash-attn or kernels==0.17.*"
    assert lacking(flash, {"torch": "2"}, {}) == f"{none} (flash-attn: not installed, kernels==0.17.*: not installed)"
    old = lacking(flash, {"flash-attn": "2.8.3", "kernels": "0.14.1"}, {"flash_attn": "ImportError: y"})
    assert old == f"{none} (flash-attn: installed, but broken: ImportError: y, kernels==0.17.*: installed as 0.14.1)"
    assert (
        lacking(BUILTIN["sglang_flashinfer"], {}, {})
        == "flashinfer needs flashinfer-python (flashinfer-python: not installed)"
    )
    assert [m.name for m in BUILTIN.values() if lacking(m, {}, {})] == [
        *("hf_flash", "hf_flash3", "vllm_flashinfer", "sglang_flashinfer")
    ]


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
    base = BUILTIN["sglang_ngram"].engine_args
    assert got.engine_args == {**base, "speculative_num_draft_tokens": 8, "a": {"b": [1], "c": None}}
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
        ("{name: n, base: [hf_sdpa]}", "methods[0].base", "must be a method's name, not a list"),
        ("{name: n, base: null}", "methods[0].base", "must be a method's name, not null"),
        ("{name: n, base: mine}", "methods[0].base", "outside this file no method is called mine"),
        ("{nam: n, base: hf_sdpa}", "methods[0].nam", "did you mean name?"),
        ("{name: n, bse: hf_sdpa}", "methods[0].bse", "did you mean base?"),
        ("{hf_sdpa: {eager: true}}", "methods[0]", "write {name: my_hf_sdpa, base: hf_sdpa, …}"),
        ("'hf_sdpa, hf_eager'", "methods[0]", "write a list: [hf_sdpa, hf_eager]"),
        ("{name: n, base: hf_sdpa, batch_size: 4}", "methods[0].batch_size", "put it under settings, sampling"),
        ("{name: hf_sdpa, base: hf_sdpa, attention: eager}", "methods[0].name", "choose another name"),
        ("{name: a/b, base: hf_sdpa}", "methods[0].name", "use letters"),
        ("{name: n, base: hf_sdpa, engine: vllm}", "methods[0].engine", "can't change its base's engine"),
        ("{name: n, engine: vlm}", "methods[0].engine", "did you mean vllm?"),
        ("{name: n, base: hf_sdpa, atention: eager}", "methods[0].atention", "did you mean attention?"),
        ("{name: n, base: hf_paged, rocket_bucket: true}", "methods[0].rocket_bucket", "a paged cache pads nothing"),
        (
            "{name: n, base: vllm_eager, continuous_batching: true}",
            "methods[0].continuous_batching",
            "always batch so",
        ),
        ("{name: n, base: hf_sdpa, eager: 1}", "methods[0].eager", "must be true or false or null, not 1"),
        ("{name: n, base: hf_sdpa, eager: true, compile: default}", "methods[0].compile", "contradicts"),
        ("{name: n, base: hf_sdpa, compile: fast}", "methods[0].compile", "default, max-autotune"),
        ("{name: n, base: vllm_ngram, ngram: {min_n: 4}}", "methods[0].ngram", "min_n 4 is more than max_n 3"),
        ("{name: n, base: hf_ngram, ngram: {min_n: 2}}", "methods[0].ngram", "must be 1"),
        ("{name: n, base: vllm_default, ngram: {min_n: 1}}", "methods[0].ngram", "lacks max_n"),
        (
            "{name: n, base: hf_ngram, ngram: {min_n: 0}}",
            "methods[0].ngram.min_n",
            "must be a whole number, 1 or more, not 0",
        ),
        ("{name: n, base: hf_ngram, ngram: {n: 1}}", "methods[0].ngram.n", "has no such key"),
        ("{name: n, base: sglang_default, ngram: {min_n: 1, max_n: 2, draft_tokens: 2}}", "methods[0].ngram", "NGRAM"),
        ("{name: n, base: vllm_default, engine_args: {dtype: auto}}", "methods[0].engine_args.dtype", "settings.dtype"),
        (
            "{name: n, base: vllm_default, engine_args: {enforce_eager: true}}",
            "methods[0].engine_args.enforce_eager",
            "write eager",
        ),
        ("{name: n, base: vllm_default, engine_args: {a: {b: .nan}}}", "methods[0].engine_args.a.b", "finite"),
        (
            f"{{name: n, base: vllm_default, engine_args: {{a: [{2**64}]}}}}",
            "methods[0].engine_args.a[0]",
            "than 2^63-1",
        ),
        ("{name: n, base: vllm_default, engine_args: 3}", "methods[0].engine_args", "must be a mapping"),
        (
            "{name: n, base: hf_sdpa, env_vars: {OMP_NUM_THREADS: 1}}",
            "methods[0].env_vars.OMP_NUM_THREADS",
            "must be text, not 1 (write it in quotes)",
        ),
        ("{name: n, base: hf_sdpa, worker: [./mine]}", "methods[0].worker", "looked for in each worker's own folder"),
        ("{name: n, base: hf_sdpa, worker: ['']}", "methods[0].worker", "looked for in each worker's own folder"),
        ("{name: n, base: hf_sdpa, env_vars: {AIRLOCK_RUN: x}}", "methods[0].env_vars.AIRLOCK_RUN", "can't be set"),
        ("{name: n, base: hf_sdpa, env_vars: {'a=b': x}}", "methods[0].env_vars.a=b", "can't be set"),
        ("{name: [1], base: hf_sdpa}", "methods[0].name", "must be text"),
        ("{name: {a: 1}, base: hf_sdpa}", "methods[0].name", "must be text"),
        (
            "{name: n, base: hf_sdpa, env_vars: {CUDA_VISIBLE_DEVICES: '1'}}",
            "methods[0].env_vars.CUDA_VISIBLE_DEVICES",
            "the slot",
        ),
        ("{name: n, base: hf_sdpa, env_vars: {TMPDIR: /x}}", "methods[0].env_vars.TMPDIR", "a folder of its own"),
        (
            "{name: n, base: hf_sdpa, env_vars: {TRITON_CACHE_DIR: /x}}",
            "methods[0].env_vars.TRITON_CACHE_DIR",
            "cold or warm",
        ),
        ("{name: n, base: hf_sdpa, env_vars: {HF_TOKEN: x}}", "methods[0].env_vars.HF_TOKEN", "workers inherit it"),
        (
            "{name: n, base: hf_sdpa, env_vars: {HTTPS_PROXY: 'http://me:pw@proxy:3128'}}",
            "methods[0].env_vars.HTTPS_PROXY",
            "workers inherit it",
        ),
        (
            "{name: n, base: hf_sdpa, engine_args: {a: {hf_token: x}}}",
            "methods[0].engine_args.a.hf_token",
            "is a secret",
        ),
    ],
)
def test_wrong_ones(text: str, key: str, says: str) -> None:
    found = problems(text)
    assert [(p.where, p.key) for p in found] == [("s.yaml:4", key)]
    assert says in str(found[0])


def test_what_is_too_large_to_be_handed_to_a_worker_is_found_before_one_starts() -> None:
    long = "x" * (1 << 20)
    (found,) = problems(f"{{name: n, base: vllm_eager, engine_args: {{chat_template: {long}}}}}")
    assert found.key == "methods[0].engine_args"
    assert "KiB, and a worker can be told 960 KiB" in found.message
    (found,) = problems(f"{{name: n, base: vllm_eager, env_vars: {{A: {long[: 128 << 10]}}}}}")
    assert found.key == "methods[0].env_vars.A"
    assert "131074 bytes with its name, and the system takes 131071" in found.message
    most = long[: (128 << 10) - 3]
    assert own(f"{{name: n, base: vllm_eager, env_vars: {{A: {most}}}}}").env_vars == {"A": most}


# --- what an engine can't do as asked ---------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("hf_ngram", {"batch_size": 2}, "batch_size 1"),
        ("hf_compile", {"tensor_parallel_size": 2}, "tensor parallelism goes with none"),
        ("hf_sdpa", {"pipeline_parallel_size": 2}, "one device"),
        ("hf_flex", {"batch_size": 2}, "no kernel for padding"),
        ("hf_rocket", {"batch_size": 8, "bucket_batch_sizes": (2, 4)}, "no bucket holds a batch of 8"),
        ("hf_rocket", {"task": "score"}, "one plain forward pass"),
        ("hf_compile", {"expert_load": True}, "uncompiled"),
        ("hf_paged", {"logprobs": 1}, "no log-probabilities"),
        ("hf_sdpa", {"prefix_caching": True}, "prefix_caching"),
        ("hf_paged", {"images_per_prompt": 1}, "prompts with images"),
        ("hf_sdpa", {"images_per_prompt": 1, "task": "score"}, "can't be scored"),
        ("vllm_eager", {"pipeline_parallel_size": 2}, "on a CPU"),
        ("vllm_default", {"expert_load": True}, "it needs eager"),
    ],
)
def test_misfits(name: str, more: dict[str, Any], says: str) -> None:
    assert methods.misfits(configured(BUILTIN[name], kv_cache_bytes=1)) == []
    found = methods.misfits(configured(BUILTIN[name], kv_cache_bytes=1, **more))
    assert len(found) == 1
    assert says in found[0]


def test_plan_and_worker_refuse_the_same() -> None:
    """The worker checks again, after minutes of installing and importing, whoever started it."""
    changes: list[dict[str, Any]] = [
        {},
        {"tensor_parallel_size": 2},
        {"prefix_caching": True},
        {"torch_compile_mode": "default"},
        {"torch_compile_cache_size_limit": 3},
        {"input_mode": "vision", "images_per_prompt": 1},
        {"input_mode": "vision", "images_per_prompt": 1, "task": "score"},
        {"expert_load": True},
        {"bucket_lengths": (64,)},
        {"bucket_batch_sizes": (1,), "batch_size": 4},
        {"task": "score", "logprobs": 5},
    ]
    extra = [
        MethodSpec("c", "hf", compile="default"),
        MethodSpec("d", "hf", compile="default", ngram=NgramSpec(1, 2, 2)),
        MethodSpec("e", "hf", eager=False),
        MethodSpec("f", "vllm", compile="default"),
        MethodSpec("g", "sglang", "torch_native", eager=False),
    ]
    seen = 0
    kinds: tuple[methods.Kind, ...] = ("cpu", "cuda")
    for method, change, device in product([*BUILTIN.values(), *extra], changes, kinds):
        if method.engine == "scripted" or (method.name in ("hf_ngram", "hf_flex") and "batch_size" in change):
            continue  # a worker of these refuses each batch that is too large, not the load
        config_ = configured(method, device=device, kv_cache_bytes=1, **change)
        planned = [methods.refuse(method, device), *methods.misfits(config_)]
        assert any(planned) == any(refusals(config_)), (method.name, change, device, planned, list(refusals(config_)))
        seen += any(planned)
    assert seen > 100


def test_names() -> None:
    assert all(methods.is_name(n) for n in ("a", "A.b_c-9", "9"))
    assert not any(methods.is_name(n) for n in ("", ".a", "-a", "a/b", "a b", "ä", "a" * 65, "a\n"))
