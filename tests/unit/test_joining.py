"""Results are joined by prompt id; what is wrong with one is an error of that prompt alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.run.joining import join
from protocol.records import Generation
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids

CALL = CallParams.of(BackendConfig(method=MethodSpec(name="m", engine="scripted"), model_path="x"))


def batch_of(ids: list[str]) -> PromptBatch:
    return PromptBatch("b", [PromptInput(i, pack_ids([1])) for i in ids], CALL)


def result(prompt_id: str, digest: str = "d", **changes: Any) -> Generation:
    whole = Generation(
        prompt_id=prompt_id,
        text="t",
        token_ids=pack_ids([5, 6]),
        generated_tokens=2,
        finish_reason="length",
        prompt_tokens=1,
        prompt_digest=digest,
    )
    return replace(whole, **changes)


#: What can be wrong with one prompt's results: the results, and a word of what is said of it.
FAULTS: dict[str, tuple[Callable[[str], list[Generation]], str]] = {
    "missing": (lambda _: [], "no result"),
    "twice": (lambda i: [result(i), result(i)], "2 results"),
    "twice, and different": (lambda i: [result(i), result(i, text="u")], "2 results"),
    "once good and once bad": (lambda i: [result(i), result(i, "e")], "2 results"),
    "of other ids": (lambda i: [result(i, "e")], "other token ids"),
    "unusable": (lambda i: [result(i, error="-1 is no token id")], "-1 is no token id"),
    "given up": (lambda i: [result(i, finish_reason="error")], "gave this prompt up after 2 tokens"),
    "miscounted": (lambda i: [result(i, generated_tokens=3)], "3 tokens counted, 2 ids given"),
    "half an id": (lambda i: [result(i, token_ids=b"12345")], "not a multiple of 4"),
}
GOOD = {
    "ids": lambda i: [result(i)],
    "text only": lambda i: [result(i, token_ids=b"", generated_tokens=7)],
}


@given(st.data())
def test_every_prompt_is_good_or_bad_exactly_once_and_costs_no_other(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=12))
    kinds = {i: data.draw(st.sampled_from([*FAULTS, *GOOD])) for i in ids}
    strangers = data.draw(st.lists(st.text(max_size=3).filter(lambda i: i not in ids)))
    results = [one for i in ids for one in (FAULTS[kinds[i]][0] if kinds[i] in FAULTS else GOOD[kinds[i]])(i)]
    given_back = data.draw(st.permutations(results + [result(i) for i in strangers]))
    joined = join(batch_of(ids), given_back, dict.fromkeys(ids, "d"))
    assert [g.prompt_id for g in joined.good] == [i for i in ids if kinds[i] in GOOD]
    assert set(joined.bad) == {i for i in ids if kinds[i] in FAULTS}
    assert all(FAULTS[kinds[i]][1] in told for i, told in joined.bad.items())
    assert joined.surplus == tuple(sorted(set(strangers)))


def test_an_engine_that_was_given_other_ids_is_found_out() -> None:
    joined = join(batch_of(["a", "b"]), [result("a"), result("b", "other")], {"a": "d", "b": "d"})
    assert [g.prompt_id for g in joined.good] == ["a"]
    assert "other token ids" in joined.bad["b"]
