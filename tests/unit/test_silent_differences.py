"""What an engine may change without a word, for each engine: it is found, from the engine's own words to the finding.

Each row is an engine and one of its settings: what the method asks for, and what the engine's own words become when it
does otherwise. Either the worker is not as asked, or it is not as another worker of its method, whatever was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from orchestrator.judge.effective import Ran
from orchestrator.judge.ran import lint
from protocol.records import RuntimeMetadata
from protocol.specs import BackendConfig, MethodSpec
from tests.unit import test_reading_back as hf_forms
from tests.unit import test_sglang_settings as sglang_forms
from tests.unit import test_vllm_settings as vllm_forms
from workers.backends import hf_settings, runtime, sglang_args, sglang_settings, vllm_args, vllm_settings

#: asked  it is named as another than was asked for
#: drift  it is named as another than in the method's other worker
How = Literal["asked", "drift"]
NONE = SimpleNamespace(name="NONE")


@dataclass(frozen=True)
class Row:
    """`method` and `config` are what is asked, `usual` the engine's words where it does so, `changed` where not."""

    engine: Literal["hf", "vllm", "sglang"]
    what: str
    how: How
    changed: Mapping[str, Any]
    usual: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.engine}, {self.what}, {self.how}"


def own(**args: Any) -> dict[str, Any]:
    return {"engine_args": args}


ROWS = [
    # attention
    Row("hf", "attention", "asked", {"attention": "eager"}, {"attention": "sdpa"}, {"attention": "sdpa"}),
    Row("hf", "attention", "drift", {"attention": "eager"}, {"attention": "sdpa"}),
    Row("vllm", "attention", "asked", {"rank__attention": ["TRITON_ATTN"]}, method={"attention": "FLASH_ATTN"}),
    Row("vllm", "attention", "drift", {"rank__attention": ["TRITON_ATTN"]}),
    Row("sglang", "attention", "asked", {"attention_backend": "triton"}, method={"attention": "torch_native"}),
    Row("sglang", "attention", "drift", {"decode_attention_backend": "triton"}),
    # chunked prefill
    Row("hf", "chunked_prefill", "drift", {"prefill_chunk_size": 64}),
    Row("vllm", "chunked prefill", "asked", {"scheduler_config__enable_chunked_prefill": False}),
    Row("vllm", "chunked_prefill", "drift", {"scheduler_config__enable_chunked_prefill": False}),
    Row("sglang", "chunked prefill", "asked", {"chunked_prefill_size": -1}),
    Row("sglang", "chunked_prefill", "drift", {"chunked_prefill_size": -1}),
    # prefix cache; that of Transformers lives for one call
    Row("vllm", "prefix caching", "asked", {"cache_config__enable_prefix_caching": True}),
    Row("sglang", "prefix caching", "asked", {"disable_radix_cache": False}),
    # CUDA graphs
    Row("hf", "cuda_graphs", "drift", {"compiled": "default"}, {"compiled": "reduce-overhead"}),
    Row("vllm", "CUDA graphs", "asked", {"compilation_config__cudagraph_mode": NONE}),
    Row("vllm", "cuda_graphs", "drift", {"compilation_config__cudagraph_mode": NONE}),
    Row(
        "sglang",
        "CUDA graphs",
        "asked",
        {"cuda_graph_config": {}},
        {"cuda_graph_config": sglang_forms.GRAPHS},
        {"eager": False},
    ),
    Row("sglang", "cuda_graphs", "drift", {"cuda_graph_config": sglang_forms.GRAPHS}),
    # compilation
    Row(
        "hf", "compilation", "asked", {"compiled": "default"}, {"compiled": "max-autotune"}, {"compile": "max-autotune"}
    ),
    Row("hf", "compilation", "asked", {"compiled": None}, {"compiled": "default"}, {"compile": "default"}),
    Row(
        "vllm",
        "compilation",
        "asked",
        {"compilation_config__mode": SimpleNamespace(name="VLLM_COMPILE")},
        {"compilation_config__mode": NONE, "compilation_config__cudagraph_mode": NONE},
        {"eager": True},
    ),
    Row("sglang", "compile_mode", "drift", {"enable_torch_compile": True}),
    # the largest length
    Row("hf", "max length", "asked", {"context": 100}, config={"max_model_len": 128}),
    Row("vllm", "max length", "asked", {"model_config__max_model_len": 128}, config={"max_model_len": 256}),
    Row("sglang", "max length", "asked", {"served": 128}, {"served": 256}, config={"max_model_len": 256}),
    # number format
    Row("hf", "dtype", "asked", {"dtype": "torch.bfloat16"}, config={"dtype": "float32"}),
    Row("vllm", "dtype", "asked", {"model_config__dtype": "torch.bfloat16"}, config={"dtype": "float32"}),
    Row("sglang", "dtype", "asked", {"dtype": "bfloat16"}, config={"dtype": "float32"}),
    # number format of the KV cache
    Row("hf", "kv_cache_dtype", "drift", {"cache_implementation": "quantized"}),
    Row(
        "vllm",
        "KV cache dtype",
        "asked",
        {"cache_config__cache_dtype": "auto"},
        {"cache_config__cache_dtype": "fp8_e4m3"},
        own(kv_cache_dtype="fp8"),
    ),
    Row("vllm", "kv_cache_dtype", "drift", {"cache_config__cache_dtype": "fp8_e4m3"}),
    Row(
        "sglang",
        "KV cache dtype",
        "asked",
        {"kv_cache_dtype": "auto"},
        {"kv_cache_dtype": "fp8_e5m2"},
        own(kv_cache_dtype="fp8_e5m2"),
    ),
    Row("sglang", "kv_cache_dtype", "drift", {"kv_cache_dtype": "fp8_e5m2"}),
    # scheduler; a batch goes through `generate` of Transformers as a whole
    Row("vllm", "scheduler", "asked", {"scheduler_config__policy": "priority"}, method=own(scheduling_policy="fcfs")),
    Row("vllm", "scheduler", "asked", {"scheduler_config__async_scheduling": False}, method=own(async_scheduling=True)),
    Row("vllm", "scheduler", "drift", {"scheduler_config__async_scheduling": False}),
    Row(
        "sglang",
        "scheduler",
        "asked",
        {"schedule_policy": "lpm"},
        {"schedule_policy": "fcfs"},
        own(schedule_policy="fcfs"),
    ),
    Row("sglang", "scheduler", "drift", {"disable_overlap_schedule": True}),
    # sampling; Transformers has one way
    Row("vllm", "sampler", "drift", {"rank__sampler": "native"}),
    Row("sglang", "sampler", "asked", {"sampling_backend": "pytorch"}, method=own(sampling_backend="flashinfer")),
    Row("sglang", "sampler", "drift", {"sampling_backend": "pytorch"}),
    # ranks
    Row("hf", "tensor parallel size", "asked", {"tp_size": 1}, {"tp_size": 2}, config={"tensor_parallel_size": 2}),
    Row(
        "vllm",
        "tensor parallel size",
        "asked",
        {"parallel_config__tensor_parallel_size": 1},
        {"parallel_config__tensor_parallel_size": 2},
        config={"tensor_parallel_size": 2},
    ),
    Row("sglang", "tensor parallel size", "asked", {"tp_size": 1}, {"tp_size": 2}, config={"tensor_parallel_size": 2}),
]


