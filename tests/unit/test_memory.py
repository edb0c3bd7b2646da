"""The size of a model and of its KV cache, by figures that its makers or engines publish."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.memory import (
    CacheLayers,
    Estimate,
    ModelShape,
    estimate,
    kv_cache_bytes,
    shape_of,
    share_of,
    weights_bytes,
)
from protocol.buckets import choose
from protocol.specs import BackendConfig, MethodSpec
from workers.tools.model_shape import cache_layers, model_shape, stored_weights

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
LLAMA_8B |= {"intermediate_size": 14336, "vocab_size": 128256}
MISTRAL = {**LLAMA_8B, "sliding_window": 4096}
DEEPSEEK_V3 = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GEMMA3_1B: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
}
GEMMA3_1B |= {"sliding_window": 512, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
HYBRID: dict[str, Any] = {
    **LLAMA_8B,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
TWO_BYTES = 2


def config(engine: str = "vllm", **more: Any) -> BackendConfig:
    method = MethodSpec("m", engine, **more.pop("method", {}))  # type: ignore[arg-type]
    given: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_model_len": 1024, "batch_size": 4}
    return BackendConfig(method=method, model_path="m", **{**given, **more})


def layers(of: Mapping[str, Any]) -> tuple[CacheLayers, ...]:
    return tuple(msgspec.convert(cache_layers(of.get), list[CacheLayers]))


def shape(of: Mapping[str, Any], **more: Any) -> ModelShape:
    return ModelShape(layers(of), 4096, 14336, 128256, more.get("weights", {"BF16": 16}), more.get("float_values", 8))


def bytes_of(of: Mapping[str, Any], tokens: int, sequences: int = 1, **more: Any) -> int:
    return kv_cache_bytes(shape(of), tokens, sequences, TWO_BYTES, config(**more))


@pytest.mark.parametrize(
    ("of", "tokens", "expected"),
    [
        pytest.param(LLAMA_8B, 1, 128 * 1024, id="grouped queries: 128 KiB a token"),
        pytest.param(MISTRAL, 4096, 512 * 2**20, id="window not reached"),
        pytest.param(MISTRAL, 32768, 512 * 2**20, id="window: 512 MiB, however long"),
        pytest.param(DEEPSEEK_V3, 1, 70272, id="latent attention: 70272 bytes a token"),
        pytest.param(GEMMA3_1B, 2048, 2 * 256 * 2 * (5 * 512 + 2048), id="five layers of six slide"),
        pytest.param(HYBRID, 10, 2 * 8 * 128 * 2 * 10, id="only attention keeps tokens"),
        pytest.param({**MISTRAL, "use_sliding_window": False}, 32768, 4096 * 2**20, id="a window that is off"),
    ],
)
def test_the_kv_cache_of_known_models(of: Mapping[str, Any], tokens: int, expected: int) -> None:
    assert bytes_of(of, tokens) == expected
    assert bytes_of(of, tokens, sequences=3) == 3 * expected


def test_heads_and_layers_are_divided_and_no_head_is_cut() -> None:
    whole = bytes_of(LLAMA_8B, 100)
    assert bytes_of(LLAMA_8B, 100, tensor_parallel_size=4, pipeline_parallel_size=2) == whole // 8
    assert bytes_of(LLAMA_8B, 100, tensor_parallel_size=16) == whole // 8
    assert bytes_of(DEEPSEEK_V3, 100, tensor_parallel_size=8) == bytes_of(DEEPSEEK_V3, 100)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads"])
def test_what_the_config_does_not_tell_is_not_guessed(name: str) -> None:
    of = {key: value for key, value in LLAMA_8B.items() if key != name}
    of.pop("num_key_value_heads", None)
    assert cache_layers(of.get) == []


def test_values_of_another_width_than_keys() -> None:
    of = {**LLAMA_8B, "head_dim": 192, "v_head_dim": 128}
    assert bytes_of(of, 1) == 32 * 8 * (192 + 128) * 2


@given(tokens=st.integers(1, 10**6), sequences=st.integers(1, 512), parts=st.integers(1, 64))
def test_more_work_never_needs_less(tokens: int, sequences: int, parts: int) -> None:
    for of in (LLAMA_8B, MISTRAL, DEEPSEEK_V3, GEMMA3_1B):
        need = bytes_of(of, tokens, sequences, tensor_parallel_size=parts)
        assert 0 < need <= bytes_of(of, tokens + 1, sequences, tensor_parallel_size=parts)
        assert need < bytes_of(of, tokens, sequences + 1, tensor_parallel_size=parts)
        assert need <= bytes_of(of, tokens, sequences)


# --- weights ----------------------------------------------------------------------------------


def checkpoint(folder: Path, name: str, tensors: Mapping[str, tuple[str, int]]) -> None:
    at = 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for tensor, (dtype, size) in tensors.items():
        header[tensor] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * at)


def test_weights_by_what_the_headers_say(tmp_path: Path) -> None:
    checkpoint(tmp_path, "model-1.safetensors", {"a": ("BF16", 20), "b": ("F32", 40)})
    checkpoint(tmp_path, "model-2.safetensors", {"c": ("F8_E4M3", 100)})
    sizes, floats = stored_weights(str(tmp_path)) or ({}, 0)
    assert (sizes, floats) == ({"BF16": 20, "F32": 40, "F8_E4M3": 100}, 10 + 10)
    found = shape_of(model_shape(str(tmp_path), LLAMA_8B.get))
    assert found is not None
    assert weights_bytes(found, 2) == 100 + 20 * 2
    assert weights_bytes(found, 4) == 100 + 20 * 4


INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})


@pytest.mark.parametrize(
    ("files", "index", "expected"),
    [
        (["model-1", "model-2", "consolidated"], INDEX, 2),
        (["model-1", "model-2", "consolidated"], None, 2),
        (["model-1", "model-2", "consolidated-1", "consolidated-2"], None, 2),
        (["model-1", "model-2", "model-3", "other"], INDEX, 2),
        (["model", "consolidated"], None, 1),
        (["model", "model.fp16", "adapter_model"], None, 1),
        (["consolidated"], None, 1),
        (["weights-1", "weights-2", "weights-3"], None, 3),
        (["model-1"], INDEX, None),
        (["model-1"], "{}", None),
        (["model-1"], '{"weight_map": [1]}', None),
        (["model-1"], "nonsense", None),
    ],
)
def test_weights_that_lie_there_twice_count_once(
    tmp_path: Path, files: list[str], index: str | None, expected: int | None
) -> None:
    for name in files:
        checkpoint(tmp_path, f"{name}.safetensors", {name: ("BF16", 20)})
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
    found = stored_weights(str(tmp_path))
    assert (found and found[0]["BF16"] // 20) == expected


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2**40)])
def test_weights_that_can_t_be_read_are_not_guessed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_weights(str(tmp_path)) is None
    assert model_shape(str(tmp_path), LLAMA_8B.get) is None


# --- the whole ------------------------------------------------------------------------------------


def test_an_estimate_adds_up() -> None:
    found = estimate(shape(LLAMA_8B, weights={"BF16": 16 * 10**9}, float_values=8 * 10**9), "bfloat16", config())
    assert found is not None
    assert (found.weights_bytes, found.kv_bytes, found.kv_token_bytes) == (16 * 10**9, 4 * 2**27, 2**17)
    assert found.total_bytes == found.weights_bytes + found.kv_bytes + found.activations_bytes + found.graphs_bytes
    assert found.graphs_bytes > 0


@pytest.mark.parametrize(
    ("change", "field", "factor"),
    [
        ({"dtype": "float32"}, "weights_bytes", 2),
        ({"dtype": "float32"}, "kv_bytes", 2),
        ({"method": {"engine_args": {"kv_cache_dtype": "fp8"}}}, "kv_bytes", 0.5),
        ({"tensor_parallel_size": 2}, "weights_bytes", 0.5),
        ({"method": {"eager": True}}, "graphs_bytes", 0),
        ({"device": "cpu"}, "graphs_bytes", 0),
        ({"batch_size": 8}, "kv_bytes", 2),
    ],
)
def test_what_changes_an_estimate(change: dict[str, Any], field: str, factor: float) -> None:
    base, other = (estimate(shape(LLAMA_8B), "bfloat16", config(**more)) for more in ({}, change))
    assert getattr(other, field) == getattr(base, field) * factor


def estimated(engine: str = "hf", **more: Any) -> Estimate:
    found = estimate(shape(LLAMA_8B), "bfloat16", config(engine, **more))
    assert found is not None
    return found


def of_tokens(tokens: int, rows: int) -> int:
    """What the activations of a step come to in the model above, in bfloat16."""
    return tokens * (4 * 4096 + 3 * 14336) * TWO_BYTES + rows * 128256 * 4


ROCKET = {"rocket_bucket": True, "compile": "reduce-overhead"}


@pytest.mark.parametrize(
    ("more", "batches", "length"),
    [
        ({}, (1, 2, 4), 1024 - 32),
        ({"batch_size": 6, "max_new_tokens": 24}, (1, 2, 4, 6), 1000),
        ({"batch_size": 6, "bucket_batch_sizes": (8, 16)}, (8,), 992),
        ({"bucket_lengths": (64, 256)}, (1, 2, 4), 256),
    ],
)
def test_buckets_take_what_the_worker_makes_of_them(
    more: dict[str, Any], batches: tuple[int, ...], length: int
) -> None:
    """A static cache for each batch bucket, all of one length; a step is the largest bucket."""
    asked = config("hf", method=ROCKET, **more)
    buckets = choose(asked, 1024)
    assert (buckets.batch_sizes, buckets.lengths[-1]) == (batches, length)
    found = estimated(method=ROCKET, **more)
    of_row = found.kv_token_bytes * (length + asked.max_new_tokens)
    assert (found.kv_needed_bytes, found.kv_bytes) == (batches[-1] * of_row, sum(batches) * of_row)
    assert found.activations_bytes == of_tokens(batches[-1] * length, batches[-1])
    assert found.graphs_bytes == of_tokens(batches[-1], batches[-1])


@pytest.mark.parametrize(
    ("engine", "method", "more", "tokens"),
    [
        ("hf", {}, {}, 64 * 992),
        ("hf", {}, {"max_new_tokens": 1000}, 64 * 24),
        ("hf", {}, {"task": "score"}, 64 * 1024),
        ("hf", {}, {"max_num_batched_tokens": 512}, 64 * 992),
        ("hf", {"compile": "default"}, {"max_num_batched_tokens": 512}, 64 * 992),
        ("hf", ROCKET, {}, 64 * 992),
        ("hf", {"continuous_batching": True}, {}, 8192),
        ("hf", {"continuous_batching": True}, {"max_num_batched_tokens": 512}, 512),
        ("vllm", {}, {}, 8192),
        ("vllm", {}, {"max_num_batched_tokens": 512}, 512),
        ("sglang", {}, {"max_num_batched_tokens": 512}, 512),
        ("vllm", {}, {"max_num_batched_tokens": 10**6}, 64 * 992),
        ("vllm", {}, {"max_num_batched_tokens": 10**6, "task": "score"}, 64 * 1024),
    ],
)
def test_a_step_is_the_prompts_of_the_batch_or_what_a_scheduler_lets_through(
    engine: str, method: dict[str, Any], more: dict[str, Any], tokens: int
) -> None:
    found = estimated(engine, method=method, batch_size=64, **more)
    assert found.activations_bytes == of_tokens(tokens, 64)


@pytest.mark.parametrize(
    ("engine", "method", "more", "rows"),
    [
        ("hf", {}, {}, 0),
        ("hf", {"compile": "default"}, {}, 0),
        ("hf", {"rocket_bucket": True}, {}, 0),
        ("hf", {"compile": "reduce-overhead"}, {}, 6),
        ("hf", {"compile": "max-autotune"}, {}, 6),
        ("hf", {"compile": "default"}, {"torch_compile_mode": "reduce-overhead"}, 6),
        ("hf", {"compile": "default"}, {"torch_compile_mode": "max-autotune"}, 6),
        ("hf", {"compile": "reduce-overhead"}, {"torch_compile_mode": "default"}, 0),
        ("hf", {}, {"torch_compile_mode": "max-autotune"}, 0),
        ("hf", ROCKET, {"bucket_batch_sizes": (2, 8, 16)}, 8),
        ("hf", {"continuous_batching": True}, {}, 0),
        ("hf", {"continuous_batching": True, "attention": "flash_attention_2"}, {}, 6),
        ("vllm", {}, {}, 6),
        ("vllm", {"eager": True}, {}, 0),
        ("vllm", {"rocket_bucket": True}, {"bucket_batch_sizes": (2, 8, 16)}, 16),
        ("sglang", {}, {}, 6),
        ("sglang", {"attention": "torch_native"}, {}, 0),
        ("sglang", {"attention": "flex_attention"}, {}, 0),
    ],
)
def test_graphs_take_memory_where_they_are_captured(
    engine: str, method: dict[str, Any], more: dict[str, Any], rows: int
) -> None:
    assert estimated(engine, method=method, batch_size=6, **more).graphs_bytes == of_tokens(rows, rows)
    assert estimated(engine, method=method, batch_size=6, device="cpu", **more).graphs_bytes == 0


def test_a_cache_that_is_made_at_load_has_the_size_that_is_asked_for() -> None:
    sizes = {}
    for engine, method in (("vllm", {}), ("sglang", {}), ("hf", {}), ("hf", {"continuous_batching": True})):
        found = estimate(shape(LLAMA_8B), "bfloat16", config(engine, kv_cache_bytes=2**30, method=method))
        assert found is not None
        assert found.kv_needed_bytes == 2**29
        sizes[engine, bool(method)] = found.kv_bytes
    assert sizes == {("vllm", False): 2**30, ("sglang", False): 2**30, ("hf", False): 2**29, ("hf", True): 2**30}


def test_without_a_length_or_a_dtype_there_is_none() -> None:
    assert estimate(shape(LLAMA_8B), "bfloat16", config(max_model_len=None)) is None
    assert estimate(shape(LLAMA_8B), None, config(dtype="auto")) is None


def test_what_can_t_be_counted_is_said() -> None:
    odd = config("hf", method={"engine_args": {"kv_cache_dtype": "odd"}})
    for of, part in ((HYBRID, "keep a state"), (DEEPSEEK_V3, "full width"), (LLAMA_8B, "odd is not known")):
        found = estimate(shape(of), "bfloat16", odd)
        assert found is not None
        assert any(part in note for note in found.notes)


def test_the_share_that_an_engine_takes() -> None:
    assert share_of(config("hf")) is None
    assert share_of(config("hf", method={"continuous_batching": True})) == 0.9
    assert share_of(config("vllm")) == 0.92
    assert share_of(config("vllm", gpu_memory_utilization=0.5)) == 0.5
    assert share_of(config("sglang", sglang_mem_fraction_static=0.25)) == 0.25
    both = {"gpu_memory_utilization": 0.5, "sglang_mem_fraction_static": 0.25}
    assert [share_of(config(engine, **both)) for engine in ("hf", "vllm", "sglang")] == [None, 0.5, 0.25]
    assert share_of(config("vllm", kv_cache_bytes=1)) is None
    assert share_of(config("vllm", device="cpu")) is None
