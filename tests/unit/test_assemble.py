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
from msgspec.structs import replace

from protocol.codec import decode_up, encode
from protocol.messages import BatchDone, Ready
from protocol.records import RuntimeMetadata
from protocol.specs import CallParams, PromptBatch, PromptInput, pack_ids, unpack_floats, unpack_ids
from workers.backends.base import Output, Position, assemble, batch_stats, clean_text, cut_at_eos, plain

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
def test_an_answer_too_many_is_passed_on_for_the_coordinator_to_judge(extra: str) -> None:
    found = assemble(batch_of("a", "b"), [Output(extra, [7]), Output("b", [1]), Output("a", [1])], spell, ())
    assert sorted(g.prompt_id for g in found) == sorted(["a", "b", extra])
    assert [g.prompt_id for g in found if g.prompt_id in "ab"] == sorted(
        g.prompt_id for g in found if g.prompt_id in "ab"
    )


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
    assert "neither token ids nor a count" in one(None, text="hi there").error


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


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -0.5, "soon", None])
def test_what_is_no_duration_is_none(nonsense: Any) -> None:
    found = one([5], ttft_s=nonsense, latency_s=0.5)
    assert (found.ttft_s, found.latency_s) == (None, 0.5)
    assert found.flags == ([] if nonsense is None else ["bad_times"])


class Numpyish:
    """As numpy's and torch's scalars look from outside."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value

    def __float__(self) -> float:
        return float(self.value)


class Array:
    """As numpy's arrays and torch's tensors look from outside."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def tolist(self) -> list[Any]:
        return list(self.values)


def broken_decode(_ids: list[int]) -> str:
    raise OverflowError("can't convert negative int to unsigned")


