"""Every way to run Transformers that a CPU can: the same ids, and what each says that it did."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protocol.records import FLAG_RECOMPILE_LIMIT, LoadTimes
from protocol.specs import NgramSpec, unpack_floats, unpack_ids
from tests.engines.conftest import FindPython, Prompts
from tests.engines.driver import Worker, batch
from tests.engines.hf_jobs import NEW_TOKENS, TOP, ids, job, of, run, to_score, told
from tests.engines.hf_run import Done, Job, Result

pytestmark = pytest.mark.engine

NGRAM = NgramSpec(min_n=1, max_n=3, draft_tokens=3)
#: All prompts of the tests fit into one of these; batches of three leave one row of padding.
BUCKETS: dict[str, Any] = {"bucket_batch_sizes": (1, 4), "bucket_lengths": (48, 96)}
#: KV cache of a token, bytes: 2 layers of 4 heads, keys and values of 64 float32.
LLAMA_TOKEN = 2 * 2 * 4 * 64 * 4
THREE = ("capital", "sum", "repeat")


@dataclass(frozen=True)
class Plain:
    """Results of methods that compile nothing, on the demo model and on made ones."""

    sdpa: Result
    eager: Result
    ngram: Result
    padded: Result
    moe: Result
    no_experts: Result
    full: Result
    llama: Result


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short: the path of a socket holds 107 bytes, and pytest's own folders use most of them."""
    with tempfile.TemporaryDirectory(prefix="al-t") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def plain(engine_env: FindPython, model: str, tiny_llama: str, tiny_moe: str, prompts: Prompts, folder: Path) -> Plain:
    likeliest = of(prompts, logprobs=TOP)
    each = [of(prompts, name) for name in prompts.ids]
    unequal = batch("full", {"short": [5, 6, 7], "long": [5] * 100}, prompts.stop, max_new_tokens=NEW_TOKENS)
    found = run(
        engine_env("hf"),
        folder,
        job(model, [likeliest, of(prompts)], {"attention": "sdpa"}),
        job(model, [of(prompts)], {"attention": "eager"}),
        job(model, [*each, of(prompts, *THREE)], {"attention": "sdpa", "ngram": NGRAM}),
        job(model, [of(prompts, *THREE), of(prompts, "sum", max_new_tokens=99)], {"rocket_bucket": True}, **BUCKETS),
        job(tiny_moe, [of(prompts, *THREE, ignore_eos=True), of(prompts, "sum")], {}, expert_load=True),
        job(model, [], {}, expert_load=True),
        job(tiny_llama, [unequal, of(prompts, "sum")], {"continuous_batching": True}, kv_cache_bytes=64 * LLAMA_TOKEN),
        job(tiny_llama, [of(prompts), of(prompts, "sum")], {"attention": "sdpa"}),
    )
    return Plain(*found)


@pytest.fixture(scope="module")
def scored(plain: Plain, engine_env: FindPython, model: str, prompts: Prompts, folder: Path) -> Done:
    continuations = to_score(prompts, plain.sdpa.done[0].generations)
    (found,) = run(engine_env("hf"), folder, job(model, [continuations], {"attention": "sdpa"}))
    return found.done[0]


def test_every_uncompiled_method_gives_the_same_ids(plain: Plain) -> None:
    expected = ids(plain.sdpa.done[1].generations)
    assert len({tuple(one) for one in expected.values()}) == len(expected) > 3
    for result in (plain.sdpa, plain.eager):
        assert ids(result.done[0].generations) == expected
    alone = [done.generations[0] for done in plain.ngram.done[:-1]]
    assert ids(alone) == expected
    assert ids(plain.padded.done[0].generations) == {name: expected[name] for name in THREE}


def test_what_runs_is_read_back(plain: Plain) -> None:
    for result, attention in ((plain.sdpa, "sdpa"), (plain.eager, "eager")):
        assert result.metadata is not None
        found = result.metadata.settings
        assert result.metadata.attention_backend == attention
        assert result.metadata.flags == []
        assert (found.batching, found.compile_mode, found.cuda_graphs, found.speculation) == ("static", *["none"] * 3)
        assert (found.prefix_caching, found.quantization, found.eos) == (False, "none", "stop")
        assert (found.tensor_parallel_size, found.pipeline_parallel_size) == (1, 1)
        for missing in ("max_num_seqs", "memory_share", "kv_cache_tokens"):
            assert any(missing in note for note in result.metadata.notes)
        assert 500e6 < (result.metadata.memory.weights_bytes or 0) < 560e6  # 134.5 million parameters of 4 bytes


def test_each_token_has_its_time(plain: Plain) -> None:
    done = plain.sdpa.done[1]
    assert done.stats is not None
    for generation in done.generations:
        gaps = unpack_floats(generation.itl_s or b"")
        assert len(gaps) == generation.generated_tokens - 1
        assert sum(gap or 0 for gap in gaps) == pytest.approx(
            (generation.latency_s or 0) - (generation.ttft_s or 0), abs=1e-4
        )
    assert done.stats.extra["steps"] == max(g.generated_tokens for g in done.generations)


