"""Sweep files as YAML: syntax, odd text, aliases, duplicate keys, and `--set`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import config
from orchestrator.config import SweepConfig
from orchestrator.definition.fields import SETTABLE
from orchestrator.definition.sections import SECTIONS
from orchestrator.errors import InputError, Problem

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


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("a: [1, 2\nb: 3\n", "s.yaml:2", "not valid YAML"),
        ("a:\n\t- 1\n", "s.yaml:2", "not valid YAML"),
        ("a: *nope\n", "s.yaml:1", "undefined alias"),
        ("--- a\n--- b\n", "s.yaml:2", "but found another document"),
        ("name: a\nb: \x07\n", "s.yaml:2", "U+0007"),
        ("name: \ud800\n", "s.yaml:1", "U+D800"),
        ("a: &x [*x]\n", "s.yaml:1", "an alias of itself"),
        ("[" * 5000, "s.yaml", "nested too deeply"),
        ("", "s.yaml", "is empty"),
        ("# nothing\n", "s.yaml", "is empty"),
        ("- a\n", "s.yaml:1", "must be a mapping"),
        ("just text", "s.yaml:1", "must be a mapping"),
    ],
)
def test_not_a_sweep_at_all(text: str, where: str, says: str) -> None:
    found = the_problem(base=text)
    assert (found.where, says in str(found)) == (where, True), found


def test_tabs_get_a_hint() -> None:
    assert "spaces" in the_problem(base="a:\n\t- 1\n").suggestion


def test_aliases_that_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "once its aliases are filled in" in the_problem(base="\n".join(lines)).message


def test_duplicate_keys() -> None:
    found = problems("sampling:\n  seed: 1\n  seed: 2\nname: b\n")
    assert [(p.where, p.key, p.message) for p in found] == [
        ("s.yaml:7", "sampling.seed", "is given twice, first at s.yaml:6"),
        ("s.yaml:8", "name", "is given twice, first at s.yaml:1"),
    ]


def test_keys_that_are_not_text() -> None:
    assert "a key must be text" in problems("settings: {1: 2}\n")[0].message
    assert "a key must be text" in problems("settings: {[a]: 2}\n")[0].message


def test_half_a_character() -> None:
    found = the_problem(base=BASE.replace("p.jsonl", '["fine", "a\\ud800b"]'))
    assert (found.key, "lone surrogate) at offset 1" in found.message) == ("prompts[1]", True)
    str(found).encode()


def explains(error: InputError) -> None:
    """Says something, in text that any terminal can print."""
    assert error.problems
    str(error).encode()


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        config.parse(text, "s.yaml")
    except InputError as exc:
        explains(exc)


_leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("demo"))
_tree = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SECTIONS, *SETTABLE, "base", "engine_args", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS, _tree)))
def test_any_tree_is_parsed_or_refused(tree: dict[str, Any]) -> None:
    """JSON is YAML: whatever stands under a key, the answer is a sweep or an InputError."""
    try:
        got = config.parse(json.dumps(tree), "s.yaml")
    except InputError as exc:
        explains(exc)
    else:
        assert got.methods


# --- --set --------------------------------------------------------------------


def test_set_replaces_and_adds() -> None:
    got = parse(
        "sampling: {seed: 1}\n",
        "sampling.seed=2",
        "sampling.temperature=0.5",
        "matrix.batch_size=1,2",
        "methods=hf_eager,vllm_default",
        "limits.load_s=9",
        "model={hub: a/b, revision: c}",
        "name=other",
        "prompts=q=r.jsonl",
    )
    assert got.cells == tuple({"seed": 2, "temperature": 0.5, "batch_size": n} for n in (1, 2))
    assert [m.name for m in got.methods] == ["hf_eager", "vllm_default"]
    assert (got.limits.load_s, got.model.revision, got.name, got.prompts.file) == (9.0, "c", "other", "q=r.jsonl")


def test_set_of_lists_with_and_without_brackets() -> None:
    assert parse("", "matrix.batch_size=4").cells == ({"batch_size": 4},)
    assert len(parse("", "matrix.batch_size=[4, 8]").cells) == 2
    assert len(parse("", "matrix={batch_size: [4, 8]}").cells) == 2
    assert [m.name for m in parse("", "methods=hf_eager").methods] == ["hf_eager"]


def test_set_to_nothing_removes() -> None:
    got = parse("sampling: {seed: 1}\n", "sampling.seed=", "matrix.seed=5,6")
    assert got.cells == ({"seed": 5}, {"seed": 6})


@pytest.mark.parametrize(
    ("override", "key", "hint"),
    [
        ("sampling.batch_size=1,2", "sampling.batch_size", "matrix.batch_size"),
        ("sampling.batch_size=[1, 2]", "sampling.batch_size", "matrix.batch_size"),
        ("samplng.seed=1", "samplng", "did you mean sampling?"),
        ("sampling.sed=1", "sampling.sed", "did you mean seed?"),
        ("sampling.seed.x=1", "sampling.seed", ""),
        ("model.hub=a/b", "model", ""),
        ("sampling.top_p=", "sampling.top_p", "valid: seed"),
        ("nonsense", "", "write --set path=value"),
        ("a..b=1", "", "write --set path=value"),
        ("sampling.seed=[1", "", ""),
        ("sampling.seed=\ud800", "", ""),
        ("\ud800=1", "\\ud800", "valid:"),
    ],
)
def test_wrong_set(override: str, key: str, hint: str) -> None:
    found = problems("sampling: {seed: 1}\n", override)
    assert found[-1].where.startswith("--set ")
    assert found[-1].key == key
    assert hint in found[-1].suggestion
    str(InputError(found)).encode()
