"""What a worker says that its engine ran with comes from the engine's own objects. No engine is imported: they are
stood in for by objects of the same form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.judge.effective import Ran, deviations
from protocol.records import MemoryUse, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, MethodSpec
from workers.backends import hf_compile, hf_settings, runtime, sglang_output, vllm_output
from workers.backends.watch import watched

CONFIG = BackendConfig(method=MethodSpec("m", "hf"), model_path="/m", stop_token_ids=(2, 7))
CALL = CallParams.of(CONFIG)
READY = RuntimeMetadata(engine="hf", engine_version="1", python_version="3")


class Adder:
    def add(self, one: int, other: int = 0) -> int:
        return one + other


def test_a_method_works_as_always_while_it_is_watched_and_as_before_afterwards() -> None:
    adder = Adder()
    with watched(adder, "add", lambda result, one, other=0: (result, one, other)) as seen:
        assert (adder.add(1), adder.add(2, other=3)) == (1, 5)
    assert seen == [(1, 1, 0), (5, 2, 3)]
    assert "add" not in vars(adder)
    with pytest.raises(TypeError), watched(adder, "add", lambda *_, **__: None):
        adder.add("x")  # type: ignore[arg-type]
    assert "add" not in vars(adder)


# --- the ends of an output -----------------------------------------------------------


class Ids:
    """As a tensor of ids looks from outside."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)

    def flatten(self) -> Ids:
        return self

    def tolist(self) -> list[int]:
        return self.ids


def test_transformers_ends_by_its_stopping_criteria() -> None:
    length, eos = SimpleNamespace(max_length=5), SimpleNamespace(eos_token_id=Ids(2, 7))
    assert hf_settings.ends([length, eos]) == {2, 7}
    assert hf_settings.ends([length]) == set()
    assert hf_settings.ends([SimpleNamespace(eos_token_id=Ids(-1))]) == set(), "-1 is no id"


def test_vllm_ends_by_stop_ids_and_the_folders_eos_unless_that_is_ignored() -> None:
    def params(stops: list[int] | None, eos: int | None) -> Any:
        return SimpleNamespace(stop_token_ids=stops, eos_token_id=eos, all_stop_token_ids={0, 2, 7})

    assert vllm_output.ends(params([2, 7], None)) == {2, 7}
    assert vllm_output.ends(params([7], 0)) == {0, 7}
    assert vllm_output.ends(params(None, None)) == set()


def test_sglang_ends_by_stop_ids_and_the_models_own_unless_all_are_ignored() -> None:
    params = SimpleNamespace(stop_token_ids={7}, ignore_eos=False)
    assert sglang_output.ends(params, {2}) == {2, 7}
    assert sglang_output.ends(SimpleNamespace(stop_token_ids=None, ignore_eos=False), None) == set()
    assert sglang_output.ends(SimpleNamespace(stop_token_ids={7}, ignore_eos=True), {2}) == set()


def test_ends_are_told_of_the_last_batch_that_had_some() -> None:
    assert (READY.stop_token_ids, READY.settings.eos) == (None, None)
    told = runtime.with_ends(READY, CALL, {7, 2})
    assert (told.stop_token_ids, told.settings.eos, told.flags) == ([2, 7], "stop", [])
    fixed = runtime.with_ends(told, replace(CALL, ignore_eos=True), ())
    assert (fixed.stop_token_ids, fixed.settings.eos, fixed.flags) == ([2, 7], "ignore", [])


@pytest.mark.parametrize(
    ("call", "held", "flags", "finding"),
    [
        (CALL, {2}, [], "stop ids: m asked 2, 7, ran 2"),
        (CALL, {0, 2, 7}, [], "stop ids: m asked 2, 7, ran 0, 2, 7"),
        (CALL, (), ["eos_not_honoured"], "stop ids: m asked 2, 7, ran none"),
        (replace(CALL, ignore_eos=True), {2}, ["eos_not_honoured"], "end of sequence: m not as asked, ran stop"),
    ],
)
def test_an_engine_that_ends_elsewhere_is_named(call: CallParams, held: Any, flags: list[str], finding: str) -> None:
    told = runtime.with_ends(runtime.with_ends(READY, call, held), call, held)
    assert told.flags == flags
    assert finding in [one.text for one in deviations([Ran("w", CONFIG, told)])]