def test_greedy_tokens_are_the_likeliest_and_no_distribution_exceeds_one(plain: Plain) -> None:
    for generation in plain.sdpa.done[0].generations:
        found, count = told(generation), generation.generated_tokens
        chosen, top, tokens = unpack_floats(found.chosen), unpack_floats(found.top), unpack_ids(found.top_ids)
        assert (found.k, len(chosen), len(top)) == (TOP, count, TOP * count)
        assert chosen == top[::TOP]
        assert tokens[::TOP] == unpack_ids(generation.token_ids)
        sums = [sum(math.exp(one or 0) for one in top[at : at + TOP]) for at in range(0, len(top), TOP)]
        assert all(0 < one <= 1 + 1e-6 for one in sums)
    assert all(g.logprobs is None for g in plain.sdpa.done[1].generations)


def test_scoring_what_was_generated_gives_the_same_log_probabilities(plain: Plain, scored: Done) -> None:
    expected = {g.prompt_id: told(g) for g in plain.sdpa.done[0].generations}
    for generation in scored.generations:
        found, before = told(generation), expected[generation.prompt_id]
        assert (generation.finish_reason, generation.generated_tokens) == ("scored", 0)
        assert unpack_floats(found.chosen) == pytest.approx(unpack_floats(before.chosen), abs=1e-3)
        assert unpack_floats(found.top) == pytest.approx(unpack_floats(before.top), abs=1e-3)
    assert len(scored.generations) == len(expected)
    assert scored.stats is not None
    assert scored.stats.extra == {"steps": 1.0}


def test_prompt_lookup_counts_what_it_drafts(plain: Plain) -> None:
    for done in plain.ngram.done[:-1]:
        assert done.stats is not None
        (generation,), counts = done.generations, done.stats.extra
        assert counts["steps"] + counts["accepted_tokens"] == generation.generated_tokens
        assert 0 <= counts["accepted_tokens"] <= counts["draft_tokens"] <= 3 * counts["drafts"]
        assert counts["drafts"] <= counts["steps"]
    repeated = next(one.stats for one in plain.ngram.done if one.generations[0].prompt_id == "repeat")
    assert repeated is not None
    assert repeated.extra["accepted_tokens"] > 0
    assert plain.ngram.metadata is not None
    found = plain.ngram.metadata.settings
    assert (found.speculation, found.ngram_min, found.ngram_max, found.draft_tokens) == ("ngram", 1, 3, 3)
    assert "one prompt at a time" in plain.ngram.done[-1].error


def test_padding_up_to_a_bucket_is_not_counted(plain: Plain, prompts: Prompts) -> None:
    done, refused = plain.padded.done
    assert done.stats is not None
    assert [g.prompt_id for g in done.generations] == [name for name in prompts.ids if name in THREE]
    tokens = sum(len(prompts.ids[name]) for name in THREE)
    length = next(one for one in BUCKETS["bucket_lengths"] if one >= max(len(prompts.ids[name]) for name in THREE))
    counts = done.stats.extra
    assert (counts["bucket_batch"], counts["bucket_length"]) == (4, length)
    assert counts["bucket_fill"] == pytest.approx(tokens / (4 * length))
    assert done.stats.generated_tokens == sum(len(one) for one in ids(done.generations).values())
    assert "99 new tokens" in refused.error
    assert plain.padded.metadata is not None
    chosen = plain.padded.metadata.options["buckets"]
    assert chosen == {"batch_sizes": [1, 4], "lengths": [48, 96], "cache_tokens": 96 + NEW_TOKENS}
    assert (plain.padded.metadata.load.warmup_s or 0) > 0


def test_each_token_goes_to_two_experts_of_each_layer(plain: Plain, prompts: Prompts) -> None:
    several, single = plain.moe.done
    for done in (several, single):
        assert done.stats is not None
        counts = {name: count for name, count in done.stats.extra.items() if name.startswith("expert_")}
        needed = sum(len(prompts.ids[g.prompt_id]) + g.generated_tokens - 1 for g in done.generations)
        for layer in (0, 1):
            of_layer = [counts[f"expert_{layer}_{expert}"] for expert in range(8)]
            assert sum(of_layer) == 2 * needed
            assert max(of_layer) <= needed
        assert len(counts) == 16


def test_a_model_without_experts_has_no_expert_load(plain: Plain) -> None:
    assert plain.no_experts.metadata is None
    assert "CannotHonour: expert_load: the model has no experts" in plain.no_experts.error


def test_a_prompt_that_the_paged_cache_can_not_hold_is_an_error_of_its_own(plain: Plain) -> None:
    assert plain.full.metadata is not None
    assert plain.full.metadata.kv_cache_tokens == 64
    unequal, after = plain.full.done
    short, long = unequal.generations
    assert (short.error, short.generated_tokens) == ("", NEW_TOKENS)
    assert (long.finish_reason, long.generated_tokens) == ("error", 0)
    assert "No requests can be scheduled" in long.error
    assert ids(after.generations) == ids(plain.llama.done[1].generations)


