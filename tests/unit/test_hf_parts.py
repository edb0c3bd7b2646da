"""The parts of the Transformers backend that need no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.specs import (
    BackendConfig,
    CallParams,
    MethodSpec,
    NgramSpec,
    PromptBatch,
    PromptInput,
    pack_ids,
    unpack_ids,
)
from workers.backends import hf_compile, hf_notes, hf_paged, hf_score
from workers.backends.admission import refusals
from workers.backends.base import assemble
from workers.backends.hf_clock import StepClock

CALL = CallParams(
    batch_size=4, max_new_tokens=3, temperature=0.0, top_p=1.0, seed=0, ignore_eos=False, stop_token_ids=(2,)
)


class Tokens:
    """What `generate` hands to a streamer, as far as a step clock looks at it."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.ndim = shape, len(shape)


def config(method: dict[str, Any], **fields: Any) -> BackendConfig:
    return BackendConfig(method=MethodSpec(**{"name": "m", "engine": "hf", **method}), model_path="/m", **fields)


def test_a_step_clock_counts_one_token_for_each_row() -> None:
    ticks: list[int] = []
    clock = StepClock(lambda: ticks.append(1))
    for tokens in (Tokens(4, 10), Tokens(4), Tokens(4)):
        clock.put(tokens)
    first_s, second_s = clock.times_s(9)
    assert 0 < first_s <= second_s
    assert clock.times_s(1) == [first_s]
    assert (clock.tokens, clock.steps, len(ticks)) == (2, 2, 2)


def test_a_step_clock_counts_all_tokens_that_speculation_accepts() -> None:
    clock = StepClock()
    for tokens in (Tokens(1, 10), Tokens(1, 3), Tokens(1, 1)):
        clock.put(tokens)
    first, second, third, fourth = clock.times_s(4)
    assert first == second == third < fourth
    assert (clock.tokens, clock.steps) == (4, 2)


def result(*tokens: int, error: str | None = None) -> Any:
    """As Transformers gives it, times on the clock of the hand-over."""
    times = [10.5 + at for at in range(len(tokens))]
    return SimpleNamespace(generated_tokens=list(tokens), prompt_ids=[5, 6], timestamps=times, error=error)


def test_a_request_that_is_missing_or_has_failed_is_an_error_of_its_prompt_alone() -> None:
    batch = PromptBatch("b", [PromptInput(name, pack_ids([5, 6])) for name in ("good", "failed", "missing")], CALL)
    results = {"failed": result(7, error="out of blocks"), "good": result(7, 8, 2)}
    fault = RuntimeError("the loop died")
    good, failed, missing = assemble(batch, hf_paged.outputs(batch, results, 10.0, fault), None, (2,))
    assert (good.prompt_id, unpack_ids(good.token_ids), good.finish_reason, good.error) == (
        "good",
        [7, 8, 2],
        "stop",
        "",
    )
    assert (good.ttft_s, good.latency_s) == (0.5, 2.5)
    assert (failed.finish_reason, failed.generated_tokens) == ("error", 0)
    assert failed.error == "WrongOutputs: out of blocks"
    assert missing.error == "WrongOutputs: the engine gave no result for this prompt: RuntimeError: the loop died"
    (alone, *_) = hf_paged.outputs(batch, {}, 10.0, None)
    assert alone.error.endswith("it is missing")


def test_a_useless_last_token_has_no_time() -> None:
    batch = PromptBatch("b", [PromptInput("one", pack_ids([5, 6]))], CALL)
    late = result(7, 8)
    late.timestamps.append(13.0)
    (output,) = hf_paged.outputs(batch, {"one": late}, 10.0, None)
    assert output.times_s == [0.5, 1.5]


@pytest.mark.parametrize(
    ("needs", "most", "expected"),
    [
        ([4, 4, 4], 100, [[0, 1, 2]]),
        ([4, 4, 4], 8, [[0, 1], [2]]),
        ([2, 2, 9, 2, 2], 9, [[0, 1], [2], [3, 4]]),
        ([50, 1], 10, [[0], [1]]),
        ([3], 0, [[0]]),
    ],
)
def test_rows_are_scored_together_while_their_logits_fit(
    needs: list[int], most: int, expected: list[list[int]]
) -> None:
    assert [list(rows) for rows in hf_score.grouped(needs, most)] == expected


@pytest.mark.parametrize(
    ("compile_id", "again"),
    [("0/0", False), ("0/1", True), ("3/0_1", False), ("3/2_1", True), ("None", False), ("!0/1/2", True)],
)
def test_only_a_function_that_was_compiled_before_is_compiled_again(compile_id: str, again: bool) -> None:
    assert hf_compile.is_again(compile_id) is again


@pytest.mark.parametrize(
    ("reason", "given_up"),
    [
        ("Dynamo recompile limit exceeded\n  Explanation: …", True),
        ("Dynamo cache limit exceeded\n  Explanation: …", True),
        ("cache_size_limit reached", True),
        ("Unsupported method call\n  Hint: recompile limit", False),
    ],
)
def test_the_recompile_limit_is_told_from_other_reasons(reason: str, given_up: bool) -> None:
    assert hf_compile.is_limit(reason) is given_up