class Hostile:
    """Whatever is done with it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} \udc80")

    def __iter__(self) -> Any:
        raise RuntimeError("not iterable today")

    def __str__(self) -> str:
        raise RuntimeError("no text either")

    __repr__ = __eq__ = __hash__ = __str__  # type: ignore[assignment]


#: What an engine may put where token ids, a word, a time, a count or the prompt's ids should be, and
#: whether the output can be kept (its flags) or is an error of its prompt.
UNCLEAN: dict[str, tuple[dict[str, Any], list[str] | None]] = {
    "numpy ids": ({"token_ids": Array(5, 6)}, []),
    "numpy scalars in a list": ({"token_ids": [Numpyish(5), Numpyish(6)]}, []),
    "one numpy scalar late in a list": ({"token_ids": [5, Numpyish(6)]}, []),
    "whole floats": ({"token_ids": [5.0, 6.0]}, []),
    "numpy times": ({"token_ids": [5, 6], "ttft_s": Numpyish(0.5), "latency_s": Numpyish(1)}, []),
    "NaN times": ({"token_ids": [5, 6], "ttft_s": math.nan}, ["bad_times"]),
    "numpy prompt ids": ({"token_ids": [5, 6], "prompt_token_ids": Array(10, 11, ord("b"))}, []),
    "numpy count": ({"token_ids": None, "text": "hi", "generated_tokens": Numpyish(2)}, ["no_token_ids"]),
    "numpy word": ({"token_ids": [5, 6], "finish": Numpyish("stop")}, []),
    "unhashable word": ({"token_ids": [5, 6], "finish": {"type": "stop"}}, []),
    "text of another type": ({"token_ids": None, "text": b"hi", "generated_tokens": 2}, ["no_token_ids"]),
    "surrogates": ({"token_ids": None, "text": "\ud800", "generated_tokens": 2}, ["no_token_ids", "unclean_text"]),
    "NUL": ({"token_ids": None, "text": "a\0", "generated_tokens": 2}, ["no_token_ids", "unclean_text"]),
    "text that its ids do not spell": ({"token_ids": [5, 6], "text": "5"}, ["text_differs"]),
    "nothing": ({"token_ids": []}, ["degenerate"]),
    "negative id": ({"token_ids": [5, -1]}, None),
    "id past 32 bits": ({"token_ids": [5, 2**32]}, None),
    "id past 64 bits": ({"token_ids": [5, 2**70]}, None),
    "half an id": ({"token_ids": [5.5]}, None),
    "NaN for an id": ({"token_ids": [math.nan]}, None),
    "no id": ({"token_ids": [5, None]}, None),
    "rows of rows": ({"token_ids": Array([5], [6])}, None),
    "a number for ids": ({"token_ids": 5}, None),
    "negative count": ({"token_ids": None, "generated_tokens": -1}, None),
    "NaN for a count": ({"token_ids": None, "generated_tokens": math.nan}, None),
    "negative prompt id": ({"token_ids": [5], "prompt_token_ids": [-1]}, None),
    "hostile ids": ({"token_ids": Hostile()}, None),
    "hostile word": ({"token_ids": [5], "finish": Hostile()}, None),
    "hostile text": ({"token_ids": None, "text": Hostile(), "generated_tokens": 1}, None),
}


@pytest.mark.parametrize("kind", UNCLEAN)
def test_what_is_unclean_is_kept_with_a_flag_or_an_error_of_its_prompt_alone(kind: str) -> None:
    values, flags = UNCLEAN[kind]
    batch = batch_of("a", "b", "c")
    outputs = [Output("a", [1, 2]), Output(**{"prompt_id": "b", **values}), Output("c", [3, 4])]
    a, b, c = assemble(batch, outputs, spell, ())
    assert (a.text, c.text) == ("1 2", "3 4")
    assert (a.error, c.error) == ("", "")
    assert bool(b.error) == (flags is None)
    assert b.flags == (flags or [])
    stats = batch_stats([a, b, c], 1.0)
    assert decode_up(encode(BatchDone("b", [a, b, c], stats))) == BatchDone("b", [a, b, c], stats)


def test_ids_that_can_t_be_decoded_are_kept() -> None:
    found = assemble(batch_of("a"), [Output("a", [5, 2**31], text="x")], broken_decode, ())[0]
    assert (unpack_ids(found.token_ids), found.text, found.flags) == ([5, 2**31], "x", ["undecodable"])


@pytest.mark.parametrize(
    ("ids", "limit", "degenerate"),
    [
        ([7] * 64, 64, True),
        ([7] * 62 + [8, 9], 64, True),
        ([7] * 60 + [8, 9, 10, 11], 64, False),
        ([7] * 64, 65, False),  # it stopped by itself
        ([7] * 15, 15, False),
        ([7, 8] * 32, 64, False),
        ([EOS], 64, True),
        ([EOS, 9], 64, True),
        ([5, EOS], 64, False),
    ],
)
def test_one_id_over_and_over_until_the_limit_is_flagged(ids: list[int], limit: int, degenerate: bool) -> None:
    found = one(ids, limit=limit)
    assert ("degenerate" in found.flags) == degenerate
    assert found.generated_tokens == len(cut_at_eos(ids, {EOS}))
    assert batch_stats([found], 1.0).extra == ({"degenerate": 1.0} if degenerate else {})


def test_counters_that_are_no_numbers_are_left_out_and_counted() -> None:
    stats = batch_stats([], math.nan, Numpyish(7), {"a": Numpyish(3), "b": math.nan, "c": math.inf, "d": None})  # type: ignore[arg-type,dict-item]
    assert (stats.wall_s, stats.peak_memory_bytes, stats.extra) == (0.0, 7, {"a": 3.0, "left_out": 3.0})


def test_memory_of_this_process_that_ran_out_is_no_fault_of_one_output() -> None:
    def decode(_ids: list[int]) -> str:
        raise MemoryError

    with pytest.raises(MemoryError):
        assemble(batch_of("a"), [Output("a", [5])], decode, ())


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


# --- positions -----------------------------------------------------------------


def told(ids: Sequence[int], positions: Sequence[Position], k: int = 1, **more: Any) -> Any:
    batch = batch_of("a", **more)
    call = replace(batch.call, logprobs=k)
    return assemble(replace(batch, call=call), [Output("a", ids, positions=positions)], spell, {EOS})[0]


def test_times_between_the_tokens_that_are_left() -> None:
    generation = one([5, EOS, 7], times_s=[0.5, 0.75, 1.5])
    assert unpack_floats(generation.itl_s) == [0.25]
    assert one([5], times_s=[0.5]).itl_s == b""
    assert one([5, 6]).itl_s is None


@pytest.mark.parametrize("odd", [math.nan, 0.25, "x", math.inf, None])
def test_times_between_tokens_that_are_none_are_left_out_with_a_flag(odd: Any) -> None:
    generation = one([5, 6, 7, 8], times_s=[0.5, odd, 0.75, 1.0])
    assert unpack_floats(generation.itl_s)[0] is None
    assert unpack_floats(generation.itl_s)[2] == 0.25
    assert generation.flags == ["bad_times"]


@pytest.mark.parametrize("times_s", [[], [0.5]])
def test_fewer_times_than_tokens_are_left_out_as_nobody_knows_whose_they_are(times_s: list[float]) -> None:
    generation = one([5, 6], times_s=times_s)
    assert (generation.itl_s, generation.generated_tokens, generation.flags) == (None, 2, ["bad_times"])


#: What can't be true: times of an output of three tokens, and what the batch took.
IMPOSSIBLE: dict[str, tuple[dict[str, Any], float | None]] = {
    "the last token before the first": ({"ttft_s": 1.0, "latency_s": 0.5}, None),
    "a sum that is too large": ({"ttft_s": 0.5, "latency_s": 1.0, "times_s": [0.5, 1.0, 1.5]}, None),
    "a sum that is too small": ({"ttft_s": 0.5, "latency_s": 2.0, "times_s": [0.5, 1.0, 1.5]}, None),
    "a first token after the batch": ({"ttft_s": 1.5}, 1.0),
    "a last token after the batch": ({"ttft_s": 0.5, "latency_s": 1.5}, 1.0),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_times_that_can_not_all_be_true_are_kept_with_a_flag(kind: str) -> None:
    told, wall_s = IMPOSSIBLE[kind]
    (found,) = assemble(batch_of("a"), [Output("a", [5, 6, 7], **told)], spell, (), wall_s)
    assert found.flags == ["impossible_times"]
    assert (found.ttft_s, found.latency_s) == (told.get("ttft_s"), told.get("latency_s"))
    assert (found.itl_s is not None) == ("times_s" in told)
    assert (found.generated_tokens, found.error) == (3, "")


@pytest.mark.parametrize(
    ("told", "wall_s"),
    [
        ({"ttft_s": 0.5, "latency_s": 1.5, "times_s": [0.5, 1.0, 1.5]}, 1.5),
        ({"ttft_s": 0.5, "latency_s": 0.4999}, 0.4995),
        ({"ttft_s": 0.5005, "latency_s": 1.5, "times_s": [0.5, 1.0, 1.5]}, None),
        ({"ttft_s": 0.5}, None),
        ({"latency_s": 0.5}, 1.0),
        ({}, 1.0),
    ],
)
def test_clocks_that_agree_have_no_flag(told: dict[str, Any], wall_s: float | None) -> None:
    (found,) = assemble(batch_of("a"), [Output("a", [5, 6, 7], **told)], spell, (), wall_s)
    assert found.flags == []


def test_logprobs_of_the_tokens_that_are_left() -> None:
    position = Position(-0.5, [(5, -0.5), (9, -1.5), (3, -2.5)])
    packed = told([5, EOS, 7], [position] * 3, k=2).logprobs
    assert unpack_floats(packed.chosen) == [-0.5, -0.5]
    assert unpack_ids(packed.top_ids) == [5, 9, 5, 9]
    assert unpack_floats(packed.top) == [-0.5, -1.5, -0.5, -1.5]


@pytest.mark.parametrize("nonsense", [math.nan, -math.inf, 0.5, "x", None])
def test_logprobs_that_are_none_are_left_out_with_a_flag(nonsense: Any) -> None:
    generation = told([5], [Position(nonsense, [(5, nonsense)])])
    assert (unpack_floats(generation.logprobs.chosen), generation.flags) == ([None], ["bad_logprobs"])


def test_a_little_above_zero_is_rounding() -> None:
    assert unpack_floats(told([5], [Position(1e-6, [(5, 1e-6)])]).logprobs.chosen) == [0.0]


@pytest.mark.parametrize("positions", [[], [Position(-0.5, [(5, -0.5)])], [Position(-0.5)] * 2])
def test_positions_that_do_not_fit_are_an_error_of_the_prompt(positions: list[Position]) -> None:
    assert told([5, 6], positions).error.startswith("Misfit: ")


def scored(positions: Sequence[Position] | None, start: int | None = 1) -> Any:
    batch = batch_of("a")
    prompt = PromptInput("a", pack_ids([10, 11, 12]), start)
    batch = replace(batch, prompts=[prompt], call=replace(batch.call, task="score"))
    return assemble(batch, [Output("a", (), positions=positions)], spell, {EOS})[0]


def test_to_score_there_is_one_logprob_for_each_given_token() -> None:
    generation = scored([Position(-0.5), Position(-1.0)])
    assert (generation.finish_reason, generation.generated_tokens, generation.flags) == ("scored", 0, [])
    assert unpack_floats(generation.logprobs.chosen) == [-0.5, -1.0]


def test_scores_of_other_tokens_are_an_error_of_the_prompt() -> None:
    assert scored([Position(-0.5)]).error
    assert scored(None).error
    assert scored([Position(-0.5)], None).error


def test_stats_sum_what_is_counted() -> None:
    generations = assemble(batch_of("a", "b"), [Output("a", [5, EOS, 7]), Output("b", [1, 1, 1])], spell, {EOS})
    stats = batch_stats(generations, 0.5, 7, {"steps": 3})
    assert (stats.generated_tokens, stats.wall_s, stats.peak_memory_bytes, stats.extra) == (5, 0.5, 7, {"steps": 3})


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