@pytest.fixture
def worker(engine_env: FindPython) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="al-t") as name:
        started = Worker(engine_env("hf"), "hf", Path(name))
        yield started
        started.close()


def load(worker: Worker, work: Job) -> Any:
    return worker.load(work.config).metadata


def test_rocket_buckets_compile_nothing_after_the_load(
    plain: Plain, worker: Worker, tiny_llama: str, prompts: Prompts
) -> None:
    work = job(tiny_llama, [], {"eager": None, "compile": "default", "rocket_bucket": True}, **BUCKETS)
    found = load(worker, work)
    graphs = {worker.run(of(prompts, *names)).stats.extra["unique_graphs"] for names in (THREE, ("sum",), ())}
    done = worker.run(of(prompts))
    assert graphs == {done.stats.extra["unique_graphs"]} == {len(BUCKETS["bucket_batch_sizes"])}
    assert done.stats.extra["recompiles"] == 0
    assert ids(done.generations) == ids(plain.llama.done[0].generations)
    assert all(g.flags == [] for g in done.generations)
    assert (found.compiled, found.settings.compile_mode, found.settings.cuda_graphs) == (True, "default", "none")
    times: LoadTimes = found.load
    assert (times.compile_s or 0) > 0
    assert (times.warmup_s or 0) > 0
    assert sum((times.weights_s or 0, times.compile_s or 0, times.warmup_s or 0)) <= times.total_s
    assert found.options["recompile_limit"] >= 2


def test_running_into_the_recompile_limit_is_flagged_from_there_on(
    plain: Plain, worker: Worker, tiny_llama: str, prompts: Prompts
) -> None:
    work = job(tiny_llama, [], {"eager": None, "compile": "default"}, torch_compile_cache_size_limit=1)
    assert load(worker, work).options["recompile_limit"] == 1
    first, second, third = (worker.run(of(prompts, *names)) for names in ((), ("sum",), ()))
    assert [g.flags for g in first.generations] == [[]] * len(prompts.ids)
    assert first.stats.extra["unique_graphs"] > 0
    for done in (second, third):
        assert {tuple(g.flags) for g in done.generations} == {(FLAG_RECOMPILE_LIMIT,)}
    assert ids(first.generations) == ids(third.generations) == ids(plain.llama.done[0].generations)
    assert ids(second.generations) == ids(plain.llama.done[1].generations)
    goodbye, _ = worker.end()
    assert goodbye.metadata is not None
    assert goodbye.metadata.flags == [FLAG_RECOMPILE_LIMIT], "whoever judges the point reads it there"


def test_flex_attention_runs_without_padding(plain: Plain, worker: Worker, tiny_llama: str, prompts: Prompts) -> None:
    found = load(worker, job(tiny_llama, [], {"attention": "flex_attention"}))
    assert (found.attention_backend, found.flags) == ("flex_attention", [])
    padded = worker.fail(of(prompts, *THREE))
    assert "takes no padding" in padded.error.message
    done = worker.run(of(prompts, "sum"))
    assert ids(done.generations) == ids(plain.llama.done[1].generations)
    assert done.stats.extra["unique_graphs"] > 0


def test_continuous_batching_on_a_paged_cache(plain: Plain, worker: Worker, model: str, prompts: Prompts) -> None:
    expected = ids(plain.sdpa.done[1].generations)
    found = load(worker, job(model, [], {"attention": "sdpa", "continuous_batching": True}, batch_size=2))
    assert (found.attention_backend, found.flags, found.settings.batching) == ("sdpa", [], "continuous")
    assert (found.settings.max_num_seqs, found.settings.prefix_caching) == (2, False)
    assert 0.9 * (256 << 20) < found.kv_cache_bytes <= 256 << 20
    assert found.kv_cache_tokens * 2 * 3 * 64 * 4 * 30 == found.kv_cache_bytes
    done = worker.run(of(prompts))
    assert ids(done.generations) == expected
    for generation in done.generations:
        assert 0 < (generation.ttft_s or 0) <= (generation.latency_s or 0) <= done.stats.wall_s
        assert len(unpack_floats(generation.itl_s or b"")) == generation.generated_tokens - 1
    assert done.stats.extra["steps"] >= max(map(len, expected.values()))
    fixed = worker.run(of(prompts, *THREE, ignore_eos=True))
    assert {g.generated_tokens for g in fixed.generations} == {NEW_TOKENS}
    sampled = [worker.run(of(prompts, *THREE, temperature=0.8, seed=7)) for _ in range(2)]
    assert ids(sampled[0].generations) == ids(sampled[1].generations)
    refused = worker.fail(of(prompts, "sum", logprobs=1))
    assert "no log-probabilities" in refused.error.message
    assert ids(worker.run(of(prompts)).generations) == expected
    goodbye, status = worker.end()
    assert (status, worker.survivors()) == (0, [])
    assert goodbye.metadata is not None
