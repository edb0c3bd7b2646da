"""From an engine's outputs to Generations: one rule for every engine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import encode
from protocol.messages import Ready
from protocol.records import RuntimeMetadata
from protocol.specs import CallParams, PromptBatch, PromptInput, pack_ids, unpack_ids
from workers.backends.base import Output, WrongOutputs, assemble, batch_stats, clean_text, cut_at_eos, plain

EOS = 2


def batch_of(*ids: str, limit: int = 4, ignore_eos: bool = False) -> PromptBatch:
    call = CallParams(
        batch_size=8,
        max_new_tokens=limit,
        temperature=0.0,
        top_p=1.0,
        seed=0,
        ignore_eos=ignore_eos,
        stop_token_ids=(EOS,),
    )
    return PromptBatch("b", [PromptInput(one, pack_ids([10, 11, ord(one[0])])) for one in ids], call)


def spell(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def one(ids: Sequence[int] | None, **more: Any) -> Any:
    batch = batch_of("a", limit=more.pop("limit", 4), ignore_eos=more.pop("ignore_eos", False))
    return assemble(batch, [Output("a", ids, **more)], spell, {EOS})[0]


def test_joined_by_id_in_the_order_of_the_batch() -> None:
    outputs = [Output("c", [3]), Output("a", [1]), Output("b", [7])]
    assert [(g.prompt_id, g.text) for g in assemble(batch_of("a", "b", "c"), outputs, spell, ())] == [
        ("a", "1"),
        ("b", "7"),
        ("c", "3"),
    ]


def test_a_prompt_left_out_by_the_engine_is_left_out_here() -> None:
    assert [g.prompt_id for g in assemble(batch_of("a", "b"), [Output("b", [1])], spell, ())] == ["b"]


@pytest.mark.parametrize("extra", ["a", "z"])
def test_an_answer_too_many_is_refused(extra: str) -> None:
    with pytest.raises(WrongOutputs, match=extra):
        assemble(batch_of("a"), [Output("a", [1]), Output(extra, [1])], spell, ())


@pytest.mark.parametrize(
    ("ids", "kept", "finish"),
    [
        ([5, EOS], [5, EOS], "stop"),
        ([5, EOS, EOS, EOS], [5, EOS], "stop"),
        ([EOS, 9], [EOS], "stop"),
        ([5, 6, 7, EOS], [5, 6, 7, EOS], "stop"),
        ([5, 6, 7, 8], [5, 6, 7, 8], "length"),
        ([5, 6], [5, 6], "unknown"),
        ([5, 6, 7, 8, 9], [5, 6, 7, 8, 9], "unknown"),
        ([], [], "unknown"),
    ],
)
def test_cut_after_the_first_eos_inclusive(ids: list[int], kept: list[int], finish: str) -> None:
    found = one(ids, finish="abcd")
    assert (unpack_ids(found.token_ids), found.generated_tokens, found.finish_reason) == (kept, len(kept), finish)
    assert found.text == spell(kept)


def test_ignore_eos_cuts_nothing() -> None:
    found = one([5, EOS, 6, EOS], ignore_eos=True)
    assert (found.generated_tokens, found.finish_reason) == (4, "length")


def test_no_eos_known() -> None:
    assert assemble(batch_of("a"), [Output("a", [5, 2, 2, 2])], spell, ())[0].finish_reason == "length"


@pytest.mark.parametrize("word", ["abort", "error"])
def test_an_engine_that_aborted_is_believed(word: str) -> None:
    assert one([5, 6, 7, 8], finish=word).finish_reason == "error"


def test_text_is_decoded_from_what_is_left() -> None:
    assert one([5, EOS, 9], text="the engine's own, with 9").text == "5 2"


def test_text_only() -> None:
    found = one(None, text="hi", finish="stop", generated_tokens=3)
    assert (found.text, found.token_ids, found.generated_tokens, found.finish_reason) == ("hi", b"", 3, "stop")
    assert found.flags == ["no_token_ids"]


def test_text_is_never_counted() -> None:
    with pytest.raises(WrongOutputs, match="neither token ids nor a count"):
        one(None, text="hi there")


def test_without_a_decoder_the_engine_s_text_stands() -> None:
    assert assemble(batch_of("a"), [Output("a", [5], text="five")], None, ())[0].text == "five"


def test_the_digest_is_of_the_ids_that_were_given() -> None:
    sent = pack_ids([10, 11, ord("a")])
    assert one([5]).prompt_digest == hashlib.sha256(sent).hexdigest()[:16]
    assert one([5]).prompt_tokens == 3


def test_an_engine_that_was_given_other_ids_is_found_out() -> None:
    doubled = one([5], prompt_token_ids=[1, 10, 11, ord("a")])
    assert doubled.prompt_digest == hashlib.sha256(pack_ids([1, 10, 11, ord("a")])).hexdigest()[:16]
    assert doubled.prompt_tokens == 4


def test_unclean_text_is_kept_with_a_flag() -> None:
    found = assemble(batch_of("a"), [Output("a", [5], flags=("split_batch",))], lambda _: "a\udc9d\0b", ())[0]
    assert (found.text, found.flags) == ("a\ufffd\ufffdb", ["split_batch", "unclean_text"])


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -0.5, None])
def test_what_is_no_duration_is_none(nonsense: float | None) -> None:
    found = one([5], ttft_s=nonsense, latency_s=0.5)
    assert (found.ttft_s, found.latency_s) == (None, 0.5)


@given(st.lists(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_cut(ids: list[int], stop: set[int]) -> None:
    kept = cut_at_eos(ids, stop)
    assert ids[: len(kept)] == kept
    assert not stop & set(kept[:-1])
    assert kept == ids or kept[-1] in stop


@given(st.text(st.characters()))
def test_cleaned_text_can_be_stored(text: str) -> None:
    cleaned, changed = clean_text(text)
    assert b"\0" not in cleaned.encode()
    assert changed == (cleaned != text)
    assert len(cleaned) == len(text)


def test_stats_sum_what_is_counted() -> None:
    generations = assemble(batch_of("a", "b"), [Output("a", [5, EOS, 7]), Output("b", [1, 1, 1])], spell, {EOS})
    stats = batch_stats(generations, 0.5, 7, {"steps": 3})
    assert (stats.generated_tokens, stats.wall_s, stats.peak_memory_bytes, stats.extra) == (5, 0.5, 7, {"steps": 3})


class Numpyish:
    """As numpy's and torch's scalars look from outside."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Many:
    def item(self) -> Any:
        raise ValueError("only one element")

    def __repr__(self) -> str:
        return "<many \udc80>"


def test_plain_values() -> None:
    value = {"n": Numpyish(3), "f": Numpyish(0.5), 1: (True, None, {2}), "many": Many(), "big": 2**64, "s": "\ud800"}
    assert plain(value) == {
        "n": 3,
        "f": 0.5,
        "1": [True, None, [2]],
        "many": "<many \ufffd>",
        "big": "18446744073709551616",
        "s": "\ufffd",
    }


@given(
    st.recursive(
        st.text(st.characters()) | st.integers() | st.floats(), lambda inner: st.lists(inner) | st.tuples(inner)
    )
)
def test_plain_values_can_be_sent(value: Any) -> None:
    options = {"value": plain(value)}
    encode(Ready(RuntimeMetadata(engine="x", engine_version="1", python_version="3", options=options)))
    json.dumps(options)
