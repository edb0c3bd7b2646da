"""Prompts as their public producers write them, each format with what may be wrong in it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from tests.unit.pictures import RED, data_url
from tests.unit.promptfiles import gathered, json_lines, refusals, said

SHAREGPT = """\
[
  {
    "id": "QxB3k_0",
    "conversations": [
      {"from": "human", "value": "Name three rivers."},
      {"from": "gpt", "value": "Elbe, Oder, Rhine."},
      {"from": "human", "value": "And their lengths?"},
      {"from": "gpt", "value": "…"}
    ]
  },
  {"id": "QxB3k_7", "conversations": [{"from": "gpt", "value": "continued"}, {"from": "human", "value": "Go on"}]},
  {"id": "empty", "conversations": []},
  {"id": "only_gpt", "conversations": [{"from": "gpt", "value": "hello"}]},
  {"id": "silent", "conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": "?"}]},
  {"id": "sys", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "user", "value": "Hi"}]}
]
"""


def test_sharegpt_gives_the_first_turn_of_a_human(tmp_path: Path) -> None:
    found = gathered(tmp_path, "share.json", SHAREGPT)
    assert [(one.id, one.text, one.where) for one in found.prompts[:2]] == [
        ("QxB3k_0", "Name three rivers.", "share.json:2"),
        ("QxB3k_7", "Go on", "share.json:11"),
    ]
    assert found.prompts[2].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert found.tally.notes() == (
        "prompts: read as sharegpt, by the fields of the first record",
        "prompts: 6 read; left out: 2 that hold no turn of a human, 1 that begin with an empty turn of a human",
        "prompts: turns after the first of a human are left out (1 of 6)",
        "prompts: an answer that stands before the first turn of a human is left out (1 of 6)",
    )


@pytest.mark.parametrize("turn", [{"from": "narrator", "value": "a"}, {"from": "gpt", "value": None}, "x", None])
def test_what_is_left_out_of_a_conversation_may_be_anything(tmp_path: Path, turn: Any) -> None:
    (one,) = gathered(tmp_path, "s.json", json.dumps([{"conversations": [HUMAN, turn]}])).prompts
    assert one.text == HUMAN["value"]


def test_what_a_tool_says_before_a_human_does_is_a_message_of_the_system(tmp_path: Path) -> None:
    turns = [{"from": "function_call", "value": "f()"}, {"from": "observation", "value": "It is 3."}, HUMAN]
    (one,) = gathered(tmp_path, "s.json", json.dumps([{"conversations": turns}])).prompts
    assert one.messages == [{"role": "system", "content": "It is 3."}, {"role": "user", "content": HUMAN["value"]}]


def test_what_a_format_makes_can_be_added_to_by_columns(tmp_path: Path) -> None:
    columns = {"expected": "conversations[1].value"}
    found = said(tmp_path, "s.json", SHAREGPT, format="sharegpt", columns=columns)
    assert found[0] == {"id": "QxB3k_0", "prompt": "Name three rivers.", "expected": "Elbe, Oder, Rhine."}


def test_alpaca_has_the_template_it_was_trained_with(tmp_path: Path) -> None:
    data = [
        {"instruction": "Add them.", "input": "1, 2", "output": "3", "text": "the whole"},
        {"instruction": "Say {hi}", "input": "", "output": ""},
    ]
    one, other = said(tmp_path, "alpaca_data.json", json.dumps(data, indent=4))
    assert one["prompt"].endswith("### Instruction:\nAdd them.\n\n### Input:\n1, 2\n\n### Response:")
    assert "paired with an input" in one["prompt"]
    assert one["expected"] == "3"
    assert set(one) == {"id", "prompt", "expected", "text"}
    assert other["prompt"].endswith("request.\n\n### Instruction:\nSay {hi}\n\n### Response:")
    assert "paired" not in other["prompt"]
    assert "expected" not in other


CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]}
TUNING = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "a", "weight": 1}], "tools": [{}]}


def test_a_chat_for_fine_tuning_ends_in_the_expected_answer(tmp_path: Path) -> None:
    found = gathered(tmp_path, "ft.jsonl", json_lines(TUNING, CHAT), format="openai")
    assert [one.messages for one in found.prompts] == [CHAT["messages"], CHAT["messages"]]
    assert found.prompts[0].fields == {"tools": [{}], "expected": "a"}
    assert found.tally.notes() == ("prompts: tools are kept, and no engine is told of them (1 of 2)",)


def test_an_answer_in_parts_is_the_expected_one(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "4"}, {"type": "refusal", "refusal": "no"}, {"type": "text", "text": "2"}]
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}]}
    assert said(tmp_path, "p.jsonl", json_lines(chat), format="openai")[0]["expected"] == "42"


def test_the_parts_of_a_responses_request_are_those_of_a_chat(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": data_url(RED)}]
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "?"}]}
    asked = [{"role": "user", "content": parts}, answer]
    request = {"custom_id": "a", "url": "/v1/responses", "body": {"input": asked}}
    (one,) = gathered(tmp_path, "p.jsonl", json_lines(request)).prompts
    assert one.messages is not None
    assert one.messages[0]["content"][0] == {"type": "text", "text": "What is it?"}
    assert one.messages[1]["content"] == [{"type": "text", "text": "?"}]
    assert len(one.images) == 1


def test_where_two_formats_fit_both_are_named(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, "ft.jsonl", json_lines(TUNING))
    assert found == "ft.jsonl:1: can be read as jsonl and as openai (say which it is: format: jsonl or format: openai)"
    mixed = {"prompt": "a", "instruction": "b", "output": "c"}
    assert "can be read as jsonl and as alpaca" in refusals(tmp_path, "m.jsonl", json_lines(mixed))[0]
    assert gathered(tmp_path, "ft.jsonl", json_lines(TUNING), format="jsonl").prompts[0].messages == TUNING["messages"]
    assert gathered(tmp_path, "ft.jsonl", json_lines(CHAT)).tally.notes() == ()


def test_requests_of_a_batch(tmp_path: Path) -> None:
    requests = json_lines(
        {
            "custom_id": "r-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": CHAT["messages"], "max_tokens": 9, "temperature": 0},
        },
        {"custom_id": "r-2", "method": "POST", "url": "/v1/completions", "body": {"prompt": "once", "max_tokens": 9}},
        {"custom_id": "r-3", "url": "/v1/responses", "body": {"instructions": "be brief", "input": "why"}},
    )
    found = gathered(tmp_path, "batch.jsonl", requests)
    assert [one.id for one in found.prompts] == ["r-1", "r-2", "r-3"]
    assert found.prompts[0].messages == CHAT["messages"]
    assert found.prompts[0].fields["body"] == {"model": "m", "max_tokens": 9, "temperature": 0}
    assert found.prompts[1].text == "once"
    assert found.prompts[2].messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "why"},
    ]
    assert "prompts: max_tokens of a request is kept, and `sampling` decides (2 of 3)" in found.tally.notes()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("chat_template_kwargs", {"enable_thinking": False}, "no engine is told of it"),
        ("reasoning_effort", "low", "no engine is told of it"),
        ("documents", [{"text": "d"}], "no engine is told of it"),
        ("suffix", "end", "no engine is told of it"),
        ("add_special_tokens", False, "no engine is told of it"),
        ("top_k", 20, "`sampling` decides"),
        ("repetition_penalty", 1.1, "`sampling` decides"),
        ("ignore_eos", True, "`sampling` decides"),
        ("min_tokens", 9, "`sampling` decides"),
        ("structured_outputs", {"choice": ["a"]}, "`sampling` decides"),
    ],
)
def test_what_of_a_request_is_not_heeded_is_said(tmp_path: Path, key: str, value: object, why: str) -> None:
    request = {"custom_id": "a", "body": {"model": "m", "messages": CHAT["messages"], key: value}}
    found = gathered(tmp_path, "batch.jsonl", json_lines(request))
    assert found.tally.notes()[1:] == (f"prompts: {key} of a request is kept, and {why} (1 of 1)",)


@pytest.mark.parametrize("form", ["jsonl", "openai", "sharegpt"])
@pytest.mark.parametrize("key", ["tools", "functions", "documents", "chat_template_kwargs"])
def test_what_a_template_would_take_beside_a_chat_is_not_left_out_in_silence(
    tmp_path: Path, form: str, key: str
) -> None:
    chat = {"conversations": [{"from": "human", "value": "q"}]} if form == "sharegpt" else CHAT
    lines = json_lines({**chat, key: [{"name": "f"}]}, chat)
    found = gathered(tmp_path, "p.jsonl", lines, format=form)
    assert f"prompts: {key} are kept, and no engine is told of them (1 of 2)" in found.tally.notes()


def test_mt_bench_gives_its_first_turns(tmp_path: Path) -> None:
    questions = json_lines(
        {"question_id": 101, "category": "reasoning", "turns": ["One?", "Two?"], "reference": ["1", "2"]},
        {"question_id": 102, "category": "writing", "turns": ["Alone?"]},
    )
    found = gathered(tmp_path, "question.jsonl", questions)
    assert [one.source() for one in found.prompts] == [
        {"prompt": "One?", "category": "reasoning", "expected": "1"},
        {"prompt": "Alone?", "category": "writing"},
    ]
    assert [one.id for one in found.prompts] == ["101", "102"]
    assert found.tally.notes()[1] == (
        "prompts: turns after the first are left out, as they ask about an engine's own answer (1 of 2)"
    )


@pytest.mark.parametrize(
    ("end", "number"),
    [("72", 72), ("-3", -3), ("1,072", 1072), ("$2.50", 2.5), (" 5 ", 5), ("10,000,000", 10_000_000)],
)
def test_gsm8k_expects_a_number(tmp_path: Path, end: str, number: float) -> None:
    (found,) = said(tmp_path, "t.jsonl", json_lines({"question": "How many?", "answer": f"So.\n#### {end}"}))
    assert (found["prompt"], found["expected"]) == ("How many?", number)
    assert type(found["expected"]) is type(number)


def test_a_length_of_its_own_is_kept_and_told(tmp_path: Path) -> None:
    found = gathered(tmp_path, "p.jsonl", json_lines({"prompt": "a", "max_new_tokens": 9}, {"prompt": "b"}))
    assert found.prompts[0].fields == {"max_new_tokens": 9}
    assert found.tally.notes() == ("prompts: max_new_tokens of a prompt is kept, and `sampling` decides (1 of 2)",)


def test_a_template_takes_the_place_of_the_formats_own_prompt(tmp_path: Path) -> None:
    line = json_lines({"question": "Why?", "answer": "#### 1", "n": 2, "ok": True})
    (found,) = said(tmp_path, "t.jsonl", line, format="gsm8k", template="{{{n}}} {ok} Q: {question}\nA:")
    assert (found["prompt"], found["expected"]) == ("{2} true Q: Why?\nA:", 1)


HUMAN = {"from": "human", "value": "a"}
MALFORMED: list[tuple[str, Any, str]] = [
    ("sharegpt", {"conversations": "x"}, "conversations: is text, not a list"),
    ("sharegpt", {"id": 1}, "conversations: is missing"),
    ("sharegpt", {"conversations": ["x", HUMAN]}, "conversations[0]: is text, not a mapping"),
    ("sharegpt", {"conversations": [{"role": "user", "content": "a"}]}, "conversations[0]: has role and content"),
    ("sharegpt", {"conversations": [{"from": "alien", "value": "a"}]}, "conversations[0].from: is 'alien', not one of"),
    ("sharegpt", {"conversations": [{"value": "a"}]}, "conversations[0].from: is null"),
    ("sharegpt", {"conversations": [{"from": ["human"], "value": "a"}]}, "conversations[0].from: is a list"),
    ("sharegpt", {"conversations": [{"from": "human", "value": None}]}, "conversations[0].value: is null, not text"),
    ("alpaca", {"instruction": "", "output": "x"}, "instruction: is empty"),
    ("alpaca", {"output": "x"}, "instruction: is missing"),
    ("alpaca", {"instruction": None, "output": "x"}, "instruction: is null, not text"),
    (
        "alpaca",
        {"conversations": [HUMAN]},
        "instruction: is missing; the record is as sharegpt has it",
    ),
    ("alpaca", {"instruction": "a", "input": 3, "output": "x"}, "input: is a number, not text"),
    ("alpaca", {"instruction": "a", "output": ["x"]}, "output: is a list, not text"),
    ("openai", {"prompt": "a"}, "messages: is missing"),
    ("openai", {"messages": {"role": "user"}}, "messages: is a mapping, not a list"),
    ("openai", {"messages": []}, "messages: is empty"),
    ("openai", {"messages": [{"role": "assistant", "content": "a"}]}, "messages: holds nothing but the answer"),
    ("openai", {"messages": [{"role": "user"}]}, "messages[0].content: is missing"),
    ("openai_batch", {"custom_id": "a"}, "body: is missing"),
    ("openai_batch", {"custom_id": "a", "body": []}, "body: is a list, not a mapping"),
    ("openai_batch", {"custom_id": "a", "body": {"model": "m"}}, "body: has none of messages, prompt and input"),
    ("openai_batch", {"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}}, "url: asks for embeddings"),
    ("openai_batch", {"custom_id": "a", "body": {"prompt": ["x"]}}, "prompt: is a list, not text"),
    ("openai_batch", {"custom_id": 1.5, "body": {"prompt": "x"}}, "id: is a number, not text or a whole number"),
    ("mt_bench", {"question_id": 1, "turns": []}, "turns: is empty"),
    ("mt_bench", {"question_id": 1, "turns": "x"}, "turns: is text, not a list"),
    ("mt_bench", {"question_id": 1, "turns": ["a", None]}, "turns[1]: is null, not text"),
    ("mt_bench", {"question_id": [1], "turns": ["a"]}, "id: is a list"),
    ("gsm8k", {"question": "a", "answer": "72"}, "answer: does not end in #### and a number"),
    ("gsm8k", {"question": "a", "answer": "#### many"}, "answer: does not end in #### and a number"),
    ("gsm8k", {"question": "a", "answer": 72}, "answer: is a number, not text"),
    ("gsm8k", {"question": None, "answer": "#### 1"}, "question: is null, not text"),
    (
        "jsonl",
        {"text": "a"},
        "has neither `prompt` nor `messages`, but text: columns: {prompt: text} reads them",
    ),
    (
        "jsonl",
        {"id": 1, "question": "a", "answer": "b"},
        "has neither `prompt` nor `messages`, but id, question, answer: "
        "columns: {prompt: question, expected: answer} reads them",
    ),
    ("jsonl", {"promt": "a"}, "has neither `prompt` nor `messages`, but promt: did you mean prompt?"),
    ("jsonl", {"n": "a"}, "has neither `prompt` nor `messages`, but n"),
    ("gsm8k", "just text", "question: is missing"),
    ("alpaca", [1], "is a list: a prompt is a text or a mapping"),
]
GOOD: dict[str, Any] = {
    "sharegpt": {"conversations": [HUMAN]},
    "alpaca": {"instruction": "a", "output": "b"},
    "openai": CHAT,
    "openai_batch": {"custom_id": "good", "body": {"prompt": "a"}},
    "mt_bench": {"question_id": 0, "turns": ["a"]},
    "gsm8k": {"question": "a", "answer": "#### 1"},
    "jsonl": {"prompt": "a"},
}


@pytest.mark.parametrize(("form", "record", "says"), MALFORMED)
def test_what_is_malformed_is_refused_with_its_line(tmp_path: Path, form: str, record: Any, says: str) -> None:
    (line,) = refusals(tmp_path, "p.jsonl", json_lines(GOOD[form], record), format=form)
    assert line.startswith(f"p.jsonl:2: {says}")
    listed = f"[\n{json.dumps(GOOD[form])},\n\n{json.dumps(record)}\n]"
    (element,) = refusals(tmp_path, "p.json", listed, format=form)
    assert element.startswith(f"p.json:4: {says}")


@pytest.mark.parametrize("form", [form for form in GOOD if form not in ("jsonl", "openai")])
def test_a_format_is_found_by_the_fields_of_the_first_record(tmp_path: Path, form: str) -> None:
    found = gathered(tmp_path, "p.jsonl", json_lines(GOOD[form])).tally.notes()
    assert f"prompts: read as {form}, by the fields of the first record" in found


NAMES = st.sampled_from(
    [
        *("prompt", "messages", "role", "content", "id", "images", "expected", "conversations", "from", "value"),
        *("instruction", "input", "output", "custom_id", "body", "url", "question_id", "turns", "reference"),
        *("question", "answer"),
    ]
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1.5, "", "a", "human", "assistant", "#### 1", "\ud800", "\0", 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=6) | VALUES, max_size=3), st.sampled_from([None, *GOOD]))
def test_whatever_a_record_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], form: str | None
) -> None:
    text = json.dumps(records)
    columns = {"expected": "answer", "system": "content", "id": "body.id"} if form == "gsm8k" else {}
    options = {"format": form} if form else {}
    with suppress(InputError):
        found = gathered(tmp_path_factory.getbasetemp(), "p.json", text, **options, columns=columns)
        assert found.prompts
        json.dumps([one.source() for one in found.prompts], ensure_ascii=False).encode()
