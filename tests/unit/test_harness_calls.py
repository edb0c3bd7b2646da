"""Requests of lm-evaluation-harness as sweeps, and what it gets of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.events import Record, RecordLogprobs
from orchestrator.harness import calls
from orchestrator.harness.sweeps import Sweeps, base_of

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


def test_a_likelihood_is_the_sum_and_greedy_only_if_every_token_is_the_likeliest() -> None:
    assert calls.likelihood(record([-0.5, -1.5], [[7], [8]]), [7, 8]) == (-2.0, True)
    assert calls.likelihood(record([-0.5, -1.5], [[7], [9]]), [7, 8]) == (-2.0, False)


@pytest.mark.parametrize("chosen", [[-0.5], [-0.5, None]])
def test_a_missing_likelihood_is_none(chosen: list[float | None]) -> None:
    with pytest.raises(ValueError, match="1 of 2"):
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
    )
    base = base_of(file, "mine", {}, {"dtype": "float32"})
    assert base == {
        "model": str(tmp_path / "m"),
        "methods": [{"name": "mine", "base": "vllm_eager"}],
        "settings": {"dtype": "float32", "max_model_len": 64},
        "limits": {"ready_s": 9},
    }
    call = calls.generating([[1]], GREEDY, 100)
    written = Sweeps(base, tmp_path / "runs").written(call)
    said = json.loads(written.read_text())
    assert said["sampling"] == {"max_new_tokens": 5, "temperature": 0.0}
    assert json.loads(Path(said["prompts"]["file"]).read_text()) == {"id": "0", "prompt": [1]}


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "a: 1\na: 2\n"])
def test_a_sweep_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(text)
    with pytest.raises(InputError):
        base_of(tmp_path / "base.yaml", "m", {}, {})
