"""Results are joined by prompt id; what is wrong with one is an error of that prompt alone."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.run.joining import join
from protocol.records import Generation
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids

CALL = CallParams.of(BackendConfig(method=MethodSpec(name="m", engine="scripted"), model_path="x"))


def batch_of(ids: list[str]) -> PromptBatch:
    return PromptBatch("b", [PromptInput(i, pack_ids([1])) for i in ids], CALL)


def result(prompt_id: str, digest: str = "d") -> Generation:
    return Generation(
        prompt_id=prompt_id,
        text="t",
        token_ids=pack_ids([5, 6]),
        generated_tokens=2,
        finish_reason="length",
        prompt_tokens=1,
        prompt_digest=digest,
    )


@given(st.integers(1, 12), st.data())
def test_every_prompt_is_good_or_bad_exactly_once(count: int, data: st.DataObject) -> None:
    ids = [f"p{i}" for i in range(count)]
    missing = set(data.draw(st.lists(st.sampled_from(ids), unique=True)))
    twice = set(data.draw(st.lists(st.sampled_from(ids), unique=True))) - missing
    results = [result(i) for i in ids if i not in missing] + [result(i) for i in sorted(twice)] + [result("stranger")]
    random.Random(count).shuffle(results)
    joined = join(batch_of(ids), results, dict.fromkeys(ids, "d"))
    assert [g.prompt_id for g in joined.good] == [i for i in ids if i not in missing | twice]
    assert set(joined.bad) == missing | twice
    assert joined.surplus == ("stranger",)


def test_an_engine_that_was_given_other_ids_is_found_out() -> None:
    joined = join(batch_of(["a", "b"]), [result("a"), result("b", "other")], {"a": "d", "b": "d"})
    assert [g.prompt_id for g in joined.good] == ["a"]
    assert "other token ids" in joined.bad["b"]
