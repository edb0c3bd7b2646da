"""What vLLM and SGLang are told, and how a step clock tells times. No engine is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.specs import BackendConfig, CallParams, MethodSpec, NgramSpec
from workers.backends import runtime, sglang_args, vllm_args
from workers.backends.model_folder import UnknownCacheShape, dtype_of, kv_bytes_per_token
from workers.backends.vllm_args import short_path

SHAPE = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_config(tmp_path, SHAPE)


def write_config(folder: Path, shape: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def config(model: str, engine: str, method: dict[str, Any] | None = None, **fields: Any) -> BackendConfig:
    spec = MethodSpec(**{"name": "m", "engine": engine, **(method or {})})
    return BackendConfig(method=spec, model_path=model, **fields)


def call(**fields: Any) -> CallParams:
    defaults = {"batch_size": 1, "max_new_tokens": 8, "temperature": 0.0, "top_p": 0.9, "seed": 3, "ignore_eos": False}
    return CallParams(**{**defaults, "stop_token_ids": (2, 7), **fields})


def sglang(settings: BackendConfig) -> dict[str, Any]:
    return sglang_args.engine_args(settings, print)


def test_vllm_leaves_its_own_choices_out(model: str) -> None:
    told = vllm_args.engine_args(config(model, "vllm"))
    assert not {"attention_backend", "enforce_eager", "max_model_len", "speculative_config"} & told.keys()
    assert told["generation_config"] == "vllm"
    assert told["enable_prefix_caching"] is False


def test_vllm_reads_the_files_that_the_other_engines_read(model: str) -> None:
    """Mistral's repositories hold the weights once more in a format of their own, which vLLM would take."""
    names = {"config_format", "load_format"}
    for name, told in (("consolidated.safetensors", {}), ("model.safetensors.index.json", vllm_args.HF_FILES)):
        (Path(model) / name).touch()
        found = vllm_args.engine_args(config(model, "vllm"))
        assert {key: found[key] for key in names & found.keys()} == told


def test_vllm_is_told_what_was_chosen(model: str) -> None:
    method = {"attention": "FLASH_ATTN", "eager": False, "ngram": NgramSpec(2, 4, 5)}
    told = vllm_args.engine_args(config(model, "vllm", method, kv_cache_bytes=1000, max_model_len=64))
    assert (told["attention_backend"], told["enforce_eager"], told["kv_cache_memory_bytes"]) == (
        "FLASH_ATTN",
        False,
        1000,
    )
    assert told["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


def test_sglang_on_a_cpu_gets_the_cache_in_tokens(model: str) -> None:
    told = sglang(config(model, "sglang", {"attention": "flex_attention"}, kv_cache_bytes=TOKEN_BYTES * 100 + 1))
    assert (told["max_total_tokens"], told["device"], told["attention_backend"]) == (100, "cpu", "flex_attention")
    assert told["disable_radix_cache"] is True


def test_sglang_on_a_gpu_keeps_its_own_choices(model: str) -> None:
    told = sglang(config(model, "sglang", device="cuda", sglang_mem_fraction_static=0.5))
    assert told["mem_fraction_static"] == 0.5
    assert not {"attention_backend", "disable_overlap_schedule", "sampling_backend", "max_total_tokens"} & told.keys()


def test_sglang_gets_room_for_the_tokens_that_it_would_cut(model: str) -> None:
    assert sglang(config(model, "sglang", kv_cache_bytes=10**9, max_model_len=256))["context_length"] == 263
    assert sglang(config(model, "sglang", kv_cache_bytes=10**9, max_model_len=8190))["context_length"] == 8192
    # SGLang says no to this one itself.
    assert sglang(config(model, "sglang", kv_cache_bytes=10**9, max_model_len=9000))["context_length"] == 9000


@pytest.mark.parametrize(
    ("asked", "context", "kv_tokens", "usable"),
    [(256, 263, 9999, 256), (8190, 8192, 9999, 8185), (256, 263, 100, 93), (None, 520, 9999, 513)],
)
def test_usable_length_is_what_is_served_whole(
    model: str, asked: int | None, context: int, kv_tokens: int, usable: int
) -> None:
    assert sglang_args.usable_length(config(model, "sglang", max_model_len=asked), context, kv_tokens) == usable


def test_sglang_sampling_is_explicit() -> None:
    greedy = sglang_args.sampling_params(call())
    assert (greedy["temperature"], greedy["top_p"], greedy["top_k"]) == (0.0, 1.0, -1)
    assert greedy["stop_token_ids"] == [2, 7]
    fixed = sglang_args.sampling_params(call(ignore_eos=True, temperature=0.5))
    assert (fixed["ignore_eos"], fixed["stop_token_ids"], fixed["top_p"]) == (True, [], 0.9)


def test_auto_dtype_is_the_checkpoints_own(tmp_path: Path) -> None:
    assert dtype_of(config(write_config(tmp_path, {"torch_dtype": "float32"}), "vllm")) == "float32"
    assert dtype_of(config(write_config(tmp_path, {"text_config": {"dtype": "float16"}}), "vllm")) == "float16"
    assert dtype_of(config(write_config(tmp_path, {}), "vllm")) == "auto"
    assert dtype_of(config("/nowhere", "vllm", dtype="bfloat16")) == "bfloat16"


def test_cache_bytes_of_a_token() -> None:
    assert kv_bytes_per_token(SHAPE, "bfloat16") == TOKEN_BYTES
    assert kv_bytes_per_token(SHAPE, "float32", tensor_parallel=3, pipeline_parallel=2) == 2 * 15 * 1 * 64 * 4
    without = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    assert kv_bytes_per_token(without, "float16") == 2 * 2 * 4 * 8 * 2


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ({**SHAPE, "kv_lora_rank": 512}, "bfloat16"),
        ({**SHAPE, "layer_types": ["full_attention", "sliding_attention"]}, "bfloat16"),
        ({}, "bfloat16"),
        (SHAPE, "auto"),
    ],
)
def test_a_cache_of_another_kind_is_not_guessed(shape: dict[str, Any], dtype: str) -> None:
    with pytest.raises(UnknownCacheShape):
        kv_bytes_per_token(shape, dtype)


def test_overrides_of_our_own_values_are_flagged() -> None:
    ours = {"dtype": "bfloat16", "seed": 0}
    assert runtime.overridden(ours, {"dtype": "float32", "seed": 0, "other": 1}) == ["engine_args_override:dtype"]


def test_a_difference_is_flagged_only_between_two_known_values() -> None:
    asked = {"length": 256, "eager": False, "dtype": "FLOAT16", "left_open": None, "cache": "auto", "untold": 3}
    found = {"length": 128, "eager": True, "dtype": "float16", "left_open": 1, "cache": "fp8", "untold": None}
    assert runtime.not_honoured(asked, found) == [
        "length_not_honoured",
        "eager_not_honoured",
    ]


def test_sockets_get_the_shorter_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path holds 107 bytes; a worker works in its own folder, so its relative path always fits."""
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.chdir(long)
    assert short_path(str(long)) == "."
    monkeypatch.chdir("/")
    assert short_path("/tmp") in ("/tmp", "tmp")
    monkeypatch.chdir(tmp_path)
    assert short_path("/tmp") == "/tmp"
