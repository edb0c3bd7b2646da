"""The section `prompts` of a sweep file: what it says, and what contradicts itself in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.config import json_schema, parse
from orchestrator.definition.promptuse import CONTAINERS, SHAPES, Lengths, RandomTokens, SharedPrefix
from orchestrator.errors import InputError
from orchestrator.readers import shapes
from tests.unit.promptfiles import source_of
from tests.unit.test_schema import fits_schema

HEAD = "name: a\nmodel: demo\nmethods: [hf_sdpa]\nprompts:\n"


def wrong(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(HEAD + text, "s.yaml")
    return [str(one) for one in caught.value.problems]


def test_all_that_a_file_can_be_told() -> None:
    reading = source_of(
        file="x.parquet",
        format="gsm8k",
        columns={"id": "meta.id"},
        template="{question}",
        filter={"min_prompt_tokens": 4, "max_chars": 9},
        sample={"count": 3},
        unusable="leave_out",
    ).reading
    assert (reading.shape, reading.container) == ("gsm8k", None)
    assert reading.columns.given() == {"id": "meta.id"}
    assert (reading.sample and reading.sample.seed, reading.sampled_later) == (0, True)
    assert source_of(file="x", format="csv").reading.container == "csv"


def test_random_prompts_are_asked_for_by_lengths() -> None:
    made = source_of(random={"count": 3, "input_tokens": 128}).made
    assert made == RandomTokens(count=3, input_tokens=128)
    made = source_of(random={"input_tokens": {"file": "lengths.txt", "max": 9}, "seed": 7}).made
    assert made == RandomTokens(count=None, input_tokens=Lengths(file="lengths.txt", max=9), seed=7)
    asked: dict[str, Any] = {
        "groups": 2,
        "prompts_per_group": 3,
        "system_tokens": 9,
        "question_tokens": {"uniform": [1, 2]},
    }
    assert source_of(shared_prefix=asked).made == SharedPrefix(
        groups=2, prompts_per_group=3, system_tokens=9, question_tokens=Lengths(uniform=(1, 2))
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "  file: a.txt\n  inline: [b]\n",
            "s.yaml:4: prompts: needs exactly one of file, inline, random and shared_prefix",
        ),
        ("  chat_template: on\n", "s.yaml:4: prompts: needs exactly one of"),
        ("  file: a\n  fromat: csv\n", "s.yaml:6: prompts.fromat: prompts has no such key (did you mean format?)"),
        ("  file: a\n  format: share_gpt\n", "s.yaml:6: prompts.format: must be one of"),
        (
            "  inline: [a]\n  format: csv\n",
            "s.yaml:6: prompts.format: says how a file is read, and the prompts are inline",
        ),
        ("  inline: [a]\n  sample: {count: 1}\n", "s.yaml:6: prompts.sample: says how a file is read"),
        ("  file: a\n  columns: {promt: q}\n", "s.yaml:6: prompts.columns.promt: prompts.columns has no such key (did"),
        (
            "  file: a\n  columns: {prompt: 'a..b'}\n",
            "s.yaml:6: prompts.columns.prompt: is no field's name, nor a path",
        ),
        (
            "  file: a\n  columns:\n    prompt: a\n    messages: b\n",
            "s.yaml:8: prompts.columns.messages: stands beside",
        ),
        (
            "  file: a\n  columns: {prompt: a}\n  template: '{b}'\n",
            "s.yaml:7: prompts.template: stands beside columns.prompt",
        ),
        (
            "  file: a\n  template: fixed\n",
            "s.yaml:6: prompts.template: holds no field, and all prompts would be the same",
        ),
        ("  file: a\n  template: '{q'\n", "s.yaml:6: prompts.template: has a { by itself"),
        ("  file: a\n  template: '{}'\n", "s.yaml:6: prompts.template: has {} without a field's name in it"),
        ("  file: a\n  template: '{a[b]}'\n", "s.yaml:6: prompts.template: is no field's name, nor a path"),
        (
            "  file: a\n  filter: {min_chars: 9, max_chars: 3}\n",
            "s.yaml:6: prompts.filter.min_chars: is more than filter.max",
        ),
        (
            "  file: a\n  filter: {max_prompt_tokens: 0}\n",
            "s.yaml:6: prompts.filter.max_prompt_tokens: must be a whole",
        ),
        ("  file: a\n  sample: {seed: 1}\n", "s.yaml:6: prompts.sample: lacks count"),
        ("  file: a\n  sample: 200\n", "s.yaml:6: prompts.sample: must be a mapping"),
        ("  file: a\n  format: txt\n  split: test\n", "s.yaml:7: prompts.split: means nothing for txt"),
        ("  file: a\n  delimiter: ab\n", "s.yaml:6: prompts.delimiter: must be a single character"),
        ("  file: a\n  format: tsv\n  delimiter: ';'\n", "s.yaml:7: prompts.delimiter: means nothing for tsv"),
        ("  random: {count: 3}\n", "s.yaml:5: prompts.random: lacks input_tokens"),
        ("  random: {input_tokens: 3}\n", "s.yaml:5: prompts.random: lacks count (for example count: 200)"),
        ("  random: {count: 0, input_tokens: 3}\n", "s.yaml:5: prompts.random.count: must be a whole number"),
        (
            "  random:\n    count: 1\n    input_tokens: {}\n",
            "s.yaml:7: prompts.random.input_tokens: needs exactly one of fixed",
        ),
        (
            "  random: {count: 1, input_tokens: {fixed: 1, file: x}}\n",
            "s.yaml:5: prompts.random.input_tokens: needs exactly",
        ),
        (
            "  random: {count: 1, input_tokens: {uniform: [5]}}\n",
            "s.yaml:5: prompts.random.input_tokens.uniform: must be two",
        ),
        (
            "  random: {count: 1, input_tokens: {uniform: [5, 2]}}\n",
            "s.yaml:5: prompts.random.input_tokens.uniform: must be",
        ),
        (
            "  random: {count: 1, input_tokens: {normal: {mean: 3}}}\n",
            "s.yaml:5: prompts.random.input_tokens.normal: lacks st",
        ),
        (
            "  random: {count: 1, input_tokens: {fixed: 5, min: 9, max: 3}}\n",
            "s.yaml:5: prompts.random.input_tokens.min: is more than max",
        ),
        (
            "  random: {count: 1, input_tokens: 5}\n  chat_template: on\n",
            "s.yaml:5: prompts.random: are token ids, and chat",
        ),
        (
            "  shared_prefix: {groups: 2000, prompts_per_group: 2000, system_tokens: 1, question_tokens: 1}\n",
            "s.yaml:5: prompts.shared_prefix: comes to more than 1000000 prompts",
        ),
    ],
)
def test_what_contradicts_itself_has_its_line(text: str, says: str) -> None:
    found = wrong(text)
    assert any(line.startswith(says) for line in found), found


def test_each_format_has_a_reader_and_stands_in_the_schema() -> None:
    assert set(shapes.SHAPES) == {*SHAPES, shapes.OWN}
    prompts = json_schema()["properties"]["prompts"]["anyOf"][-1]["properties"]
    told = [name for one in prompts["format"]["anyOf"] for name in one.get("enum", ())]
    assert sorted(told) == sorted((*CONTAINERS, *SHAPES))
    assert {"random", "shared_prefix", "columns", "sample", "filter", "template", "split"} <= set(prompts)


def test_the_schema_holds_all_it_refers_to() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    named = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named <= set(schema["$defs"])


@pytest.mark.parametrize(
    ("prompts", "right"),
    [
        ("{file: a.json, format: sharegpt, sample: {count: 3}}", True),
        ("{file: a.csv, columns: {prompt: q}, delimiter: ';', filter: {max_chars: 9}}", True),
        ("{random: {count: 3, input_tokens: {uniform: [1, 9], max: 8}}}", True),
        ("{shared_prefix: {groups: 1, prompts_per_group: 1, system_tokens: 9, question_tokens: {file: l.txt}}}", True),
        ("{file: a, format: xml}", False),
        ("{file: a, sample: {seed: 1}}", False),
        ("{file: a, filter: {max_prompt_tokens: 0}}", False),
        ("{random: {count: 3}}", False),
        ("{random: {count: 3, input_tokens: {normal: {mean: 3}}}}", False),
        ("{random: {count: 3, input_tokens: 0}}", False),
    ],
)
def test_the_editors_schema_and_the_check_agree(prompts: str, right: bool) -> None:
    text = f"name: a\nmodel: demo\nmethods: [hf_sdpa]\nprompts: {prompts}\n"
    assert fits_schema(text) is right
    if right:
        parse(text, "s.yaml")
    else:
        with pytest.raises(InputError):
            parse(text, "s.yaml")
