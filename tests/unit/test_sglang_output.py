"""Every form in which SGLang has answered a batch, and what its answers tell."""

from __future__ import annotations

import base64
from array import array

import pytest

from workers.backends.base import Position, WrongOutputs
from workers.backends.sglang_output import Mixture, Result, expert_load, generated, results, scored, totals

META = {"finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 2}


def test_one_dict_is_one_result() -> None:
    (only,) = results({"output_ids": [5, 2], "meta_info": META})
    assert (only.token_ids, only.finish, only.completion_tokens) == ([5, 2], "stop", 2)


def test_a_list_of_dicts_keeps_its_order() -> None:
    found = results([{"output_ids": [5], "meta_info": META}, {"output_ids": [6, 7], "meta_info": META}])
    assert [one.token_ids for one in found] == [[5], [6, 7]]


def test_a_dict_of_lists_is_split() -> None:
    found = results({"output_ids": [[5], [6, 7]], "text": ["a", "b"], "meta_info": [META, {"finish_reason": None}]})
    assert [(one.token_ids, one.text, one.finish) for one in found] == [([5], "a", "stop"), ([6, 7], "b", None)]


def test_a_dict_with_text_only_has_a_count_and_no_ids() -> None:
    (only,) = results({"text": "Paris", "meta_info": META})
    assert (only.token_ids, only.text, only.completion_tokens) == (None, "Paris", 2)


def test_strings_have_text_only() -> None:
    assert results("Paris") == [Result(None, "Paris", {})]
    assert results(["Paris", "Rome"]) == [Result(None, "Paris", {}), Result(None, "Rome", {})]


def test_lists_of_ids_have_ids_only() -> None:
    assert results([5, 2]) == [Result([5, 2], None, {})]
    assert results([[5, 2], [6]]) == [Result([5, 2], None, {}), Result([6], None, {})]


def test_an_empty_answer_is_no_result() -> None:
    assert results([]) == []


def test_why_a_prompt_was_given_up_is_told() -> None:
    reason = {"type": "abort", "message": "NaN in the logits", "status_code": 500}
    (only,) = results({"output_ids": [], "text": "", "meta_info": {"finish_reason": reason}})
    assert only.error == "SGLang gave it up: NaN in the logits"
    assert [one.error for one in results([{"output_ids": [5], "meta_info": META}, "text"])] == ["", ""]


def test_a_finish_reason_may_be_a_plain_word() -> None:
    (only,) = results({"output_ids": [5], "meta_info": {"finish_reason": "length"}})
    assert only.finish == "length"


@pytest.mark.parametrize("answer", [None, 3, {"meta_info": {}}, [None], object()])
def test_anything_else_is_refused(answer: object) -> None:
    with pytest.raises(WrongOutputs):
        results(answer)


def pairs(*told: tuple[float | None, int]) -> list[tuple[float | None, int, None]]:
    return [(value, token, None) for value, token in told]


def test_log_probabilities_of_generated_tokens() -> None:
    meta = {
        "output_token_logprobs": pairs((-0.5, 7), (-1.5, 2)),
        "output_top_logprobs": [pairs((-0.5, 7), (-2.0, 9)), pairs((-0.1, 3), (-1.5, 2))],
    }
    assert generated(Result([7, 2], None, meta)) == [
        Position(-0.5, [(7, -0.5), (9, -2.0)]),
        Position(-1.5, [(3, -0.1), (2, -1.5)]),
    ]


def test_scoring_leaves_out_the_token_before_the_continuation() -> None:
    meta = {
        "input_token_logprobs": pairs((None, 4), (-0.5, 7), (-1.5, 2)),
        "input_top_logprobs": [None, pairs((-0.5, 7)), pairs((-0.1, 3))],
    }
    assert scored(Result([], None, meta), [7, 2]) == [Position(-0.5, [(7, -0.5)]), Position(-1.5, [(3, -0.1)])]


def test_without_likeliest_tokens_the_chosen_ones_are_told() -> None:
    assert generated(Result([7], None, {"output_token_logprobs": pairs((-0.5, 7))})) == [Position(-0.5, [])]


def test_positions_end_where_they_are_of_another_token() -> None:
    """Too few are an error of that prompt; shifted ones would pass for its own."""
    meta = {"output_token_logprobs": pairs((-0.5, 7), (-1.5, 8), (-2.5, 2))}
    assert generated(Result([7, 3, 2], None, meta)) == [Position(-0.5, [])]
    assert generated(Result([7], None, {})) == []


def test_counters_are_summed_and_speculation_is_told_only_where_there_is_any() -> None:
    one = {"cached_tokens": 3, "num_retractions": 1, "spec_verify_ct": 4, "spec_num_proposed_drafts": 12}
    answers = [Result([5], None, {**one, "spec_num_correct_drafts": 6}), Result([5], None, {"cached_tokens": 2})]
    assert totals(answers, speculates=False) == {"cached_tokens": 5.0, "num_preemptions": 1.0}
    assert totals(answers, speculates=True) == {
        "cached_tokens": 5.0,
        "num_preemptions": 1.0,
        "drafts": 4.0,
        "draft_tokens": 12.0,
        "accepted_tokens": 6.0,
    }


def routed(*ids: int, cached: int = 0) -> Result:
    """One answer's experts, token by token, layer by layer."""
    text = base64.b64encode(array("i", ids).tobytes()).decode()
    return Result([5], None, {"routed_experts": text, "cached_tokens": cached})


def counted(answers: list[Result], mixture: Mixture) -> dict[int, list[float]]:
    """By layer: the counts of all its experts."""
    found = expert_load(answers, mixture)
    layers = sorted({int(name.split("_")[1]) for name in found})
    return {layer: [found[f"expert_{layer}_{expert}"] for expert in range(mixture.experts)] for layer in layers}


def test_tokens_are_counted_for_each_expert_of_each_layer() -> None:
    answers = [routed(0, 1, 2, 3, 0, 2, 2, 3), routed(1, 0, 3, 2)]
    assert counted(answers, Mixture(layers=2, experts=4, per_token=2)) == {0: [3, 2, 1, 0], 1: [0, 0, 3, 3]}


def test_tokens_out_of_the_prefix_cache_were_routed_before() -> None:
    assert counted([routed(0, 1, 2, 3, cached=1)], Mixture(1, 4, 2)) == {0: [0, 0, 1, 1]}


def test_a_dense_layer_has_no_experts() -> None:
    """SGLang leaves zeros in its place."""
    assert counted([routed(0, 0, 1, 2, 0, 0, 1, 3)], Mixture(2, 4, 2)) == {1: [0, 2, 1, 1]}
    assert counted([routed(0, 1, 0, 2)], Mixture(2, 3, 1)) == {1: [0, 1, 1]}


def test_an_answer_without_experts_counts_none() -> None:
    assert expert_load([Result([5], None, {})], Mixture(2, 4, 2)) == {}


def test_the_shape_of_a_mixture() -> None:
    shape = {"num_hidden_layers": 3, "num_experts_per_tok": 2, "num_local_experts": 8}
    assert Mixture.of(shape) == Mixture(3, 8, 2)
    assert Mixture.of({**shape, "num_local_experts": None, "n_routed_experts": 64}) == Mixture(3, 64, 2)
    assert Mixture.of({"num_hidden_layers": 3}) is None
