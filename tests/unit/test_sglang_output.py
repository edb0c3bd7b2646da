"""Every form in which SGLang has answered a batch."""

from __future__ import annotations

import pytest

from workers.backends.base import WrongOutputs
from workers.backends.sglang_args import Result, results

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


def test_a_finish_reason_may_be_a_plain_word() -> None:
    (only,) = results({"output_ids": [5], "meta_info": {"finish_reason": "length"}})
    assert only.finish == "length"


@pytest.mark.parametrize("answer", [None, 3, {"meta_info": {}}, [None], object()])
def test_anything_else_is_refused(answer: object) -> None:
    with pytest.raises(WrongOutputs):
        results(answer)
