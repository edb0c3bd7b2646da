"""Files of prompts whose records leave open which format they are in: none is read as something else than it is."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.unit.promptfiles import gathered, json_lines, refusals
from tests.unit.test_promptformats import CHAT, GOOD, TUNING

#: In one format each, of those that a file is found to be in.
ALONE = {name: record for name, record in GOOD.items() if name != "openai"}
#: In two.
BOTH: list[tuple[str, Any]] = [
    ("openai", TUNING),
    ("alpaca", {"prompt": "a", "instruction": "b", "output": "c"}),
    ("gsm8k", {"prompt": "a", "question": "b", "answer": "#### 1"}),
    ("sharegpt", {"prompt": "a", "conversations": []}),
    ("mt_bench", {"messages": CHAT["messages"], "question_id": 1, "turns": ["a"]}),
    ("openai_batch", {"prompt": "a", "custom_id": "b", "body": {}}),
]


@pytest.mark.parametrize(("other", "record"), BOTH)
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("listed", [True, False], ids=["list", "lines"])
def test_a_record_in_two_formats_is_refused_wherever_it_stands(
    tmp_path: Path, other: str, record: Any, before: int, listed: bool
) -> None:
    values = [*[CHAT] * before, record, CHAT, record]
    text = "[\n" + ",\n".join(map(json.dumps, values)) + "\n]" if listed else json_lines(*values)
    (found,) = refusals(tmp_path, "p.json", text)
    line = before + 1 + listed
    assert found == (
        f"p.json:{line}: can be read as jsonl and as {other} (say which it is: format: jsonl or format: {other})"
    )


def test_the_format_that_is_written_then_decides(tmp_path: Path) -> None:
    text = json_lines(CHAT, TUNING)
    as_is = gathered(tmp_path, "p.jsonl", text, format="jsonl")
    assert [one.messages for one in as_is.prompts] == [CHAT["messages"], TUNING["messages"]]
    assert as_is.tally.notes() == (
        "prompts: an assistant's message at the end of a chat is sent, to be continued (1 of 2)",
        "prompts: tools are kept, and no engine is told of them (1 of 2)",
    )
    tuned = gathered(tmp_path, "p.jsonl", text, format="openai")
    assert [one.messages for one in tuned.prompts] == [CHAT["messages"], CHAT["messages"]]
    assert [one.fields.get("expected") for one in tuned.prompts] == [None, "a"]


def test_columns_that_say_what_the_chat_is_decide_too_and_what_is_sent_is_told(tmp_path: Path) -> None:
    turns = json_lines({"turns": CHAT["messages"]}, {"turns": TUNING["messages"]}, {"turns": TUNING["messages"]})
    found = gathered(tmp_path, "p.jsonl", turns, columns={"messages": "turns"})
    assert found.tally.notes() == (
        "prompts: an assistant's message at the end of a chat is sent, to be continued (2 of 3)",
    )


@pytest.mark.parametrize(("first", "second"), list(permutations(ALONE, 2)))
def test_a_record_in_another_format_than_those_before_it_is_refused(tmp_path: Path, first: str, second: str) -> None:
    (found,) = refusals(tmp_path, "p.jsonl", json_lines(ALONE[first], ALONE[second], ALONE[second]))
    assert found == (
        f"p.jsonl:2: is as {second} has it, and what is before it is read as {first} "
        f"(say which it is: format: {first} or format: {second})"
    )


def test_records_of_no_format_decide_nothing_but_are_refused_for_themselves(tmp_path: Path) -> None:
    text = json_lines({"n": 1}, GOOD["gsm8k"])
    one, other = refusals(tmp_path, "p.jsonl", text)
    assert one.startswith("p.jsonl:1: has neither `prompt` nor `messages`")
    assert other.startswith("p.jsonl:2: is as gsm8k has it")
    (later,) = refusals(tmp_path, "p.jsonl", json_lines(GOOD["gsm8k"], {"n": 1}))
    assert later.startswith("p.jsonl:2: question: is missing")


def test_leaving_out_what_is_unusable_leaves_out_no_record_of_another_format(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, "p.jsonl", json_lines({"n": 1}, GOOD["sharegpt"]), unusable="leave_out")
    assert found.startswith("p.jsonl:2: is as sharegpt has it")
    kept = gathered(
        tmp_path, "p.jsonl", json_lines({"n": 1}, GOOD["sharegpt"]), unusable="leave_out", format="sharegpt"
    )
    assert len(kept.prompts) == 1


def test_what_is_wrong_before_it_is_told_beside_it(tmp_path: Path) -> None:
    broken, mixed = refusals(tmp_path, "p.jsonl", json_lines(CHAT, {"prompt": ""}) + "{\n" + json_lines(TUNING))[-2:]
    assert broken.startswith("p.jsonl:3: ")
    assert mixed.startswith("p.jsonl:4: can be read as jsonl and as openai")


def test_rows_of_a_table_are_held_to_it_too(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, "p.csv", "prompt,question,answer\na,b,c\nd,e,#### 1\n")
    assert found.startswith("p.csv:3: can be read as jsonl and as gsm8k")
