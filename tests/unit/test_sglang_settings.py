"""What SGLang's get_server_info says, by our names, and what is not as it was told. No engine is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from protocol.specs import BackendConfig, MethodSpec
from workers.backends import sglang_settings
from workers.backends.sglang_args import NGRAM

GIB = 1 << 30
TOLD = {"dtype": "float32", "disable_radix_cache": True, "max_total_tokens": 5825}


def config(method: dict[str, Any] | None = None, **fields: Any) -> BackendConfig:
    spec = MethodSpec(**{"name": "m", "engine": "sglang", **(method or {})})
    return BackendConfig(**{"method": spec, "model_path": "/model", "max_model_len": 256, **fields})


def info(state: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """As version 0.5.23 answers on a CPU, without the hundreds of arguments that nobody asks for."""
    inner = {
        "effective_max_running_requests_per_dp": 2912,
        "decode_cuda_graph_bs": [],
        "memory_usage": {"weight": 0.5, "kvcache": 0.25, "graph": {"prefill": 0.0, "decode": 0.0}},
        **(state or {}),
    }
    return {
        "attention_backend": "torch_native",
        "chunked_prefill_size": 4096,
        "max_prefill_tokens": 16384,
        "max_total_num_tokens": 5825,
        "page_size": 1,
        "disable_radix_cache": True,
        "kv_cache_dtype": "auto",
        "mem_fraction_static": 0.716,
        "quantization": None,
        "tp_size": 1,
        "pp_size": 1,
        "enable_torch_compile": False,
        "speculative_algorithm": None,
        "cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}},
        "startup_time": {"load_weight": 0.4, "kv_cache_allocation": 0.8, "cuda_graph": {"decode": 0.0}},
        **fields,
        "internal_states": [inner],
    }


GRAPHS = {"decode": {"backend": "full"}, "prefill": {"backend": "breakable"}}


def flags(found: Mapping[str, Any], settings: BackendConfig, dtype: str = "float32", **told: Any) -> list[str]:
    given = {**TOLD, "attention_backend": settings.method.attention, **told}
    return sglang_settings.flags(found, given, dtype, 256, settings)


def test_settings_on_a_cpu() -> None:
    found = sglang_settings.settings(info(), "float32", config())
    assert (found.batching, found.max_num_seqs, found.max_num_batched_tokens) == ("continuous", 2912, 4096)
    assert (found.chunked_prefill, found.prefix_caching) == (True, False)
    assert (found.cuda_graphs, found.compile_mode, found.speculation, found.quantization) == ("none",) * 4
    assert (found.kv_cache_dtype, found.memory_share, found.draft_tokens) == ("float32", None, None)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.eos) == (1, 1, None)


def test_settings_on_a_gpu() -> None:
    told = info(cuda_graph_config=GRAPHS, enable_torch_compile=True, disable_radix_cache=False, chunked_prefill_size=-1)
    told["kv_cache_dtype"] = "fp8_e5m2"
    found = sglang_settings.settings(told, "bfloat16", config(device="cuda"))
    assert (found.cuda_graphs, found.compile_mode) == ("decode full, prefill breakable", "torch.compile")
    assert (found.chunked_prefill, found.max_num_batched_tokens, found.prefix_caching) == (False, 16384, True)
    assert (found.memory_share, found.kv_cache_dtype) == (0.716, "fp8_e5m2")


def test_the_root_of_a_draft_is_no_draft_token() -> None:
    told = info(speculative_algorithm="NGRAM", **{**NGRAM, "speculative_num_draft_tokens": 4})
    found = sglang_settings.settings(told, "bfloat16", config(device="cuda"))
    assert (found.speculation, found.draft_tokens, found.ngram_min, found.ngram_max) == ("ngram", 3, None, None)
    options = sglang_settings.options(told, config())
    assert {name: options[name] for name in NGRAM} == {**NGRAM, "speculative_num_draft_tokens": 4}
    assert sglang_settings.NGRAM_NOTE in sglang_settings.notes(told, 256, config())
    assert sglang_settings.NGRAM_NOTE not in sglang_settings.notes(info(), 256, config())


def test_buckets_are_told_with_what_was_captured() -> None:
    found = info({"decode_cuda_graph_bs": [4, 2, 1]})
    assert sglang_settings.options(found, config({"rocket_bucket": True}))["buckets"] == {"captured": [1, 2, 4]}
    assert sglang_settings.options(found, config())["buckets"] is None


def test_the_schedulers_word_stands_before_that_of_the_process_that_asked() -> None:
    """The scheduler resolves its arguments in a process of its own, and may come to others."""
    own = {"attention_backend": "triton", "chunked_prefill_size": -1, "disable_radix_cache": False, "startup_time": {}}
    found = sglang_settings.resolved(info(own))
    settings = sglang_settings.settings(found, "float32", config())
    assert (sglang_settings.attention(found), settings.chunked_prefill, settings.prefix_caching) == (
        "triton",
        False,
        True,
    )
    assert flags(found, config({"attention": "torch_native"})) == [
        "prefix_caching_not_honoured",
        "attention_not_honoured",
        "chunked_prefill_not_honoured",
    ]
    assert sglang_settings.load_times(found, 0.5).weights_s == 0.4, "the times are told to this process alone"


def test_what_runs_as_it_was_told_has_no_flag() -> None:
    assert flags(info(), config()) == []
    assert flags(info(), config({"attention": "Torch_Native"}), disable_cuda_graph=True) == []
    captured = info({"decode_cuda_graph_bs": [1, 2]}, cuda_graph_config=GRAPHS)
    assert flags(captured, config(), disable_cuda_graph=False, cuda_graph_bs_decode=[2, 1]) == []


@pytest.mark.parametrize(
    ("found", "told", "flag"),
    [
        ({}, {"dtype": "bfloat16"}, "dtype"),
        ({"chunked_prefill_size": 2048}, {"chunked_prefill_size": 4096}, "max_num_batched_tokens"),
        ({}, {"disable_cuda_graph": False}, "cuda_graphs"),
        ({"cuda_graph_config": GRAPHS}, {"disable_cuda_graph": True}, "cuda_graphs"),
        ({"cuda_graph_config": GRAPHS}, {"cuda_graph_bs_decode": [1, 2]}, "rocket_bucket"),
        ({"max_total_num_tokens": 5824}, {}, "kv_cache_bytes"),
        ({"disable_radix_cache": False}, {}, "prefix_caching"),
    ],
)
def test_what_runs_otherwise_is_flagged(found: dict[str, Any], told: dict[str, Any], flag: str) -> None:
    assert flags(info(**found), config(), **told) == [f"{flag}_not_honoured"]


def test_a_lowered_length_and_another_attention_are_flagged() -> None:
    assert flags(info(), config(max_model_len=300)) == ["max_model_len_not_honoured"]
    assert flags(info(), config({"attention": "flashinfer"})) == ["attention_not_honoured"]
    assert flags(info(decode_attention_backend="triton"), config({"attention": "torch_native"})) == [
        "attention_not_honoured"
    ]


def test_a_cache_is_rounded_down_to_whole_pages_without_a_flag() -> None:
    assert flags(info(page_size=64, max_total_num_tokens=5824), config()) == []
    assert flags(info(page_size=64, max_total_num_tokens=5760), config()) == ["kv_cache_bytes_not_honoured"]


def test_the_kv_cache_is_told_by_the_engine_for_one_rank() -> None:
    assert sglang_settings.kv_cache_bytes(info()) == GIB // 4
    assert sglang_settings.kv_cache_bytes(info(tp_size=2)) == GIB // 2
    assert sglang_settings.kv_cache_bytes(info(pp_size=2)) is None
    assert sglang_settings.kv_cache_bytes(info({"memory_usage": {"kvcache": 0.0}})) is None
    assert sglang_settings.kv_cache_bytes({**info(), "internal_states": []}) is None


def test_weights_are_told_on_a_device_of_its_own_only() -> None:
    usage = {"weight": 0.5, "kvcache": 0.25, "graph": {"prefill": 0.5, "decode": 0.25}}
    told = info({"memory_usage": usage})
    found = sglang_settings.memory(told, config(device="cuda"))
    assert (found.weights_bytes, found.graphs_bytes) == (GIB // 2, GIB * 3 // 4)
    on_cpu = sglang_settings.memory(told, config())
    of_two = sglang_settings.memory({**told, "tp_size": 2}, config(device="cuda"))
    assert {on_cpu.weights_bytes, on_cpu.graphs_bytes, of_two.weights_bytes, of_two.graphs_bytes} == {None}
    assert sglang_settings.WEIGHTS_NOTE in sglang_settings.notes(told, 256, config())


def test_notes_say_what_a_figure_lacks() -> None:
    notes = list(sglang_settings.notes(info(), 250, config()))
    assert sglang_settings.LENGTH_NOTE in notes
    assert sglang_settings.KV_ROUNDED_NOTE in notes
    assert sglang_settings.KV_BYTES_NOTE in sglang_settings.notes(info(pp_size=2), 256, config())


def test_load_times_are_the_engines_own() -> None:
    told = info(startup_time={"load_weight": 1.0, "kv_cache_allocation": 2.0, "cuda_graph": {"a": 3.0, "b": 4.0}})
    found = sglang_settings.load_times(told, 0.5)
    assert (found.tokenizer_s, found.weights_s, found.kv_cache_s, found.compile_s) == (0.5, 1.0, 2.0, 7.0)
    assert sglang_settings.load_times(info(), 0.5).compile_s is None
