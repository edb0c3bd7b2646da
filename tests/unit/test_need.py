"""A place is called too small only where nothing could run in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.definition.inputs import ModelInfo
from orchestrator.definition.memory import CacheLayers, ModelShape, estimate
from orchestrator.definition.need import least, problems, short_of
from orchestrator.definition.places import Places
from protocol.specs import BackendConfig, MethodSpec

GIB = 2**30
VALUES = 8_030_261_248
LLAMA_8B = ModelShape((CacheLayers("full", 32, 2048, 8),), 4096, 14336, 128256, {"BF16": 2 * VALUES}, VALUES, 32)
MODEL = ModelInfo("llama", "m", "d", 8192, (), 131072, "bfloat16", shape=LLAMA_8B, vision=False)
PLACES = Places("s.yaml", {"model": "s.yaml:2"})


def config(engine: str = "vllm", **more: Any) -> BackendConfig:
    method = MethodSpec(f"{engine}_m", engine, **more.pop("method", {}))  # type: ignore[arg-type]
    return BackendConfig(method=method, model_path="m", **{"device": "cuda", "max_model_len": 8192, **more})


engines = st.sampled_from(["hf", "vllm", "sglang"])
sizes = st.sampled_from([1, 2, 4])


@given(
    engines,
    st.sampled_from(["cuda", "cpu"]),
    st.sampled_from(["auto", "bfloat16", "float32"]),
    st.integers(1, 8192),
    sizes,
    sizes,
    st.none() | st.integers(1, 2**40),
)
def test_never_more_than_what_is_estimated(
    engine: str, device: Any, dtype: Any, length: int, tensor: int, pipeline: int, cache: int | None
) -> None:
    ranks = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    one = config(engine, device=device, dtype=dtype, max_model_len=length, kv_cache_bytes=cache, **ranks)
    need, whole = least(one, MODEL), estimate(LLAMA_8B, "bfloat16", one)
    assert need is not None
    assert whole is not None
    there = whole.total_bytes * (one.ranks if device == "cpu" else 1)
    assert need.total_bytes <= there
    assert short_of(one, MODEL, there) == ""


@given(engines, st.integers(0, 2**36), st.integers(0, 2**36))
def test_a_larger_place_is_never_worse(engine: str, size: int, more: int) -> None:
    if not short_of(config(engine), MODEL, size):
        assert not short_of(config(engine), MODEL, size + more)


@pytest.mark.parametrize(
    ("one", "place", "said"),
    [
        (config(), 8 * GIB, "would need at least 13.2 GiB (weights 12.2 GiB, KV cache 1.0 GiB), 8.0 GiB is available"),
        (config("hf"), 8 * GIB, "would need at least 12.2 GiB for the weights, 8.0 GiB is available"),
        (config("sglang"), 8 * GIB, "would need at least 12.2 GiB for the weights, 8.0 GiB is available"),
        (config(gpu_memory_utilization=0.5), 24 * GIB, "0.5 of 24.0 GiB is available"),
        (config("sglang", sglang_mem_fraction_static=0.4), 24 * GIB, "0.4 of 24.0 GiB is available"),
        (config(kv_cache_bytes=80 * GIB), 80 * GIB, "KV cache 80.0 GiB"),
        (config(dtype="float32"), 24 * GIB, "weights 24.5 GiB"),
        (config("vllm", device="cpu"), 8 * GIB, "at least 12.2 GiB for the weights"),
        (config("hf", device="cpu", dtype="float32"), 16 * GIB, "at least 24.5 GiB for the weights"),
    ],
)
def test_what_is_too_small(one: BackendConfig, place: int, said: str) -> None:
    assert said in short_of(one, MODEL, place)


@pytest.mark.parametrize(
    ("one", "model", "why"),
    [
        (config(), replace(MODEL, shape=None), "the files do not tell"),
        (config(), replace(MODEL, dtype=None), "no dtype"),
        (config(), replace(MODEL, dtype="float8_e4m3fn"), "a dtype without a width here"),
        (config(input_mode="text"), replace(MODEL, vision=True), "the other half may stay away"),
        (config(method={"engine_args": {"quantization": "fp8"}}), MODEL, "made smaller"),
        (config(method={"engine_args": {"cpu_offload_gb": 9}}), MODEL, "put elsewhere"),
        (config("scripted"), MODEL, "no model at all"),
        (config("hf", device="cpu"), MODEL, "mapped from the file"),
    ],
)
def test_where_nothing_is_certain_nothing_is_refused(one: BackendConfig, model: ModelInfo, why: str) -> None:
    assert short_of(one, model, 1) == "", why
    assert short_of(config(), MODEL, None) == "", "a device whose memory is not told"


def test_ranks_share_it() -> None:
    assert short_of(config("hf"), MODEL, 8 * GIB)
    assert not short_of(config("hf", tensor_parallel_size=2), MODEL, 8 * GIB)
    assert short_of(config("vllm", device="cpu", tensor_parallel_size=2), MODEL, 8 * GIB), "a host holds all"


def test_options_that_make_nothing_smaller_change_nothing() -> None:
    options = {"speculative_algorithm": "NGRAM", "kv_cache_dtype": "fp8"}
    assert short_of(config(method={"engine_args": options}), MODEL, 8 * GIB)
    cache = least(config(method={"engine_args": options}), MODEL)
    assert cache is not None
    assert cache.kv_bytes == GIB // 2


def test_a_plan_that_fits_nowhere_is_refused_with_the_ways_out() -> None:
    starts = [config("hf"), config("sglang"), config("hf", max_model_len=4096)]
    (found,) = problems(starts, MODEL, [8 * GIB, 7 * GIB], PLACES)
    assert (found.where, found.key) == ("s.yaml:2", "model")
    assert found.message == (
        "llama would need at least 12.2 GiB for the weights, 8.0 GiB is available, in hf_m, sglang_m"
    )
    assert found.suggestion == "tensor_parallel_size 2 or a smaller model"


def test_the_ways_out_are_those_that_help() -> None:
    (share,) = problems([config(gpu_memory_utilization=0.5)], MODEL, [24 * GIB], PLACES)
    assert share.suggestion == "a larger gpu_memory_utilization or a smaller model"
    (host,) = problems([config(device="cpu")], MODEL, [8 * GIB], PLACES)
    assert host.suggestion == "a smaller model"
    (small,) = problems([config("hf")], MODEL, [1 * GIB] * 2, PLACES)
    assert small.suggestion == "a smaller model"


def test_one_device_that_is_not_told_could_be_large_enough() -> None:
    assert problems([config("hf")], MODEL, [8 * GIB, None], PLACES) == []
    assert problems([config("hf")], MODEL, [], PLACES) == []
    assert problems([config("hf")], MODEL, [8 * GIB, 24 * GIB], PLACES) == []
