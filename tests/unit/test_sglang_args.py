"""What SGLang is told beyond the plain arguments: buckets, drafts, log-probabilities, scoring, ranks. No engine is
imported."""

from __future__ import annotations

import os
from typing import Any

import pytest

from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids
from workers.backends import cpus, sglang_args
from workers.backends.admission import CannotHonour
from workers.backends.sglang_args import NGRAM, THREADS_OF_RANKS


@pytest.fixture
def model(tmp_path: Any) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def told(model: str, method: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    spec = MethodSpec(**{"name": "m", "engine": "sglang", **(method or {})})
    settings = BackendConfig(**{"method": spec, "model_path": model, "device": "cuda", **fields})
    return sglang_args.engine_args(settings, print)


@pytest.mark.parametrize(
    ("sizes", "batch_size", "expected"),
    [(None, 1, [1]), (None, 8, [1, 2, 4, 8]), (None, 6, [1, 2, 4, 6]), ((8, 3), 4, [3, 8])],
)
def test_buckets_are_the_sizes_of_the_graphs(
    model: str, sizes: tuple[int, ...] | None, batch_size: int, expected: list[int]
) -> None:
    found = told(model, {"rocket_bucket": True}, bucket_batch_sizes=sizes, batch_size=batch_size)
    assert found["cuda_graph_bs_decode"] == expected


def test_without_buckets_the_sizes_are_sglangs(model: str) -> None:
    assert not {"cuda_graph_bs_decode", "enable_return_routed_experts", *NGRAM} & told(model, batch_size=8).keys()


def test_experts_are_asked_for(model: str) -> None:
    assert told(model, expert_load=True)["enable_return_routed_experts"] is True


def test_all_that_shapes_a_draft_is_explicit(model: str) -> None:
    own = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}
    found = told(model, {"engine_args": own})
    assert {**found, **own}.items() >= {**NGRAM, **own}.items()
    # What the method says itself is no override of ours.
    assert not own.keys() & found.keys()


def request(**call: Any) -> PromptBatch:
    defaults = {"batch_size": 2, "max_new_tokens": 8, "temperature": 0.0, "top_p": 1.0, "seed": 0, "ignore_eos": False}
    prompts = [PromptInput("a", pack_ids([5, 6, 7]), 2), PromptInput("b", pack_ids([5, 6]), 1)]
    return PromptBatch("b", prompts, CallParams(**{**defaults, "stop_token_ids": (2,), **call}))


def test_log_probabilities_are_asked_for_where_they_are_wanted() -> None:
    plain = sglang_args.call_args(request(), [[5, 6, 7], [5, 6]], expert_load=False)
    assert plain.keys() == {"input_ids", "sampling_params"}
    asked = sglang_args.call_args(request(logprobs=4), [[5, 6, 7], [5, 6]], expert_load=True)
    assert (asked["return_logprob"], asked["top_logprobs_num"], asked["return_routed_experts"]) == (True, 4, True)
    assert "logprob_start_len" not in asked


def test_scoring_makes_no_token_and_begins_one_before_the_continuation() -> None:
    asked = sglang_args.call_args(request(task="score"), [[5, 6, 7], [5, 6]], expert_load=False)
    assert asked["sampling_params"]["max_new_tokens"] == 0
    assert (asked["logprob_start_len"], asked["return_logprob"], asked["top_logprobs_num"]) == ([1, 0], True, 0)


def test_each_rank_gets_cpus_of_its_own() -> None:
    assert cpus.shares({3, 1, 0, 2}, 2) == "0,1|2,3"
    assert cpus.shares({5, 7, 9}, 2) == "5|7"
    with pytest.raises(CannotHonour, match="3 ranks need as many CPUs, and there are 2"):
        cpus.shares({0, 1}, 3)


def test_ranks_are_bound_on_a_cpu_unless_the_method_says_how(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(**fields: Any) -> str | None:
        settings = BackendConfig(method=MethodSpec("m", "sglang"), model_path=model, **fields)
        sglang_args.bind_ranks(settings)
        return os.environ.get(THREADS_OF_RANKS)

    monkeypatch.setenv(THREADS_OF_RANKS, "as it was")  # so that it is put back
    monkeypatch.delenv(THREADS_OF_RANKS)
    assert bound() is None
    assert bound(device="cuda", tensor_parallel_size=2) is None
    assert len((bound(tensor_parallel_size=2) or "").split("|")) == 2
    monkeypatch.setenv(THREADS_OF_RANKS, "7|9")
    assert bound(pipeline_parallel_size=2) == "7|9"


def test_log_probabilities_are_those_before_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "0")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "0")
    sglang_args.set_environment()
    assert os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "1"
