"""Fields of records by their paths, templates made of them, and records that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.readers.fields import NoField, filled, find
from tests.unit.pictures import RED, data_url
from tests.unit.promptfiles import gathered, json_lines, refusals, said

RECORD: dict[str, Any] = {"q": {"text": ["x", {"deep": 1}]}, "a.b": "dotted", "null": None, "images": []}


@pytest.mark.parametrize(
    ("path", "value"), [("q.text[0]", "x"), ("q.text[-1].deep", 1), ("a.b", "dotted"), ("null", None)]
)
def test_a_path_leads_to_a_field(path: str, value: Any) -> None:
    assert find(RECORD, path) == value


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("qq", "has no field qq, but q, a.b, null, images: did you mean q?"),
        ("q.txt", "has no field q.txt, but text: did you mean text?"),
        ("q.text[2]", "q.text has 2 items, and [2] is asked for"),
        ("q.text[0].x", "q.text[0] has no parts with names"),
        ("q[0]", "q is no list"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ended(path: str, says: str) -> None:
    with pytest.raises(NoField) as caught:
        find(RECORD, path)
    assert str(caught.value) == says


def test_a_template_takes_texts_and_numbers_alone() -> None:
    assert filled("{{x}} {q.text[0]} { a.b }", RECORD) == "{x} x dotted"
    for path in ("q", "null", "images", "gone"):
        with pytest.raises(NoField):
            filled(f"{{{path}}}", RECORD)


def test_columns_say_what_a_field_is(tmp_path: Path) -> None:
    line = json_lines(
        {"q": {"en": "Why?"}, "gold": ["a", "b"], "n": 7, "sys": "Be brief.", "rest": " So.", "pic": "r.png"}
    )
    (tmp_path / "r.png").write_bytes(RED)
    columns = {
        **{"prompt": "q.en", "expected": "gold", "id": "n", "system": "sys"},
        **{"continuation": "rest", "images": "pic"},
    }
    found = gathered(tmp_path, "p.jsonl", line, columns=columns)
    (one,) = found.prompts
    assert (one.id, one.text, one.continuation) == ("7", None, " So.")
    assert one.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]},
    ]
    assert one.images == (RED,)
    assert one.fields == {"q": {"en": "Why?"}, "expected": ["a", "b"], "images": ["r.png"]}


def test_a_system_message_goes_before_a_chat_and_images_may_be_data_urls(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    line = json_lines({"turns": chat, "sys": "s", "pics": [data_url(RED)]})
    columns = {"messages": "turns", "system": "sys", "images": "pics"}
    (one,) = gathered(tmp_path, "p.jsonl", line, columns=columns).prompts
    assert one.messages is not None
    assert [message["role"] for message in one.messages] == ["system", "user"]
    assert one.images == (RED,)


@pytest.mark.parametrize("name", ["system", "system_prompt", "history"])
@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "a"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"conversations": [{"from": "human", "value": "a"}]},
        {"instruction": "a", "input": "", "output": "b"},
    ],
    ids=["prompt", "chat", "sharegpt", "alpaca"],
)
def test_what_other_tools_send_beside_a_prompt_is_not_left_out_in_silence(
    tmp_path: Path, record: dict[str, Any], name: str
) -> None:
    line = json_lines({**record, name: "Be brief."})
    note = f"prompts: {name} is kept, and not sent: `columns` or `messages` would (1 of 1)"
    assert note in gathered(tmp_path, "p.jsonl", line).tally.notes()
    sent = gathered(tmp_path, "p.jsonl", line, columns={"system": name})
    assert note not in sent.tally.notes()
    assert sent.prompts[0].messages is not None
    assert note not in gathered(tmp_path, "p.jsonl", json_lines({**record, name: ""})).tally.notes()


def test_a_text_a_line_can_be_put_into_a_template(tmp_path: Path) -> None:
    assert said(tmp_path, "p.txt", "one\n", template="Say {prompt}!") == [{"id": "0", "prompt": "Say one!"}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": {"prompt": "qq"}}, "p.jsonl:2: columns.prompt: has no field qq, but q, n: did you mean q?"),
        ({"columns": {"messages": "q"}}, "p.jsonl:2: messages: is text, not a list"),
        ({"template": "{x}"}, "p.jsonl:2: template: has no field x, but q, n"),
        ({"template": "{n}"}, "p.jsonl:2: template: n is null, which can't stand in the template"),
        ({"columns": {"prompt": "q", "system": "q[0]"}}, "s.yaml:4: prompts.columns.system: no record has anything at"),
        (
            {"columns": {"prompt": "q", "expected": "n"}},
            "s.yaml:4: prompts.columns.expected: no record has anything at n",
        ),
    ],
)
def test_a_column_that_is_not_there_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    found = refusals(tmp_path, "p.jsonl", "\n" + json_lines({"q": "a", "n": None}), **options)
    assert found[0].startswith(says), found


def test_no_text_goes_before_token_ids(tmp_path: Path) -> None:
    (line,) = refusals(tmp_path, "p.jsonl", json_lines({"prompt": [1, 2], "s": "x"}), columns={"system": "s"})
    assert line == "p.jsonl:1: columns.system: goes before a text, and the prompt is token ids"


def test_records_that_can_not_be_prompts_may_be_left_out(tmp_path: Path) -> None:
    data = '{"prompt": "a"}\n{"prompt": ""}\n{\n{"prompt": "b", "id": 1}\n{"prompt": "c", "id": 1}\n\xe9'
    found = gathered(tmp_path, "p.jsonl", data.encode("latin-1"), unusable="leave_out")
    assert [one.id for one in found.prompts] == ["0", "1"]
    assert found.tally.notes() == (
        "prompts: the first that can't be a prompt: p.jsonl:2: prompt: is empty",
        "prompts: 6 read; left out: 4 that can't be a prompt",
    )
    assert "left out are 1 that can't be a prompt" in refusals(tmp_path, "p.jsonl", "{", unusable="leave_out")[0]
