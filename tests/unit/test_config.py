"""The sweep file: what it means, and that every mistake in it is found, placed and explained."""

from __future__ import annotations

import pytest

from orchestrator import config
from orchestrator.config import Limits, ModelRef, PromptSource, SweepConfig
from orchestrator.definition.fields import SAMPLING, SETTABLE, SETTINGS
from orchestrator.errors import InputError, Problem
from protocol.specs import call_fields, load_fields

BASE = "name: a\nmodel: demo\nprompts: p.jsonl\nmethods: [hf_sdpa]\n"


def parse(extra: str = "", *overrides: str, base: str = BASE) -> SweepConfig:
    return config.parse(base + extra, "s.yaml", overrides)


def problems(extra: str = "", *overrides: str, base: str = BASE) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        parse(extra, *overrides, base=base)
    return list(caught.value.problems)


def the_problem(extra: str = "", *overrides: str, base: str = BASE) -> Problem:
    found = problems(extra, *overrides, base=base)
    assert len(found) == 1, found
    return found[0]


def model(text: str) -> ModelRef:
    return parse(base=BASE.replace("model: demo", f"model: {text}")).model


def prompts(text: str) -> PromptSource:
    return parse(base=BASE.replace("prompts: p.jsonl", f"prompts: {text}")).prompts


# --- what it means ------------------------------------------------------------


def test_least_file() -> None:
    got = parse()
    assert (got.name, got.model, got.prompts) == ("a", ModelRef("demo", "demo"), PromptSource("p.jsonl", None))
    assert [m.name for m in got.methods] == ["hf_sdpa"]
    assert (got.cells, got.repeats, got.warmup, got.limits) == (({},), 1, 1, Limits())
    assert (got.environments, got.source) == ({}, "s.yaml")


def test_every_field_is_settable_or_decided_by_the_plan() -> None:
    decided = {"method", "model_path", "device", "trust_remote_code", "stop_token_ids", "images_per_prompt"}
    assert set(SETTABLE) | decided == set(load_fields()) | set(call_fields())
    assert set(SETTINGS) <= set(load_fields())
    assert set(SAMPLING) <= set(call_fields())


def test_matrix_is_a_grid_and_zip_advances_together() -> None:
    got = parse(
        "settings: {dtype: float32}\nmatrix: {temperature: [0, 1], seed: [1, 2]}\n"
        "zip: {max_new_tokens: [8, 16], batch_size: [4, 2]}\n"
    )
    assert len(got.cells) == 8
    assert got.cells[0] == {
        "dtype": "float32",
        "temperature": 0.0,
        "seed": 1,
        "max_new_tokens": 8,
        "batch_size": 4,
    }
    assert [(c["temperature"], c["seed"], c["max_new_tokens"]) for c in got.cells[:5]] == [
        (0.0, 1, 8),
        (0.0, 1, 16),
        (0.0, 2, 8),
        (0.0, 2, 16),
        (1.0, 1, 8),
    ]
    assert {(c["max_new_tokens"], c["batch_size"]) for c in got.cells} == {(8, 4), (16, 2)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo", ModelRef("demo", "demo")),
        ("./folder", ModelRef("path", "./folder")),
        ("../a/b", ModelRef("path", "../a/b")),
        ("/abs", ModelRef("path", "/abs")),
        ("~/m", ModelRef("path", "~/m")),
        ("org/na.me-1", ModelRef("hub", "org/na.me-1")),
        ("{path: folder}", ModelRef("path", "folder")),
        ("{hub: org/name, revision: main}", ModelRef("hub", "org/name", "main")),
        ("{hub: o/n, trust_remote_code: true}", ModelRef("hub", "o/n", None, True)),
    ],
)
def test_models(text: str, expected: ModelRef) -> None:
    assert model(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "folder",
        "a/b/c",
        "org/",
        "7",
        "[a]",
        "''",
        "{}",
        "{hub: a/b, path: c}",
        "{path: c, revision: x}",
        "{hub: abc}",
        "{path: ''}",
        "{path: 3}",
        "{hub: a/b, trust_remote_code: 1}",
        "{hub: a/b, branch: x}",
        "https://host/a",
        '"./a\\0b"',
    ],
)
def test_wrong_models(text: str) -> None:
    found = problems(base=BASE.replace("model: demo", f"model: {text}"))
    assert all(p.where == "s.yaml:2" and p.key.startswith("model") for p in found)