@pytest.mark.parametrize(
    ("method", "compiles", "mode"),
    [
        ({}, False, None),
        ({"attention": "sdpa"}, False, None),
        ({"attention": "flex_attention"}, True, None),
        ({"compile": "default"}, True, "reduce-overhead"),
    ],
)
def test_what_goes_through_torch_compile(method: dict[str, Any], compiles: bool, mode: str | None) -> None:
    asked = config(method, torch_compile_mode="reduce-overhead")
    assert (asked.compiles_here, asked.compile_mode) == (compiles, mode)


def test_the_notes_say_what_there_is_not() -> None:
    plain, rocket, paged = (
        hf_notes.notes(config(one)) for one in ({}, {"rocket_bucket": True}, {"continuous_batching": True})
    )
    assert any(note.startswith("kv_cache_tokens: the cache grows") for note in plain)
    assert any(note.startswith("kv_cache_tokens: there is one static cache") for note in rocket)
    assert not any("kv_cache_tokens" in note or "max_num_seqs" in note for note in paged)


@pytest.mark.parametrize(("ranks", "threads", "cpus", "told"), [(3, 1, 2, True), (2, 1, 2, False), (1, 2, 2, False)])
def test_ranks_that_share_too_few_cpus_are_noted(ranks: int, threads: int, cpus: int, told: bool) -> None:
    found = hf_notes.notes(config({}, tensor_parallel_size=ranks), threads, cpus)
    assert ("threads: 3 ranks of 1 each take turns on 2 CPUs" in found) is told


PAGED = {"continuous_batching": True}
NGRAM = NgramSpec(1, 3, 3)


@pytest.mark.parametrize(
    ("method", "fields", "why"),
    [
        ({"rocket_bucket": True, "attention": "flex_attention"}, {}, "takes no padding"),
        ({"rocket_bucket": True, "ngram": NGRAM}, {}, "static cache"),
        ({"rocket_bucket": True}, {"batch_size": 8, "bucket_batch_sizes": (2, 4)}, "no bucket holds a batch of 8"),
        ({**PAGED, "ngram": NGRAM}, {}, "none of compile, rocket_bucket and ngram"),
        ({**PAGED, "attention": "flex_attention"}, {}, "continuous_batching has no flex_attention"),
        (PAGED, {"kv_cache_bytes": None}, "needs kv_cache_bytes"),
        (PAGED, {"logprobs": 2}, "no log-probabilities"),
        (PAGED, {"task": "score"}, "one plain forward pass"),
        ({"compile": "default"}, {"task": "score"}, "one plain forward pass"),
        ({"ngram": NGRAM}, {"expert_load": True}, "watches the routers"),
        ({}, {"expert_load": True, "task": "score"}, "counts the tokens of generated outputs"),
        ({"compile": "default"}, {"pipeline_parallel_size": 2, "device": "cuda"}, "can't be compiled"),
        ({"compile": "default"}, {"tensor_parallel_size": 2, "device": "cuda"}, "goes with none of"),
    ],
)
def test_what_transformers_can_not_do_as_told_is_refused(
    method: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    (only,) = refusals(config(method, **{"kv_cache_bytes": 1 << 28, **fields}))
    assert why in only


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ({"attention": "flex_attention"}, {"batch_size": 4}),
        (
            {"rocket_bucket": True, "compile": "default"},
            {"bucket_lengths": (64,), "torch_compile_mode": "max-autotune"},
        ),
        (PAGED, {"kv_cache_bytes": 1 << 28}),
        (PAGED, {"device": "cuda"}),
        ({"attention": "paged|eager", **PAGED}, {"device": "cuda"}),
        ({"rocket_bucket": True}, {"expert_load": True}),
        ({}, {"pipeline_parallel_size": 2, "device": "cuda"}),
        ({"ngram": NGRAM}, {"logprobs": 5}),
    ],
)
def test_what_transformers_can_do_is_not_refused(method: dict[str, Any], fields: dict[str, Any]) -> None:
    assert list(refusals(config(method, **fields))) == []


def test_the_paged_cache_of_a_model_whose_layers_differ_is_the_sum_of_theirs() -> None:
    """The whole can't be asked for what is each layer's own: it raises."""

    class Uneven:
        is_heterogeneous = True
        per_layer_config = (
            SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=16, hidden_size=64),
            SimpleNamespace(num_attention_heads=4, num_key_value_heads=1, head_dim=32, hidden_size=64),
        )

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"'{name}' is a per-layer attribute and may vary across layers")

    even = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, num_hidden_layers=3)
    for text, expected in ((Uneven(), 2 * (2 * 16 + 1 * 32) * 2), (even, 2 * 3 * 2 * 16 * 2)):
        whole = SimpleNamespace(get_text_config=lambda text=text: text)
        model = SimpleNamespace(config=whole, dtype=SimpleNamespace(itemsize=2))
        paged = hf_paged.Paged(config({"continuous_batching": True}), model, 100, lambda: None)
        assert paged._token_bytes() == expected