def asked(row: Row, folder: Path) -> BackendConfig:
    (folder / "config.json").write_text("{}")
    method = MethodSpec(**{"name": "m", "engine": row.engine, **row.method})
    return BackendConfig(**{"method": method, "model_path": str(folder), "device": "cuda", **row.config})


def _hf(config: BackendConfig, words: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(words)
    attention, mode, context = given.pop("attention", "sdpa"), given.pop("compiled", None), given.pop("context", 128)
    ranks, dtype = given.pop("tp_size", 1), given.pop("dtype", "torch.float32")
    compiled: dict[str, Any] = {"_last_compile_config": SimpleNamespace(mode=mode)} if mode else {}
    loaded = hf_forms.model(context=context, **compiled)
    loaded.dtype = dtype
    found = hf_settings.settings(loaded, hf_forms.completed(**given), ran=True)
    return {
        "dtype": hf_settings.dtype_of(loaded),
        "attention_backend": attention,
        "max_model_len": hf_settings.usable_length(loaded, config.max_model_len),
        "settings": {"tensor_parallel_size": ranks},
        "found": found,
        "flags": runtime.not_honoured({"attention": config.method.attention}, {"attention": attention}),
    }


def _vllm(config: BackendConfig, words: Mapping[str, Any]) -> dict[str, Any]:
    of_rank = {name.removeprefix("rank__"): value for name, value in words.items() if name.startswith("rank__")}
    engine = vllm_forms.engine(**{name: value for name, value in words.items() if not name.startswith("rank__")})
    ranks = [vllm_forms.rank(**of_rank)]
    return {
        "dtype": str(engine.model_config.dtype).removeprefix("torch."),
        "attention_backend": vllm_settings.attention(ranks),
        "max_model_len": engine.model_config.max_model_len,
        "found": vllm_settings.settings(engine, ranks),
        "flags": vllm_settings.flags(engine, ranks, vllm_args.engine_args(config), config),
    }


def _sglang(config: BackendConfig, words: Mapping[str, Any]) -> dict[str, Any]:
    given = {"sampling_backend": "flashinfer", "schedule_policy": "fcfs", **words}
    dtype, served = given.pop("dtype", "float32"), given.pop("served", 256)
    info = sglang_settings.resolved(sglang_forms.info(given))
    told = {**sglang_args.engine_args(config, print), **config.method.engine_args}
    return {
        "dtype": dtype,
        "attention_backend": sglang_settings.attention(info),
        "max_model_len": served,
        "found": sglang_settings.settings(info, dtype, config),
        "flags": sglang_settings.flags(info, told, dtype, served, config),
    }


def ran(row: Row, config: BackendConfig, words: Mapping[str, Any]) -> Ran:
    told = {"hf": _hf, "vllm": _vllm, "sglang": _sglang}[row.engine](config, words)
    found = replace(told.pop("found"), **told.pop("settings", {}))
    metadata = RuntimeMetadata(engine=row.engine, engine_version="1", python_version="3", settings=found, **told)
    return Ran("w", config, metadata, ("p",))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_it_is_named(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "workers.backends.hf_compile.cuda_graphs", lambda mode, _: "none" if mode == "default" else mode
    )
    config = asked(row, tmp_path)
    as_asked, otherwise = ran(row, config, row.usual), ran(row, config, {**row.usual, **row.changed})
    assert [one.text for one in lint([as_asked], None)] == [], "as it should be, nothing is said"
    found = {one.what: one for one in lint([otherwise] if row.how == "asked" else [as_asked, otherwise], None)}
    what = row.what if row.how == "asked" else f"{row.what} changed between its workers"
    assert found[what].level == "warning"
