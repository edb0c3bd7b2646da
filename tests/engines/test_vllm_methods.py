"""What vLLM really runs with, and what it tells of each token, in one process and in several. On a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.records import Generation
from protocol.specs import unpack_floats
from tests.engines import made_models
from tests.engines.conftest import FindPython, Prompts
from tests.engines.driver import KV_CACHE_BYTES, batch, config
from tests.engines.telling import (
    Record,
    Start,
    check_likeliest,
    check_scores,
    draws_others,
    ids_of,
    record,
    starting,
)

pytestmark = pytest.mark.engine

NEW_TOKENS = 24
DRAFT = {"min_n": 1, "max_n": 3, "draft_tokens": 3}
SAME_S = 1e-4
MULTIPROCESSING, CACHE_GIB = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_KVCACHE_SPACE"
LAYERS, EXPERTS, EXPERTS_PER_TOKEN = (
    made_models.MOE[n] for n in ("num_hidden_layers", "num_experts", "num_experts_per_tok")
)
#: Ids of the shared vocabulary; the made models say nothing that means anything.
IDS = {"a": list(range(100, 130)), "b": list(range(2000, 2011))}


@pytest.fixture(scope="module")
def start(engine_env: FindPython) -> Iterator[Start]:
    with starting(engine_env("vllm"), "vllm") as begin:
        yield begin


@pytest.fixture(scope="module")
def plain(start: Start, model: str, prompts: Prompts) -> Record:
    """In this one process, uncompiled. Each output is scored again, by a hot call and by a cold one."""
    return record(start(), config("vllm", model), prompts, NEW_TOKENS, prompts.stop)


@pytest.fixture(scope="module")
def ngram(start: Start, model: str, prompts: Prompts) -> Record:
    """With the engine's core in a process of its own."""
    settings = config("vllm", model, method={"ngram": DRAFT})
    return record(start(**{MULTIPROCESSING: "1"}), settings, prompts, NEW_TOKENS, prompts.stop)


def gaps(generation: Generation) -> list[float]:
    assert generation.itl_s is not None
    return [gap for gap in unpack_floats(generation.itl_s) if gap is not None]


# --- log-probabilities ------------------------------------------------------------


@pytest.mark.parametrize("method", ["plain", "ngram"])
@pytest.mark.parametrize(("made", "scored"), [("greedy", "greedy_scored"), ("hot", "hot_scored")])
def test_scoring_an_output_gives_its_own_log_probabilities(
    request: pytest.FixtureRequest, method: str, made: str, scored: str
) -> None:
    """Whatever the temperature of either call: they are the model's own."""
    said = request.getfixturevalue(method)
    check_scores(getattr(said, made), getattr(said, scored))


def test_each_position_has_its_likeliest_tokens(plain: Record) -> None:
    check_likeliest(plain.greedy)
    assert draws_others(plain.hot)


# --- times ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["plain", "ngram"])
def test_the_times_of_the_tokens_are_those_of_the_whole(request: pytest.FixtureRequest, method: str) -> None:
    for output in request.getfixturevalue(method).greedy.generations:
        assert (len(gaps(output)), output.flags) == (output.generated_tokens - 1, [])
        assert output.ttft_s is not None
        assert output.latency_s == pytest.approx(output.ttft_s + sum(gaps(output)), abs=SAME_S)


def test_without_speculation_each_token_has_a_time_of_its_own(plain: Record) -> None:
    assert all(gap > 0 for output in plain.greedy.generations for gap in gaps(output))


# --- speculation ------------------------------------------------------------------


def test_speculation_changes_nothing_but_the_steps(plain: Record, ngram: Record) -> None:
    assert ids_of(ngram.greedy) == ids_of(plain.greedy)
    extra = ngram.greedy.stats.extra
    assert 0 < extra["drafts"] <= extra["draft_tokens"] <= extra["drafts"] * DRAFT["draft_tokens"]
    assert 0 < extra["accepted_tokens"] <= extra["draft_tokens"]
    assert not {"drafts", "draft_tokens", "accepted_tokens"} & plain.greedy.stats.extra.keys()


def test_an_accepted_token_comes_together_with_another(ngram: Record) -> None:
    """The last draft of an output may be cut by its end."""
    together = sum(gap == 0 for output in ngram.greedy.generations for gap in gaps(output))
    cut = DRAFT["draft_tokens"] * len(ngram.greedy.generations)
    accepted = ngram.greedy.stats.extra["accepted_tokens"]
    assert accepted - cut <= together <= accepted
    assert together > 0