def test_prompt_sources() -> None:
    assert prompts("{file: x.txt, chat_template: on}") == PromptSource("x.txt", None, "on")
    assert prompts("[one, {prompt: two, id: b, topic: x}]").inline == (
        "one",
        {"prompt": "two", "id": "b", "topic": "x"},
    )
    assert prompts("{inline: [{messages: [{role: user, content: hi}]}], chat_template: off}").chat_template == "off"


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "{file: a, inline: [b]}", "[3]", "[{id: a}]", "[{prompt: a, messages: []}]", "{fil: a}", "''", "7"],
)
def test_wrong_prompt_sources(text: str) -> None:
    found = problems(base=BASE.replace("prompts: p.jsonl", f"prompts: {text}"))
    assert all(p.key.startswith("prompts") for p in found)


def test_prompts_of_json_escapes() -> None:
    """JSON writes an emoji as two escapes; it is one character all the same."""
    assert prompts('["\\ud83d\\ude00"]').inline == ("😀",)


def test_anchors_and_merge_keys() -> None:
    got = parse(
        "x: &x {dtype: float32}\n".replace("x:", "settings:", 1) + "sampling:\n  <<: {seed: 3, top_p: 0.5}\n  seed: 4\n"
    )
    assert got.cells == ({"dtype": "float32", "seed": 4, "top_p": 0.5},)


def test_empty_sections_are_absent() -> None:
    assert parse("matrix:\n  # batch_size: [1, 4]\nsettings:\nlimits:\nenvironments:\nzip:\nsampling:\n").cells == ({},)


def test_limits_and_environments() -> None:
    got = parse("limits: {load_s: 5}\nenvironments: {vllm: my_env}\n")
    assert (got.limits.load_s, got.limits.import_s) == (5.0, Limits().import_s)
    assert got.environments == {"vllm": "my_env"}


def test_top_p_without_sampling_is_fine() -> None:
    assert parse("sampling: {temperature: 0, top_p: 0.5}\n").cells[0]["top_p"] == 0.5


def test_negative_zero_is_zero() -> None:
    assert str(parse("sampling: {temperature: -0.0}\n").cells[0]["temperature"]) == "0.0"


# --- what is wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("true", "must be a whole number, 1 or more, not true"),
        ("1.0", "must be a whole number, 1 or more, not 1.0"),
        ("0", "must be a whole number, 1 or more, not 0"),
        ("-4", "must be a whole number, 1 or more, not -4"),
        ("'4'", 'must be a whole number, 1 or more, not the text "4"'),
        ("null", "must be a whole number, 1 or more, not null"),
        ("[1, 2]", "must be a whole number, 1 or more, not a list"),
        ("{a: 1}", "must be a whole number, 1 or more, not a mapping"),
        (str(2**63), "9223372036854775808 is more than 2^63-1"),
        ("9" * 5000, "is not a readable int"),
        ("!!binary aGk=", "the YAML tag tag:yaml.org,2002:binary is not used here"),
    ],
)
def test_wrong_batch_sizes(value: str, says: str) -> None:
    found = problems(f"sampling:\n  seed: 1\n  batch_size: {value}\n")
    assert (found[0].where, found[0].key) == ("s.yaml:7", "sampling.batch_size")
    assert says in found[0].message


@pytest.mark.parametrize(
    "text",
    [
        "sampling: {temperature: .nan}",
        "sampling: {temperature: .inf}",
        "sampling: {temperature: -1}",
        "sampling: {top_p: 0}",
        "sampling: {top_p: 1.01}",
        "sampling: {seed: -1}",
        f"sampling: {{seed: {2**63}}}",
        "sampling: {ignore_eos: 1}",
        "sampling: {ignore_eos: yes}",
        "settings: {gpu_memory_utilization: 2}",
        "settings: {max_model_len: 1e3}",
        "limits: {load_s: 0}",
        "limits: {load_s: .inf}",
        "policies: {hang: {times: 1.5}}",
        "repeats: 0",
        "repeats: true",
        "warmup: -1",
        "environments: {vllm: 3}",
        "environments: {vllm: a/b}",
        "environments: {scripted: x}",
        "settings: 3",
        "matrix: [batch_size]",
        "matrix: {batch_size: []}",
        "matrix: {batch_size: 4}",
        "matrix: {batch_size: [1, 1]}",
        "matrix: {temperature: [1, 1.0]}",
        "matrix: {batch_size: [1, true]}",
        "matrix: {method: [hf_sdpa]}",
        "matrix: {seed: [1, 2], temperature: [0, .nan]}",
        "zip: {seed: [1, 2], batch_size: [1]}",
        "zip: {seed: [1, 1], batch_size: [2, 2]}",
        "zip: {seed: []}",
    ],
)
def test_one_wrong_value_is_one_problem(text: str) -> None:
    found = the_problem(text + "\n")
    assert found.where == "s.yaml:5"
    assert found.key.split(".")[0] == text.split(":")[0]


