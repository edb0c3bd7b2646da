"""What SGLang really runs with, and what it tells of each token. On a CPU; its GPU methods are not proven here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.specs import unpack_ids
from tests.engines import made_models
from tests.engines.conftest import FindEnv, FindPython, Prompts
from tests.engines.driver import KV_CACHE_BYTES, MAX_MODEL_LEN, batch, config
from tests.engines.telling import Record, Start, by_id, check_likeliest, check_scores, draws_others, record, starting

pytestmark = pytest.mark.engine

NEW_TOKENS = 12
CHUNK_TOKENS = 64
SHAPE: Mapping[str, Any] = made_models.MOE
LAYERS, EXPERTS, EXPERTS_PER_TOKEN = SHAPE["num_hidden_layers"], SHAPE["num_experts"], SHAPE["num_experts_per_tok"]


@pytest.fixture(scope="module")
def start(engine_env: FindPython) -> Iterator[Start]:
    with starting(engine_env("sglang"), "sglang") as begin:
        yield begin


@pytest.fixture(scope="module")
def native(start: Start, model: str, prompts: Prompts) -> Record:
    """torch_native."""
    asked = config("sglang", model, method={"attention": "torch_native"}, stop_token_ids=tuple(prompts.stop))
    return record(start(), asked, prompts, NEW_TOKENS, ())


@pytest.mark.parametrize(("made", "scored"), [("greedy", "greedy_scored"), ("hot", "hot_scored")])
def test_scoring_an_output_gives_its_own_log_probabilities(native: Record, made: str, scored: str) -> None:
    """Whatever the temperature of either call: they are the model's own."""
    check_scores(getattr(native, made), getattr(native, scored))
    stats = getattr(native, scored).stats
    assert all(0 < (score.latency_s or 0) <= stats.wall_s for score in getattr(native, scored).generations)


def test_each_position_has_its_likeliest_tokens(native: Record) -> None:
    check_likeliest(native.greedy)


def test_a_hot_call_takes_unlikely_tokens(native: Record) -> None:
    """Else the comparison above would say nothing of temperature."""
    assert draws_others(native.hot)


def test_what_is_not_asked_for_is_not_told(native: Record) -> None:
    for one in native.plain.generations:
        assert (one.logprobs, one.itl_s, one.flags) == (None, None, [])
        assert one.token_ids == by_id(native.greedy)[one.prompt_id].token_ids
    assert not any(name.startswith(("expert_", "draft")) for name in native.plain.stats.extra)


def test_settings_are_read_back(native: Record) -> None:
    found = native.metadata.settings
    assert (found.batching, found.prefix_caching, found.chunked_prefill) == ("continuous", False, True)
    assert (found.cuda_graphs, found.compile_mode, found.speculation, found.quantization) == ("none",) * 4
    assert (found.tensor_parallel_size, found.pipeline_parallel_size, found.eos) == (1, 1, None)
    assert (found.scheduler, found.sampler) == ("fcfs", "pytorch")
    assert found.max_num_seqs
    assert found.max_num_batched_tokens
    assert native.metadata.flags == []
    assert {"itl", "threads", "seed", "kv_cache_bytes"} <= {note.split(":")[0] for note in native.metadata.notes}


def test_the_models_own_ids_end_an_output_whatever_is_asked(native: Record, prompts: Prompts) -> None:
    """The calls of this record name no stop ids."""
    assert (native.last.stop_token_ids, native.last.settings.eos) == (prompts.stop, "stop")
    assert native.last.flags == ["eos_not_honoured"]


def test_what_is_not_honoured_is_flagged_and_flex_attention_says_the_same(
    start: Start, model: str, prompts: Prompts, native: Record
) -> None:
    worker = start()
    asked = config(
        "sglang",
        model,
        method={"attention": "flex_attention"},
        max_num_batched_tokens=CHUNK_TOKENS,
        max_model_len=MAX_MODEL_LEN * 31,
        stop_token_ids=tuple(prompts.stop),
    )
    found = worker.load(asked).metadata
    assert found.attention_backend == "flex_attention"
    assert (found.settings.max_num_batched_tokens, found.options["chunked_prefill_size"]) == (CHUNK_TOKENS,) * 2
    # The KV cache is shorter than that.
    assert found.flags == ["max_model_len_not_honoured"]
    assert (found.max_model_len or 0) < (found.kv_cache_tokens or 0) < MAX_MODEL_LEN * 31
    done = by_id(worker.run(batch("flex", prompts.ids, (), max_new_tokens=NEW_TOKENS)))
    assert {name: unpack_ids(one.token_ids) for name, one in done.items()} == {
        name: unpack_ids(one.token_ids) for name, one in by_id(native.plain).items()
    }
    worker.end()


def test_two_ranks_share_a_model_and_count_its_experts(
    start: Start, find_env: FindEnv, model: str, prompts: Prompts, tmp_path: Path
) -> None:
    moe = made_models.make(tmp_path / "moe", find_env("hf").python, model, SHAPE)
    worker = start()
    method = {"attention": "torch_native"}
    asked = config("sglang", moe, method=method, tensor_parallel_size=2, expert_load=True, ignore_eos=True)
    found = worker.load(asked).metadata
    assert (found.settings.tensor_parallel_size, found.flags) == (2, [])
    assert 0.9 * KV_CACHE_BYTES < (found.kv_cache_bytes or 0) / 2 < 1.1 * KV_CACHE_BYTES
    done = worker.run(batch("moe", prompts.ids, (), max_new_tokens=NEW_TOKENS, ignore_eos=True))
    assert len({one.token_ids for one in done.generations}) == len(prompts.ids)
    assert all(one.flags == [] for one in done.generations)
    # The last token of an output goes through no layer.
    tokens = sum(one.prompt_tokens + one.generated_tokens - 1 for one in done.generations)
    for layer in range(LAYERS):
        load = [done.stats.extra.get(f"expert_{layer}_{expert}", 0) for expert in range(EXPERTS)]
        assert sum(load) == tokens * EXPERTS_PER_TOKEN
        assert sum(map(bool, load)) > EXPERTS_PER_TOKEN
    worker.end()