def test_nothing_is_said_of_ends_before_a_batch() -> None:
    assert list(deviations([Ran("w", CONFIG, READY)])) == []


# --- Transformers --------------------------------------------------------------------


def completed(**values: Any) -> Any:
    """A GenerationConfig as far as it is looked at."""
    given = {"prompt_lookup_num_tokens": None, "max_matching_ngram_size": None, "prefill_chunk_size": None}
    return SimpleNamespace(**{**given, "cache_implementation": None, "disable_compile": True, **values})


def model(device: str = "cpu", context: int | None = 128, **own: Any) -> Any:
    text = SimpleNamespace(max_position_embeddings=context)
    config = SimpleNamespace(get_text_config=lambda: text)
    return SimpleNamespace(dtype="torch.float32", device=SimpleNamespace(type=device), config=config, **own)


def test_speculation_is_that_of_the_completed_configuration() -> None:
    found = hf_settings.settings(model(), completed(prompt_lookup_num_tokens=5, max_matching_ngram_size=3), True)
    assert (found.speculation, found.ngram_min, found.ngram_max, found.draft_tokens) == ("ngram", 1, 3, 5)
    none = hf_settings.settings(model(), completed(max_matching_ngram_size=3), True)
    assert (none.speculation, none.ngram_min, none.ngram_max, none.draft_tokens) == ("none", None, None, None)


def test_the_cache_and_the_chunks_of_the_prompt_are_those_of_the_completed_configuration() -> None:
    found = hf_settings.settings(model(), completed(prefill_chunk_size=64, cache_implementation="quantized"), True)
    assert (found.chunked_prefill, found.kv_cache_dtype) == (True, "quantized")
    plain = hf_settings.settings(model(), completed(), True)
    assert (plain.chunked_prefill, plain.kv_cache_dtype, plain.batching) == (False, "float32", "static")


def test_the_mode_is_that_of_the_compiled_call_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used, open_to_it = SimpleNamespace(mode="reduce-overhead"), completed(disable_compile=False)
    assert hf_settings.compile_mode(model(), completed(), ran=False) == "none"
    assert hf_settings.compile_mode(model(), open_to_it, ran=False) is None
    assert hf_settings.compile_mode(model(), open_to_it, ran=True) == "none", "it ran, and nothing was compiled"
    assert hf_settings.compile_mode(model(_last_compile_config=used), completed(), ran=True) == "reduce-overhead"
    monkeypatch.setattr(hf_compile, "graphs", lambda: 0)
    assert [hf_settings.compiled(mode) for mode in ("none", None, "default")] == [False, None, None]
    monkeypatch.setattr(hf_compile, "graphs", lambda: 2)
    assert [hf_settings.compiled(mode) for mode in ("none", None, "default")] == [False, None, True]


def test_graphs_are_captured_on_gpus_only() -> None:
    assert hf_settings.settings(model(), completed(), True).cuda_graphs == "none"
    compiled = model(_last_compile_config=SimpleNamespace(mode="reduce-overhead"))
    assert hf_settings.settings(compiled, completed(), True).cuda_graphs == "none"
    assert hf_settings.settings(model("cuda"), completed(), True).cuda_graphs == "none"
    assert hf_settings.settings(model("cuda"), completed(disable_compile=False), False).cuda_graphs is None


@pytest.mark.parametrize(
    ("asked", "context", "served"),
    [(64, 128, 64), (512, 128, 128), (None, 128, 128), (64, None, 64), (None, None, None)],
)
def test_a_length_past_what_the_model_was_made_for_is_not_served(
    asked: int | None, context: int | None, served: int | None
) -> None:
    assert hf_settings.usable_length(model(context=context), asked) == served


def test_weights_and_graphs_stay_as_they_were_after_loading() -> None:
    at_load = MemoryUse(weights_bytes=5, graphs_bytes=6, host_rss_bytes=1)
    now = runtime.with_loaded(MemoryUse(host_rss_bytes=9), at_load)
    assert (now.weights_bytes, now.graphs_bytes, now.host_rss_bytes) == (5, 6, 9)