def test_all_problems_at_once_in_the_order_of_the_lines() -> None:
    text = (
        "name: a b\nmodel: folder\nmethods: [hf_sdpq, hf_sdpa, hf_sdpa]\nmatrix:\n  batch_size:\n    - 1\n    - 0\n"
        "settings:\n  dtype: float31\n  temperature: 1\nsmapling: {}\n"
    )
    found = problems(base=text)
    assert [(p.where, p.key) for p in found] == [
        ("s.yaml", "prompts"),
        ("s.yaml:1", "name"),
        ("s.yaml:2", "model"),
        ("s.yaml:3", "methods[0]"),
        ("s.yaml:3", "methods[2]"),
        ("s.yaml:7", "matrix.batch_size[1]"),
        ("s.yaml:9", "settings.dtype"),
        ("s.yaml:10", "settings.temperature"),
        ("s.yaml:11", "smapling"),
    ]
    hints = {p.key: p.suggestion for p in found}
    assert hints["methods[0]"] == "did you mean hf_sdpa?"
    assert hints["settings.dtype"] == "did you mean float32?"
    assert hints["settings.temperature"] == "put it under sampling"
    assert hints["smapling"] == "did you mean sampling?"
    assert hints["model"].startswith("for the folder write ./folder")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sampling: {dtype: auto}", "put it under settings"),
        ("batch_size: 4", "put it under sampling"),
        ("dtype: auto", "put it under settings"),
        ("sampling: {max_tokens: 4}", "did you mean max_new_tokens?"),
        ("sampling: {batch_size: [1, 2]}", "to run several values, move it to matrix.batch_size: [1, 2]"),
        ("settings: {trust_remote_code: true}", "write model: {hub: org/name, trust_remote_code: true}"),
        ("matrix: {Batch_Size: [1]}", "did you mean batch_size?"),
        ("limits: {loads_s: 1}", "did you mean load_s?"),
        ("matrix: {repeats: [1]}", "move it to the left margin"),
    ],
)
def test_hints(text: str, hint: str) -> None:
    assert the_problem(text + "\n").suggestion == hint


def test_given_twice() -> None:
    found = problems(
        "sampling: {seed: 1, top_p: 1}\nmatrix: {seed: [1, 2], dtype: [auto, float32]}\nzip: {dtype: [auto, float16]}\n"
    )
    assert [(p.key, p.message) for p in found] == [
        ("matrix.seed", "is given under sampling too"),
        ("zip.dtype", "is given under matrix too"),
    ]


def test_room_for_a_prompt() -> None:
    found = the_problem("settings: {max_model_len: 64}\nmatrix: {max_new_tokens: [32, 64, 128]}\n".replace(", 128", ""))
    assert (found.key, found.where) == ("settings.max_model_len", "s.yaml:5")
    assert "max_new_tokens 64 leaves no room" in found.message
    assert problems("settings: {max_model_len: 32}\n")[0].message.startswith("max_new_tokens 32")


def test_a_grid_too_large_is_refused_before_it_is_made() -> None:
    axes = "".join(
        f"  {name}: [{', '.join(map(str, range(1, 100)))}]\n" for name in ("seed", "batch_size", "max_new_tokens")
    )
    assert "makes 970299 points" in the_problem(f"matrix:\n{axes}").message


@pytest.mark.parametrize("name", ["..", ".", "-a", "a/b", "a b", "é", "", "a" * 65, "a\\nb"])
def test_names_that_are_no_folder(name: str) -> None:
    assert the_problem(base=BASE.replace("name: a", f'name: "{name}"')).key == "name"


def test_a_name_that_yaml_takes_for_a_number() -> None:
    assert the_problem(base=BASE.replace("name: a", "name: 12")).suggestion == "write it in quotes"
    assert parse(base=BASE.replace("name: a", "name: 2026-01-01")).name == "2026-01-01"
