"""Requests of lm-evaluation-harness as sweeps, and what it gets of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError, Problem
from orchestrator.harness import arguments, calls, command
from orchestrator.harness.sweeps import Sweeps, base_of
from orchestrator.record.output import Record, RecordLogprobs

IDS = st.lists(st.integers(0, 1000), min_size=1, max_size=30)
GREEDY = {"do_sample": False, "temperature": 0.0, "max_gen_toks": 5}


def record(chosen: list[float | None], top: list[list[int]]) -> Record:
    return Record(
        point="p",
        batch="b",
        method="m",
        prompt_id="0",
        prompt_digest="",
        prompt_tokens=1,
        text="",
        token_ids=[],
        generated_tokens=0,
        finish_reason="scored",
        ttft_s=None,
        latency_s=None,
        batch_size=1,
        repeat=0,
        incarnation="i",
        logprobs=RecordLogprobs(chosen=chosen, top_ids=top),
    )


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5), st.integers(31, 70))
def test_what_is_scored_fits_the_model_and_keeps_its_end(pairs: list[tuple[list[int], list[int]]], most: int) -> None:
    call = calls.scoring(pairs, most)
    for line, (context, continuation) in zip(call.prompts, pairs, strict=True):
        assert line["continuation"] == continuation
        assert len(line["prompt"]) == min(len(context), most - len(continuation))
        assert context[-len(line["prompt"]) :] == line["prompt"]
    assert call.cut == sum(len(context) + len(scored) > most for context, scored in pairs)


@pytest.mark.parametrize(("continuation", "most"), [([], 10), ([1] * 10, 10), ([1] * 11, 10)])
def test_a_continuation_without_room_is_refused(continuation: list[int], most: int) -> None:
    with pytest.raises(calls.Unasked, match="request 0"):
        calls.scoring([([1], continuation)], most)


def test_a_generation_is_asked_in_our_words() -> None:
    asked = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "max_gen_toks": 5, "until": ["x"]}
    call = calls.generating([[1, 2, 3], [4]], asked, 7)
    assert call.sampling == {"max_new_tokens": 5, "temperature": 0.5, "top_p": 0.9}
    assert [line["prompt"] for line in call.prompts] == [[2, 3], [4]]
    assert call.cut == 1


@pytest.mark.parametrize(
    ("more", "told"), [({"repetition_penalty": 1.2}, "repetition_penalty"), ({"max_gen_toks": 7}, "no room")]
)
def test_what_no_method_can_be_asked_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(calls.Unasked, match=told):
        calls.generating([[1]], GREEDY | more, 7)


def test_a_context_of_no_token_is_refused_by_its_number() -> None:
    with pytest.raises(calls.Unasked, match="request 1: its context comes to no token"):
        calls.generating([[1], []], GREEDY, 7)


SAMPLING = {"do_sample": True, "temperature": 0.7}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (GREEDY, [(0, [0, 1, 2, 3])]),
        ({"do_sample": False, "temperature": 0.7}, [(0, [0, 1, 2, 3])]),
        ({}, [(0, [0, 1, 2, 3])]),
        (SAMPLING, [(0, [0, 2]), (1, [1]), (2, [3])]),
        ({"temperature": 0.7}, [(0, [0, 2]), (1, [1]), (2, [3])]),
    ],
)
def test_what_samples_and_is_asked_again_is_a_sweep_of_its_own(asked: dict[str, Any], found: Any) -> None:
    assert calls.alike([("a", asked), ("a", asked), ("b", asked), ("a", asked)]) == found


def test_requests_that_ask_otherwise_are_another_sweep() -> None:
    assert calls.alike([("a", GREEDY), ("a", GREEDY | {"until": ["x"]}), ("b", GREEDY)]) == [(0, [0, 2]), (0, [1])]


def test_what_is_asked_again_has_another_seed_and_so_another_answer() -> None:
    asked = SAMPLING | {"max_gen_toks": 5}
    some = [calls.generating([[1]], asked | more, 9, again) for more in ({}, {"seed": 7}) for again in range(3)]
    assert [call.sampling.get("seed") for call in some] == [None, 1, 2, 7, 8, 9]
    assert len({call.name({}) for call in some}) == len(some)
    assert "seed" not in calls.generating([[1]], GREEDY, 9, 1).sampling


def test_a_likelihood_is_the_sum_and_greedy_only_if_every_token_is_the_likeliest() -> None:
    assert calls.likelihood(record([-0.5, -1.5], [[7], [8]]), [7, 8]) == (-2.0, True)
    assert calls.likelihood(record([-0.5, -1.5], [[7], [9]]), [7, 8]) == (-2.0, False)


@pytest.mark.parametrize("chosen", [[-0.5], [-0.5, None]])
def test_a_missing_likelihood_is_none(chosen: list[float | None]) -> None:
    with pytest.raises(calls.Unanswered, match="m told 1 of 2 log-probabilities of prompt 0"):
        calls.likelihood(record(chosen, [[7], [8]]), [7, 8])


def test_the_same_requests_are_the_same_run_and_others_another() -> None:
    one, same = (calls.generating([[1], [2]], GREEDY, 100) for _ in range(2))
    other = calls.generating([[1], [3]], GREEDY, 100)
    assert one.name({"model": "a"}) == same.name({"model": "a"})
    assert len({one.name({"model": "a"}), one.name({"model": "b"}), other.name({"model": "a"})}) == 3


def test_a_sweep_file_lends_what_calls_do_not_say(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text(
        "name: x\nmodel: ./m\nprompts: [a]\nmethods: [hf_sdpa, {name: mine, base: vllm_eager}]\n"
        "settings: {dtype: float16, max_model_len: 64}\nlimits: {ready_s: 9}\nmatrix: {batch_size: [1, 2]}\n"
        "sampling: {ignore_eos: true, task: score}\nnotify: {command: [./tell-me]}\n"
    )
    base = base_of(file, "mine", {}, {"dtype": "float32"})
    assert base == {
        "model": str(tmp_path / "m"),
        "methods": [{"name": "mine", "base": "vllm_eager"}],
        "settings": {"dtype": "float32", "max_model_len": 64},
        "limits": {"ready_s": 9},
    }
    call = calls.generating([[1]], GREEDY, 100)
    sweeps = Sweeps(base, tmp_path / "runs")
    written = sweeps.written(call)
    said = json.loads(written.read_text())
    assert sweeps.run_dir(call) == tmp_path / "runs" / f"mine-{said['name']}"
    assert not [one for one in (tmp_path / "runs").iterdir() if one.is_dir()], "what lists runs trips over no folder"
    assert said["sampling"] == {"max_new_tokens": 5, "temperature": 0.0}
    assert json.loads(Path(said["prompts"]["file"]).read_text()) == {"id": "0", "prompt": [1]}


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "a: 1\na: 2\n"])
def test_a_sweep_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(text)
    with pytest.raises(InputError):
        base_of(tmp_path / "base.yaml", "m", {}, {})


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["run", "--tasks", "x"], True),
        (["--tasks", "x"], True),
        (["run", "--model", "hf", "--tasks", "x"], False),
        (["run", "-M", "hf"], False),
        (["run", "--model=hf", "--tasks", "x"], False),
        (["ls", "--tasks"], False),
        (["validate", "--tasks", "x"], False),
        (["run"], False),
        (["run", "--help"], False),
        ([], False),
    ],
)
def test_our_model_is_meant_where_none_is_named(arguments: list[str], added: bool) -> None:
    assert command.unnamed_model(arguments, "airlock") == (["--model", "airlock"] if added else [])


SAID: dict[str, Any] = {
    **{"method": "m", "model": "demo", "sweep": "", "runs": "r", "dtype": "", "on_failure": "raise"},
    **{"max_length": None, "add_bos_token": None, "trust_remote_code": False},
    **{"batch_size": "4", "max_batch_size": None, "device": "cuda:0"},
}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"method": ""}, "method: is missing"),
        ({"method": 1}, "method: is 1, not text"),
        ({"method": "../x"}, "method: ../x is no method's name"),
        ({"model": ""}, "model: is missing"),
        ({"dtype": True}, "dtype: is True, not text"),
        ({"max_length": "x"}, "max_length: can't be 'x'"),
        ({"max_length": True}, "max_length: can't be True"),
        ({"max_length": 0}, "max_length: can't be 0"),
        ({"add_bos_token": "maybe"}, "add_bos_token: can't be 'maybe'"),
        ({"trust_remote_code": 1}, "trust_remote_code: can't be 1"),
        ({"on_failure": "x"}, "on_failure: can't be x"),
        ({"batch_size": "auto"}, "--batch_size: can't be auto"),
        ({"batch_size": 0}, "--batch_size: can't be 0"),
        ({"max_batch_size": 3}, "--max_batch_size: is for batch_size=auto"),
        ({"device": "cpu"}, "--device: can't be cpu"),
    ],
)
def test_what_is_wrong_with_the_arguments(more: dict[str, Any], says: str) -> None:
    assert list(arguments.problems(SAID, {})) == []
    (found,) = arguments.problems({**SAID, **more}, {})
    assert says in str(found)
    assert len(list(arguments.problems({**SAID, **more}, {"odd": 1}))) == 2


def test_what_is_wrong_with_the_file_made_of_them_is_told_where_they_are() -> None:
    found = [
        Problem("/t/s.yaml:5", "methods[0]", "no method is called m", "did you mean n?"),
        Problem("/t/s.yaml:2", "model.path", "is not there"),
        Problem("/t/s.yaml:7", "limits.ready_s", "must be a number"),
        Problem("", "devices", "there are none"),
    ]
    said = {**SAID, "sweep": "mine.yaml"}
    assert [str(one) for one in arguments.attributed(found, "/t/s.yaml", said, own=False)] == [
        "model_args: method: no method is called m (did you mean n?)",
        "model_args: model: is not there",
        "mine.yaml: limits.ready_s: must be a number",
        "devices: there are none",
    ]
    (mine, *_) = arguments.attributed(found, "/t/s.yaml", said, own=True)
    assert str(mine) == "mine.yaml: methods[m]: no method is called m (did you mean n?)"


@pytest.mark.parametrize(("module", "refusal"), [("lm_eval.config.evaluate_config", True), ("lm_eval.tasks", False)])
def test_what_the_harness_refuses_is_told_from_what_breaks_it(module: str, refusal: bool) -> None:
    namespace: dict[str, Any] = {"__name__": module}
    exec("def ask(): raise ValueError('Tasks not found: arc_esy')", namespace)
    with pytest.raises(ValueError, match="arc_esy") as caught:
        namespace["ask"]()
    assert command.is_refusal(caught.value) == refusal
