"""What no engine may be given, and what an engine may not be asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.specs import BackendConfig, CallParams, MethodSpec, NgramSpec, PromptBatch, PromptInput, pack_ids
from workers.backends.admission import CannotHonour, NotAdmitted, admit, check, refusals

CALL = CallParams(
    batch_size=4, max_new_tokens=8, temperature=0.0, top_p=1.0, seed=0, ignore_eos=False, stop_token_ids=(2,)
)
GIB = 1 << 30


def batch(**prompts: list[int]) -> PromptBatch:
    return PromptBatch("b", [PromptInput(name, pack_ids(ids)) for name, ids in prompts.items()], CALL)


def config(engine: str, method: dict[str, Any] | None = None, **fields: Any) -> BackendConfig:
    native = {"attention": "torch_native"} if engine == "sglang" else {}
    spec = MethodSpec(**{"name": "m", "engine": engine, **native, **(method or {})})
    return BackendConfig(**{"method": spec, "model_path": "/model", "kv_cache_bytes": GIB, **fields})


def test_admits_exactly_up_to_the_limit() -> None:
    assert admit(batch(a=[1] * 24, b=[3, 4]), max_model_len=32, vocab_size=5) == [[1] * 24, [3, 4]]
    with pytest.raises(NotAdmitted, match="prompt a: 25 tokens and 8 new ones exceed the limit of 32"):
        admit(batch(a=[1] * 25), max_model_len=32, vocab_size=5)


def test_lists_every_bad_prompt() -> None:
    with pytest.raises(NotAdmitted) as caught:
        admit(batch(good=[1], empty=[], outside=[1, 5]), max_model_len=32, vocab_size=5)
    assert str(caught.value) == "prompt empty: has no tokens; prompt outside: token id 5 is outside the vocabulary of 5"


def test_unknown_limits_are_not_checked() -> None:
    assert admit(batch(a=[10**6] * 50), max_model_len=None, vocab_size=None) == [[10**6] * 50]


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_the_plain_method_is_honoured(engine: str) -> None:
    assert list(refusals(config(engine))) == []
    assert list(refusals(config(engine, {"eager": True}))) == []


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("hf", {"attention": "flash_attention_2", "eager": False}),
        ("vllm", {"attention": "FLASH_ATTN", "compile": "default"}),
        ("sglang", {"attention": "fa3", "compile": "default"}),
    ],
)
def test_all_reasons_come_at_once(engine: str, method: dict[str, Any]) -> None:
    with pytest.raises(CannotHonour, match=rf"{method['attention']}.*; .*compil"):
        check(config(engine, method))


@pytest.mark.parametrize(
    ("engine", "method", "device"),
    [
        ("hf", {"attention": "flash_attention_3"}, "cpu"),
        ("vllm", {"attention": "TRITON_ATTN"}, "cpu"),
        ("vllm", {"attention": "CPU_ATTN"}, "cuda"),
        ("sglang", {"attention": None}, "cpu"),
        ("sglang", {"attention": "intel_amx"}, "cuda"),
        ("sglang", {"engine_args": {"speculative_algorithm": "NGRAM"}}, "cpu"),
    ],
)
def test_what_needs_another_kind_of_device_is_refused_there_alone(
    engine: str, method: dict[str, Any], device: str
) -> None:
    other = "cuda" if device == "cpu" else "cpu"
    assert len(list(refusals(config(engine, method, device=device)))) == 1
    assert list(refusals(config(engine, method, device=other))) == []


def test_to_score_there_is_room_for_a_continuation_and_one_token_more_and_something_to_score() -> None:
    score = msgspec.structs.replace(CALL, task="score")
    whole, none, all_of_it = (PromptInput(str(at), pack_ids([1] * 31), score_from=at) for at in (7, 31, 0))
    assert admit(PromptBatch("b", [whole], score), max_model_len=32, vocab_size=5) == [[1] * 31]
    with pytest.raises(NotAdmitted, match="31 tokens and 1 new ones exceed the limit of 31"):
        admit(PromptBatch("b", [whole], score), max_model_len=31, vocab_size=5)
    with pytest.raises(NotAdmitted) as caught:
        admit(PromptBatch("b", [whole, none, all_of_it, PromptInput("bare", pack_ids([1]))], score), None, None)
    assert str(caught.value) == "; ".join(f"prompt {name}: has nothing to score" for name in ("31", "0", "bare"))


@pytest.mark.parametrize(
    ("engine", "method", "fields", "why"),
    [
        ("hf", {"compile": "default"}, {"tensor_parallel_size": 2}, "goes with none of"),
        ("hf", {}, {"pipeline_parallel_size": 2}, "one device"),
        ("hf", {}, {"prefix_caching": True}, "prefix_caching"),
        ("hf", {"compile": "default", "eager": True}, {}, "exclude"),
        ("hf", {"eager": False}, {}, "compile mode"),
        ("hf", {"ngram": NgramSpec(2, 3, 4)}, {}, "min_n"),
        ("hf", {"ngram": NgramSpec(1, 3, 4), "compile": "default"}, {}, "static cache"),
        ("vllm", {"compile": "default"}, {}, "options of its own"),
        ("vllm", {}, {"kv_cache_bytes": None}, "kv_cache_bytes"),
        ("vllm", {"eager": True}, {"pipeline_parallel_size": 2}, "pipeline stages"),
        ("vllm", {}, {"expert_load": True}, "it needs eager"),
        ("vllm", {"rocket_bucket": True}, {}, "none on a CPU"),
        ("vllm", {"rocket_bucket": True, "eager": True}, {"device": "cuda"}, "eager leaves them out"),
        ("sglang", {"compile": "default"}, {}, "options of its own"),
        ("sglang", {"ngram": NgramSpec(1, 3, 4)}, {}, "trie"),
        ("sglang", {}, {"kv_cache_bytes": None}, "kv_cache_bytes"),
        ("sglang", {"eager": False}, {}, "CUDA graphs"),
        ("sglang", {"eager": False}, {"device": "cuda"}, "torch_native runs without the CUDA graphs"),
        ("sglang", {"rocket_bucket": True}, {"device": "cuda"}, "torch_native runs without the CUDA graphs"),
        ("sglang", {"rocket_bucket": True}, {}, "none on a CPU"),
        (
            "sglang",
            {"rocket_bucket": True, "attention": None},
            {"device": "cuda", "batch_size": 8, "bucket_batch_sizes": (4, 2)},
            "no bucket holds a batch of 8",
        ),
    ],
)
def test_what_would_be_ignored_or_approximated_is_refused(
    engine: str, method: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    (only,) = refusals(config(engine, method, **fields))
    assert why in only


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_settings_of_other_methods_of_the_sweep_are_no_reason(engine: str) -> None:
    """The plan says that they do nothing here."""
    settings: dict[str, Any] = {"torch_compile_mode": "default", "torch_compile_cache_size_limit": 9}
    settings |= {"bucket_lengths": (64,), "max_num_batched_tokens": 64}
    settings |= {"gpu_memory_utilization": 0.5, "sglang_mem_fraction_static": 0.5}
    assert list(refusals(config(engine, **settings))) == []


def test_a_gpu_needs_no_size_of_the_cache() -> None:
    for engine in ("vllm", "sglang"):
        assert list(refusals(config(engine, device="cuda", kv_cache_bytes=None))) == []
