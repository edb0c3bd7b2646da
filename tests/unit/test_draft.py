"""What is readable of a sweep file with mistakes, where its values stand, and names that mean another thing."""

from __future__ import annotations

import pytest

from orchestrator import config
from orchestrator.config import ModelRef, PromptSource
from tests.unit.test_config import BASE, parse, problems, the_problem


def test_a_draft_keeps_what_is_right() -> None:
    text = "name: a b\nmodel: ./m\nprompts: [one, 3, '']\nmethods: [hf_spda, hf_flash]\nenvironments: {hf: mine}\n"
    got = config.draft(text + "matrix: {batch_size: [0, 4]}\n", "s.yaml")
    assert got.config is None
    assert [p.key for p in got.problems] == ["name", "prompts[1]", "methods[0]", "matrix.batch_size[0]"]
    assert (got.model, [m.name for m in got.methods]) == (ModelRef("path", "./m"), ["hf_flash"])
    assert got.prompts == PromptSource(None, ("one", ""))
    assert got.prompts.places == (("s.yaml:3", "prompts[0]"), ("s.yaml:3", "prompts[2]"))
    assert (got.cells, got.environments) == (({"batch_size": 4},), {"hf": "mine"})


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "model: [1]\nprompts: 3\nmethods: {}\n", "prompts: {}\n"])
def test_a_draft_of_nothing_readable(text: str) -> None:
    got = config.draft(text, "s.yaml")
    assert got.problems
    assert (got.config, got.model, got.prompts, got.methods) == (None, None, None, ())


def test_a_draft_of_a_right_file_is_the_sweep() -> None:
    got = config.draft(BASE, "s.yaml")
    assert got.problems == ()
    assert got.config == parse()


def test_values_know_where_they_stand() -> None:
    got = parse("settings:\n  dtype: float32\nmatrix:\n  seed:\n    - 1\n    - 2\n", "sampling.top_p=0.5").places
    assert got.where("matrix.seed[1]") == "s.yaml:10"
    assert got.where("methods[0].attention") == "s.yaml:4", "the innermost that is there"
    assert got.where("nothing") == "s.yaml"
    assert (got.of_field("dtype", "m").where, got.of_field("dtype", "m").key) == ("s.yaml:6", "settings.dtype")
    assert got.of_field("top_p", "m").where == "--set sampling.top_p=0.5"
    assert (got.of_method("hf_sdpa", "m").where, got.of_method("hf_sdpa", "m").key) == ("s.yaml:4", "methods[0]")


@pytest.mark.parametrize("real", ["demo", "./m", "org/name", "{path: m}"])
def test_the_scripted_engine_runs_no_real_model_alone_or_beside_others(real: str) -> None:
    base = BASE.replace("hf_sdpa", "scripted").replace("model: demo", f"model: {real}")
    found = the_problem(base=base)
    assert (found.where, found.key.split(".")[0]) == ("s.yaml:2", "model")
    assert "write model: scripted" in found.suggestion
    beside = the_problem(base=base.replace("[scripted]", "[hf_sdpa, {name: mine, base: scripted}]"))
    assert (beside.where, beside.key) == ("s.yaml:4", "methods[1]")
    assert beside.message.startswith("mine: the scripted engine makes its tokens up")
    unread = problems(base=base.replace("[scripted]", "[scripted, hf_spda]"))
    assert sorted(p.key for p in unread) == ["methods[0]", "methods[1]"]
    assert parse(base=base.replace(f"model: {real}", "model: scripted"))


@pytest.mark.parametrize("name", ["top_k", "min_p", "repetition_penalty", "stop", "do_sample"])
@pytest.mark.parametrize("line", ["sampling: {NAME: 1}", "settings: {NAME: 1}", "matrix: {NAME: [1]}", "NAME: 1"])
def test_what_engines_mean_differently_gets_no_other_name_for_it(name: str, line: str) -> None:
    found = the_problem(line.replace("NAME", name) + "\n")
    assert "is not supported" in found.message
    assert "did you mean" not in found.suggestion


@pytest.mark.parametrize(("value", "says"), [(2**64 - 1, "more than 2^63-1"), (-(2**70), "less than -2^63")])
def test_integers_too_large_are_shown_with_their_limit(value: int, says: str) -> None:
    assert the_problem(f"sampling: {{seed: {value}}}\n").message.startswith(f"{value} is {says}")