# --- what runs --------------------------------------------------------------------


def test_settings_are_read_back(plain: Record, ngram: Record) -> None:
    found, speculating = plain.metadata.settings, ngram.metadata.settings
    assert (found.batching, found.chunked_prefill, found.prefix_caching) == ("continuous", True, False)
    assert (found.cuda_graphs, found.compile_mode, found.speculation) == ("none", "none", "none")
    assert (found.kv_cache_dtype, found.quantization, plain.last.settings.eos) == ("float32", "none", "stop")
    assert (found.scheduler, found.sampler) == ("fcfs", "cpu")
    assert (found.tensor_parallel_size, found.pipeline_parallel_size) == (1, 1)
    assert (found.max_num_seqs or 0) > 1
    assert (found.max_num_batched_tokens or 0) > 1
    assert (speculating.speculation, speculating.draft_tokens) == ("ngram", DRAFT["draft_tokens"])
    assert (speculating.ngram_min, speculating.ngram_max) == (DRAFT["min_n"], DRAFT["max_n"])
    assert (plain.metadata.options["executor"], ngram.metadata.options["executor"]) == ("uni", "mp")
    assert plain.metadata.flags == ngram.metadata.flags == []


def test_what_is_left_open_is_said(plain: Record) -> None:
    found = plain.metadata
    assert (found.settings.memory_share, found.memory.weights_bytes, found.memory.graphs_bytes) == (None, None, None)
    assert any(note.startswith("settings.memory_share:") for note in found.notes)
    assert any(note.startswith("memory.weights_bytes:") for note in found.notes)


def test_compiled_and_on_two_devices_it_says_the_same(start: Start, tiny_llama: str) -> None:
    """Each compiled start costs ten seconds, each start of several processes twenty."""
    ways: dict[str, dict[str, Any]] = {
        "compiled": {"method": {"eager": None}},
        "tensor": {"tensor_parallel_size": 2},
        "pipeline": {"method": {"eager": None}, "pipeline_parallel_size": 2},
    }
    found, outputs = {}, {}
    for name, way in ways.items():
        worker = start()
        found[name] = worker.load(config("vllm", tiny_llama, **way)).metadata
        outputs[name] = ids_of(worker.run(batch(name, IDS, (), max_new_tokens=NEW_TOKENS)))
        worker.end()
    assert outputs["tensor"] == outputs["pipeline"] == outputs["compiled"]
    assert len({tuple(ids) for ids in outputs["compiled"].values()}) == len(IDS)
    assert all(one.flags == [] for one in found.values())
    sizes = {n: (f.settings.tensor_parallel_size, f.settings.pipeline_parallel_size) for n, f in found.items()}
    assert sizes == {"compiled": (1, 1), "tensor": (2, 1), "pipeline": (1, 2)}
    assert {name: one.compiled for name, one in found.items()} == {"compiled": True, "tensor": False, "pipeline": True}
    assert found["compiled"].settings.compile_mode == "DYNAMO_TRACE_ONCE"
    assert (found["compiled"].load.compile_s or 0) > 1


def test_tokens_of_each_expert_are_counted(start: Start, tiny_moe: str) -> None:
    """And a size of the cache that the environment decides, against the sweep file, is flagged."""
    worker = start(**{CACHE_GIB: "1"})
    method = {"engine_args": {"max_num_batched_tokens": 64}}
    found = worker.load(config("vllm", tiny_moe, method=method, expert_load=True)).metadata
    done, again = (worker.run(batch(name, IDS, (), max_new_tokens=NEW_TOKENS)) for name in ("one", "two"))
    worker.end()
    assert found.flags == ["kv_cache_bytes_not_honoured"]
    assert found.kv_cache_bytes == 2**30 != KV_CACHE_BYTES
    assert found.settings.max_num_batched_tokens == 64
    loads = [[done.stats.extra[f"expert_{layer}_{at}"] for at in range(EXPERTS)] for layer in range(LAYERS)]
    tokens = sum(one.prompt_tokens + one.generated_tokens - 1 for one in done.generations)
    assert [sum(load) for load in loads] == [tokens * EXPERTS_PER_TOKEN] * LAYERS
    assert loads[0] != loads[1]
    assert again.stats.extra == done.stats.extra, "each batch has its own count"


def test_a_model_without_experts_has_no_load_of_them(start: Start, tiny_llama: str) -> None:
    worker = start()
    with pytest.raises(AssertionError, match="this model has no router"):
        worker.load(config("vllm", tiny_llama, expert_load=True))
