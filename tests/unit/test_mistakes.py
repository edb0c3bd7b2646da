"""What careless users write, kind by kind: each mistake is told once, where it stands, with what to write instead."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator.config import Limits, Measurement
from orchestrator.definition.fields import SAMPLING, SETTINGS, TYPES
from orchestrator.definition.hints import fits, hint, is_list
from tests.unit.test_config import BASE, parse, problems, the_problem

SECTIONS = ("sampling", "settings", "matrix", "zip", "measurement", "limits", "policies", "environments")
KINDS: dict[str, Any] = {
    **{f"settings.{name}": TYPES[name] for name in SETTINGS},
    **{f"sampling.{name}": TYPES[name] for name in SAMPLING},
    **{f"limits.{name}": kind for name, kind in get_type_hints(Limits, include_extras=True).items()},
    **{f"measurement.{name}": kind for name, kind in get_type_hints(Measurement, include_extras=True).items()},
}


def told(key: str, value: str) -> str:
    """What is said of one value, message and hint."""
    section, name = key.split(".")
    found = the_problem(f"{section}:\n  {name}: {value}\n")
    assert (found.where, found.key) == ("s.yaml:6", key)
    return f"{found.message} ({found.suggestion})"


# --- values ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("measurement.stop_early", "1", "more than 0 and less than 1, or null, not 1 (for 1 % write 0.01)"),
        ("measurement.stop_early", "0", "more than 0 and less than 1, or null, not 0 (write null to leave it open)"),
        ("measurement.confidence", "95", "more than 0 and less than 1, not 95 (for 95 % write 0.95)"),
        ("measurement.confidence", "-0.5", "more than 0 and less than 1, not -0.5 ()"),
        ("sampling.top_p", "95", "more than 0 and at most 1, not 95 (for 95 % write 0.95)"),
        ("sampling.top_p", "1.5", "more than 0 and at most 1, not 1.5 ()"),
        ("settings.gpu_memory_utilization", "90", "more than 0 and at most 1, or null, not 90 (for 90 % write 0.9)"),
        ("settings.max_model_len", "-1", "1 or more, or null, not -1 (write null to leave it open)"),
        ("sampling.logprobs", "50", "0 or more and at most 20, not 50 ()"),
        ("sampling.seed", "-1", "0 or more and at most 2^63-1, not -1 ()"),
    ],
)
def test_out_of_range_gives_both_bounds_and_a_percentage_as_a_share(key: str, value: str, says: str) -> None:
    assert says in told(key, value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("measurement.stop_early", "2%", "(write 0.02)"),
        ("settings.gpu_memory_utilization", "90 %", "(write 0.9)"),
        ("limits.load_s", "500ms", "(write 0.5, in seconds)"),
        ("limits.load_s", "1e-2 s", "(write 0.01, in seconds)"),
        ("limits.load_s", "5 min", "(write 300, in seconds)"),
        ("limits.load_s", "12:30", "(write 750, in seconds)"),
        ("limits.load_s", "5 parsecs", "(write 5, in seconds, without a unit)"),
        ("limits.load_s", ".inf", "(write a large number)"),
        ("measurement.slo_ttft_s", "200 milliseconds", "(write 0.2, in seconds)"),
        ("limits.strangers_mib", "1.5GiB", "(write 1536, in MiB)"),
        ("settings.kv_cache_bytes", "8GiB", "(write 8589934592, in bytes)"),
        ("settings.kv_cache_bytes", "8 GB", "(write 8000000000, in bytes)"),
        ("settings.kv_cache_bytes", "1e9", "(write 1000000000)"),
        ("settings.kv_cache_bytes", "0.1B", " ()"),
        ("settings.max_model_len", "4k", "(write 4000 or 4096)"),
        ("settings.max_model_len", "4096 tokens", "(write 4096, without a unit)"),
        ("settings.max_model_len", "none", "(write null)"),
        ("sampling.max_new_tokens", "auto", "(leave it out for the default)"),
        ("sampling.max_new_tokens", "", "(leave it out for the default)"),
        ("sampling.batch_size", "'4'", "(write 4, without quotes)"),
        ("sampling.batch_size", "4.0", "(write 4)"),
        ("sampling.batch_size", "'4,'", "(write 4)"),
        ("sampling.batch_size", "1,000", "(write 1000)"),
        ("sampling.batch_size", "４", "(write 4)"),
        ("sampling.batch_size", "1, 4", "(to run several values, move it to matrix.batch_size: [1, 4])"),
        ("sampling.temperature", "–1", "it holds U+2013, EN DASH"),
        ("sampling.temperature", "0,7", "write 0.7; to run several values, move it to matrix.temperature: [0, 7]"),
        ("sampling.ignore_eos", "yes", "(write true)"),
        ("sampling.ignore_eos", "off", "(write false)"),
        ("sampling.ignore_eos", "1", "(write true)"),
        ("sampling.ignore_eos", "'true'", "(write true, without quotes)"),
        ("settings.dtype", "bf16", "(did you mean bfloat16?)"),
        ("settings.dtype", "torch.fp32", "(did you mean float32?)"),
        ("settings.dtype", "[auto, float32]", "matrix.dtype: [auto, float32])"),
        ("settings.dtype", "int4", "must be one of auto, bfloat16, float16, float32, not the text"),
    ],
)
def test_units_quotes_and_words_get_the_value_that_is_meant(key: str, value: str, says: str) -> None:
    assert says in told(key, value)


TEXTS = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[+-]?\d{0,4}[.,]?\d{0,3}(e-?\d{1,3})? ?(%|ms|s|min|h|k|M|GiB|MB|b)?", fullmatch=True),
    st.lists(st.integers(-5, 5000).map(str), max_size=4).map(", ".join),
)
VALUES = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers()), st.just({}))


@given(st.sampled_from(sorted(KINDS)), VALUES)
def test_what_is_suggested_is_what_the_field_takes(key: str, value: Any) -> None:
    said = hint(KINDS[key], value, key)
    for one in re.findall(r"(?:^|; )(?:for .* % )?write (\[.*?\]|[^\s,;]+)", said):
        plain = YAML(typ="safe", pure=True).load(one)
        assert one == "a" or fits(tuple(plain) if isinstance(plain, list) else plain, KINDS[key])


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 5000 + ",000", "1e999", "1.5e-999", "1e999 ms", "١٢", "²", "½"])
def test_odd_numbers_cost_neither_time_nor_an_exception(text: str) -> None:
    assert all(len(hint(kind, text, key)) < 100 for key, kind in KINDS.items())
    assert the_problem(f"matrix: {{batch_size: '{text}'}}\n").key == "matrix.batch_size"


# --- lists and mappings -----------------------------------------------------------

LISTS = [name for name in SETTINGS if is_list(TYPES[name])]


def test_there_are_fields_of_lists() -> None:
    assert LISTS == ["bucket_batch_sizes", "bucket_lengths"]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("text", "value"), [("1,2", (1, 2)), ("[1, 2]", (1, 2)), ("4", (4,)), ("[4]", (4,)), ("null", None)]
)
def test_set_reads_commas_as_a_list_where_one_belongs(name: str, text: str, value: Any) -> None:
    assert parse("", f"settings.{name}={text}").cells == ({name: value},)


@pytest.mark.parametrize("name", LISTS)
def test_one_value_or_a_text_where_a_list_belongs(name: str) -> None:
    assert told(f"settings.{name}", "1, 2").endswith("(write [1, 2])")
    assert told(f"settings.{name}", "4").endswith("(write [4])")
    assert "must be a list or null, not a mapping" in told(f"settings.{name}", "{a: 1}")
    nested = the_problem("", f"matrix.{name}=1,2")
    assert (nested.key, nested.suggestion) == (f"matrix.{name}", "for example [[1, 2], [4]]")
    assert the_problem(f"settings: {{{name}: [1, x, 2]}}\n").key == f"settings.{name}[1]"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("matrix.batch_size=1 4", "write [1, 4]"),
        ("matrix.batch_size=1;4", "write [1, 4]"),
        ("bucket_batch_sizes=1,2", "write --set settings.bucket_batch_sizes=…"),
        ("sampling=seed=1", "write --set sampling.seed=1"),
        ("limits=load_s:5", "write --set limits.load_s=5"),
        ("environments=vllm: x y", "can't be"),
        ("policies=oom:give_up", "write --set policies.oom=give_up"),
        ("matrix=batch_size:1,2", "write --set matrix.batch_size=1,2"),
        ("measurement=random", "for example {order: …}"),
        ("methods.0=hf_eager", "set it whole: --set methods=…"),
        ("prompts.inline=a", "set it whole: --set 'prompts={inline: …}'"),
        ("model.hub=a/b", "set it whole: --set 'model={hub: …}'"),
        ("sampling.seed=1 sampling.top_p=1", "each value needs a --set of its own"),
        ("sampling.seed=# nothing", "leave it out for the default"),
        ("sampling.sed=", "is not in the file"),
    ],
)
def test_set_in_other_shapes(override: str, says: str) -> None:
    assert says in str(the_problem("", override))


def test_set_goes_into_a_section_whose_lines_are_all_commented_out() -> None:
    assert parse("sampling:\n  # seed: 3\n", "sampling.seed=1").cells == ({"seed": 1},)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", ["3", "text", "[a, b]", "true"])
def test_a_section_that_is_no_mapping_is_one_problem_with_an_example(section: str, value: str) -> None:
    found = the_problem(f"{section}: {value}\n")
    assert (found.where, found.key) == ("s.yaml:5", section)
    assert found.message.startswith("must be a mapping, not ")
    assert re.fullmatch(r"for example \{\w+: …\}", found.suggestion)


@pytest.mark.parametrize("section", SECTIONS)
def test_hyphens_where_a_mapping_belongs(section: str) -> None:
    assert the_problem(f"{section}:\n  - seed: 1\n  - top_p: 1\n").suggestion == "leave out the hyphens"


# --- one mistake, one problem -------------------------------------------------------

HEAD = "name: a\nmodel: demo\nprompts: p.jsonl\n"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{HEAD}methods: [hf_eager, hf_sdpq]\nmeasurement: {{reference: hf_sdpq}}\n", "methods[1]"),
        (f"{HEAD}methods: [hf_eager, hf_sdpq]\nmeasurement: {{reference: hf_sdpa}}\n", "methods[1]"),
        (f"{HEAD}methods: [{{name: n, base: hf_sdpq}}]\nmeasurement: {{reference: n}}\n", "methods[0].base"),
        (
            f"{HEAD}methods: [hf_eager, {{name: n, base: hf_sdpa, x: 1}}]\nmeasurement: {{reference: n}}\n",
            "methods[1].x",
        ),
        (f"{HEAD}methods: []\nmeasurement: {{reference: hf_sdpa}}\n", "methods"),
        (f"{HEAD}methods: {{hf_sdpa: }}\nmeasurement: {{reference: hf_sdpa}}\n", "methods"),
        (f"{HEAD}method: [hf_sdpa]\nmeasurement: {{reference: hf_sdpa}}\n", "method"),
        (f"{HEAD}methods: [hf_sdpa]\nmeasurement: {{reference: hf_sdpq}}\n", "measurement.reference"),
        (BASE.replace("name:", "nam:"), "nam"),
        (BASE.replace("model:", "Model:"), "Model"),
        (BASE.replace("model: demo", "model: {hubb: org/name}"), "model.hubb"),
        (BASE.replace("prompts: p.jsonl", "prompts: {files: p.jsonl}"), "prompts.files"),
        (BASE.replace("prompts: p.jsonl", "prompts: [!a b]"), "prompts[0]"),
        (BASE.replace("prompts: p.jsonl", "prompts: !!set [a]"), "prompts"),
        (BASE.replace("prompts: p.jsonl", 'prompts: ["\\ud800"]'), "prompts[0]"),
        (f"{BASE}1: 2\n", ""),
        (f"{BASE}[a]: 2\n", ""),
        (f"{BASE}sampling: {{1: 2}}\n", "sampling"),
        (f"{BASE}sampling: {{seed: !x 1}}\n", "sampling.seed"),
        (f"{BASE}sampling: {{seed: {'9' * 5000}}}\n", "sampling.seed"),
        (f"{BASE}environments: {{vllm: no such}}\n", "environments.vllm"),
        (f"{BASE}sampling:\u00a0{{seed: 1}}\n", "sampling:\u00a0{seed"),
    ],
)
def test_what_follows_from_a_mistake_is_not_told_beside_it(text: str, key: str) -> None:
    assert the_problem(base=text).key == key


def test_what_is_in_a_section_of_a_wrong_name_is_checked_all_the_same() -> None:
    found = problems("samplng: {seed: x}\nlimit: {load_s: 0}\nzp: {top_p: [1, 2]}\n")
    assert [p.key for p in found] == [
        *("samplng", "sampling.seed", "limit", "limits.load_s", "zp", "zip.top_p[1]"),
    ]


def test_a_reference_that_nothing_in_the_list_can_mean_is_wrong_beside_a_wrong_method() -> None:
    text = f"{HEAD}methods: [hf_eager, hf_sdpq]\nmeasurement: {{reference: nothing_like_it}}\n"
    assert [p.key for p in problems(base=text)] == ["methods[1]", "measurement.reference"]


def test_each_wrong_variable_of_a_method_has_its_own_line_and_name() -> None:
    own = (
        "methods:\n  - name: n\n    base: hf_sdpa\n    env_vars:\n      A: 1\n      B: x\n      C:\n      TMPDIR: /x\n"
    )
    found = problems(base=HEAD + own)
    assert [(p.where, p.key) for p in found] == [
        ("s.yaml:8", "methods[0].env_vars.A"),
        ("s.yaml:10", "methods[0].env_vars.C"),
    ]
    (last,) = problems(base=HEAD + own.replace("A: 1", "A: '1'").replace("C:\n", "C: ''\n"))
    assert (last.where, last.key) == ("s.yaml:11", "methods[0].env_vars.TMPDIR")


# --- names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sаmpling: {seed: 1}", "did you mean sampling?; it holds U+0430, CYRILLIC SMALL LETTER A"),
        ("sam\u200bpling: {seed: 1}", "it holds U+200B, ZERO WIDTH SPACE"),
        ("sampling: {ｓｅｅｄ: 1}", "did you mean seed?"),
        ("sampling: {max-new-tokens: 1}", "did you mean max_new_tokens?"),
        ("matrix: {sampling: {seed: [1, 2]}}", "leave it out: fields stand directly under matrix"),
        ("matrix: {method: [hf_sdpa]}", "every method of the list `methods` runs in every cell"),
        ("matrix: {batch_size: 1..4}", "for example [1, 4]"),
        ("matrix: {dtype: x}", "for example [auto, bfloat16]"),
        ("matrix: {ignore_eos: both}", "for example [false, true]"),
    ],
)
def test_names_that_look_right_and_values_in_the_wrong_place(text: str, says: str) -> None:
    assert says in str(the_problem(f"{text}\n"))


@pytest.mark.parametrize(
    ("line", "wrong", "says"),
    [
        ("name: a", "name: аb", "it holds U+0430, CYRILLIC SMALL LETTER A"),
        ("name: a", "name: “a”", "it holds U+201C, LEFT DOUBLE QUOTATION MARK"),
        ("model: demo", "model: demoo", "did you mean demo?"),
        ("model: demo", "model: $HOME/m", "variables are not filled in"),
        ("model: demo", "model: https://huggingface.co/org/name/tree/main", "write org/name"),
        ("model: demo", "model:", "can't be null (demo, scripted, ./folder, org/name"),
        ("prompts: p.jsonl", "prompts:", "can't be null (a file, or a list of prompts"),
        (
            "prompts: p.jsonl",
            "prompts: [{promt: a}]",
            "has neither prompt nor messages; promt: no such key (did you mean prompt?)",
        ),
        (
            "model: demo",
            "model: demo\nreference: hf_sdpa",
            "reference: a sweep has no such key (put it under measurement)",
        ),
        ("prompts: p.jsonl", "prompts: [{Question: why?}]", "if it is text with a colon, put it in quotes"),
        ("prompts: p.jsonl", "prompts: {file: p.jsonl, chat_template: yes}", "did you mean on?"),
        ("prompts: p.jsonl\n", "", "for example prompts: prompts.jsonl"),
        ("methods: [hf_sdpa]", "methods: {name: n, base: hf_sdpa}", "begin each with a hyphen"),
        ("methods: [hf_sdpa]", "methods: hf_sdpa, hf_eager", "write a list: [hf_sdpa, hf_eager]"),
        ("methods: [hf_sdpa]", "methods: [{name: n, engine: transformers}]", "did you mean hf?"),
    ],
)
def test_the_four_that_are_needed(line: str, wrong: str, says: str) -> None:
    assert says in str(the_problem(base=BASE.replace(line, wrong)))


# --- YAML -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("a:\n\t- b\n", 2, "write spaces"),
        ("a:\tb\n", 1, "write spaces"),
        ("a: 1\nb:2\nc: 3\n", 2, "a space behind the colon"),
        ("a:b\nc:d\ne: f\n", 3, "a colon above lacks its space"),
        ("a: b\n c: d\n", 2, "indented too far"),
        ("a:\n  b: 1\n c: 2\n", 3, "as those beside it"),
        ("a: [1, 2\nb: 3\n", 2, "begins with [ in line 1"),
        ("a: {b: 1\nc: 3\n", 2, "begins with { in line 1"),
        ("a: [1, 2]]\n", 1, "one bracket too many"),
        ("a: 'b\nc: d\n", 1, ""),
        ('a: "C:\\models"\n', 1, "single quotes"),
        ("a: @b\n", 1, "in quotes"),
        ("a: `b`\n", 1, "in quotes"),
        ("a: *b\n", 1, "in quotes"),
        ("a: 'it's'\n", 1, "in quotes"),
        ("a: b: c\n", 1, "needs quotes"),
        ("a: - b\n", 1, "on the next line"),
        ("a: 1\n---\nb: 2\n", 2, "remove the line ---"),
        ("a\0:\0 1", 1, "save it as UTF-8"),
    ],
)
def test_what_is_no_yaml_says_what_to_change_and_where(text: str, line: int, hint: str) -> None:
    found = the_problem(base=text)
    assert found.where == f"s.yaml:{line}"
    assert found.message.startswith("not valid YAML")
    assert hint in found.suggestion
