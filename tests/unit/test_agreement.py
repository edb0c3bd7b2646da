"""Distances between outputs by hand, and the verdict that each kind of method gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.definition.measurement import Measurement
from orchestrator.judge.agreement import Agreement, agreements, base_points
from orchestrator.judge.distance import Distance, distance, divergence
from orchestrator.judge.reference import bases, reference_method
from orchestrator.judge.told import told
from orchestrator.judge.verdict import GARBAGE_PROMPTS
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, SweepPoint
from orchestrator.record.output import Record, RecordLogprobs
from orchestrator.view.agreement import consistency_lines, lines, markdown
from orchestrator.view.runview import RunView
from protocol.records import FLAG_DEGENERATE, FLAG_NO_TOKEN_IDS
from protocol.specs import MethodSpec
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, record, run_start

EOS = 2
PROMPTS = [f"p{n}" for n in range(6)]
TEN = list(range(10, 20))


def logprobs(ids: Sequence[int], tops: Mapping[int, Mapping[int, float]] | None = None) -> RecordLogprobs:
    """Three tokens at every position: the output's own at 0.9, 0.05 and 0.01; `tops` replaces positions."""
    usual = [{one: math.log(0.9), one + 100: math.log(0.05), one + 200: math.log(0.01)} for one in ids]
    rows = [dict((tops or {}).get(at, row)) for at, row in enumerate(usual)]
    return RecordLogprobs(
        chosen=[row[one] for one, row in zip(ids, rows, strict=True)],
        top_ids=[list(row) for row in rows],
        top=[list(row.values()) for row in rows],
    )


def said(ids: Sequence[int], prompt: str = "p0", **changes: Any) -> Record:
    return record(prompt, text="", token_ids=list(ids), generated_tokens=len(ids), **changes)


def apart(reference: Record, other: Record, stop: Sequence[int] = (EOS,)) -> Distance:
    return distance(told(reference), told(other), stop)


# --- two outputs ----------------------------------------------------------------


def test_the_same_output_has_no_distance() -> None:
    found = apart(said(TEN, logprobs=logprobs(TEN)), said(TEN, logprobs=logprobs(TEN)))
    assert (found.kind, found.at, found.prefix, found.kl_sum, found.delta_max) == ("same", None, 1.0, 0.0, 0.0)
    assert found.positions == len(TEN)
    assert found.tied(0)


def test_the_gap_is_the_references_own_at_the_first_difference() -> None:
    tops = {3: {13: math.log(0.5), 99: math.log(0.4), 7: math.log(0.01)}}
    other = [*TEN[:3], 99, *TEN[4:]]
    found = apart(said(TEN, logprobs=logprobs(TEN, tops)), said(other, logprobs=logprobs(other)))
    assert (found.kind, found.at, found.token, found.reference_token) == ("token", 3, 99, 13)
    assert found.prefix == pytest.approx(0.3)
    assert found.gap == pytest.approx(math.log(0.5 / 0.4), rel=1e-6)
    assert not found.gap_is_bound
    assert found.positions == 4, "what comes after the first difference has another past"
    assert (found.tied(0.25), found.tied(0.2)) == (True, False)


def test_a_token_that_the_reference_does_not_tell_is_at_least_as_far_as_the_last_it_tells() -> None:
    found = apart(said(TEN, logprobs=logprobs(TEN)), said([7, *TEN[1:]]))
    assert found.gap == pytest.approx(math.log(0.9 / 0.01), rel=1e-6)
    assert found.gap_is_bound
    assert found.tied(0.5) is False
    assert found.tied(9.0) is None, "it may be further"


def test_without_log_probabilities_nothing_is_known_of_a_gap() -> None:
    found = apart(said(TEN), said([7, *TEN[1:]]))
    assert (found.gap, found.tied(9.0), found.positions) == (None, None, 0)


ENDINGS = [
    ([10, 11, EOS], [10, 11, 12, 13], "ends later", 2),
    ([10, 11, 12, 13], [10, 11, EOS], "ends earlier", 2),
    ([10, 11, 12, 13], [10, 11], "cut short", 2),
    ([10, 11], [10, 11, 12], "runs on", 2),
    ([10, 11, 12], [10, 7, 12], "token", 1),
]


@pytest.mark.parametrize(("reference", "other", "kind", "at"), ENDINGS)
def test_another_end_is_a_difference_of_its_own_kind(
    reference: list[int], other: list[int], kind: str, at: int
) -> None:
    found = apart(said(reference), said(other))
    assert (found.kind, found.at) == (kind, at)
    assert found.prefix == at / max(len(reference), len(other))


def test_no_tie_explains_an_end_without_an_end_of_sequence_token() -> None:
    assert apart(said(TEN, logprobs=logprobs(TEN)), said(TEN[:4])).tied(1e9) is False


def test_the_texts_are_told_from_where_they_part() -> None:
    one, other = told(replace(said(TEN), text="It is Paris.")), told(replace(said(TEN[:4]), text="It is Rome."))
    found = distance(one, other)
    assert (found.text, found.reference_text) == ("Rome.", "Paris.")


def test_other_prompt_ids_are_not_compared() -> None:
    """A doubled begin-of-sequence token, or another chat template."""
    found = apart(said(TEN), said(TEN, prompt_digest="fedcba9876543210"))
    assert (found.kind, found.tied(1e9)) == ("other prompt", False)


def test_scores_are_compared_position_by_position() -> None:
    def scored(chosen: list[float | None]) -> Record:
        given = RecordLogprobs(chosen=chosen)
        return said([], finish_reason="scored", logprobs=given)

    found = apart(scored([-1.0, -2.0, -0.5]), scored([-1.1, -2.0, None]))
    assert (found.kind, found.at, found.tokens) == ("scored", 0, 2)
    assert found.delta_max == pytest.approx(0.1, rel=1e-5)
    assert found.nll == pytest.approx(3.1)
    assert found.reference_nll == pytest.approx(3.0)


# --- KL -----------------------------------------------------------------------------


def test_divergence_by_hand() -> None:
    """Two tokens that both tell, and the rest as a third outcome."""
    p = {1: math.log(0.6), 2: math.log(0.3)}
    q = {1: math.log(0.5), 2: math.log(0.25)}
    by_hand = 0.6 * math.log(0.6 / 0.5) + 0.3 * math.log(0.3 / 0.25) + 0.1 * math.log(0.1 / 0.25)
    assert divergence(p, q) == pytest.approx(by_hand)


weights = st.lists(st.floats(0.001, 1.0), min_size=6, max_size=12)


@given(weights, st.data())
def test_what_the_likeliest_tokens_tell_never_exceeds_the_whole(raw: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(0.001, 1.0), min_size=len(raw), max_size=len(raw)))
    k = data.draw(st.integers(1, len(raw)))
    p, q = ([one / sum(values) for one in values] for values in (raw, other))
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert divergence(likeliest(p, k), likeliest(q, k)) <= whole + 1e-4


def likeliest(shares: Sequence[float], k: int) -> dict[int, float]:
    order = sorted(range(len(shares)), key=lambda token: -shares[token])[:k]
    return {token: math.log(shares[token]) for token in order}


@given(weights)
def test_a_distribution_does_not_diverge_from_itself(raw: list[float]) -> None:
    told_of = likeliest([one / sum(raw) for one in raw], 3)
    assert divergence(told_of, told_of) == pytest.approx(0, abs=1e-9)


def test_disjoint_likeliest_tokens_are_far_apart() -> None:
    p, q = {1: math.log(0.9), 2: math.log(0.05)}, {3: math.log(0.9), 4: math.log(0.05)}
    assert divergence(p, q) > 1


# --- the reference --------------------------------------------------------------------

SCRIPTED = MethodSpec(name="scripted", engine="scripted")


def test_the_reference_is_what_the_file_names_else_transformers_else_the_first() -> None:
    assert reference_method(a_plan((VLLM, HF))) == "hf_sdpa"
    assert reference_method(a_plan((VLLM, SCRIPTED))) == "vllm_fa"
    named = replace(a_plan((VLLM, HF)), measurement=Measurement(reference="vllm_fa"))
    assert reference_method(named) == "vllm_fa"


def with_settings(plan: Plan, **settings: Any) -> Plan:
    """Every point once more with other settings; ids end in "+"."""
    starts = []
    for start in plan.starts:
        more = tuple(
            replace(point, id=f"{point.id}+", config=replace(point.config, **settings)) for point in start.points
        )
        starts.append(replace(start, points=(*start.points, *more)))
    return replace(plan, starts=tuple(starts))


def test_a_float32_point_of_the_reference_comes_first_and_only_the_same_work_counts() -> None:
    plan = with_settings(a_plan(sizes=(1, 2)), dtype="float32")
    plan = replace(plan, model=replace(plan.model, dtype="bfloat16"))
    found = bases(plan.points, plan)
    assert found["vllm_fa/2/1"].id == "hf_sdpa/2/0+"
    assert found["vllm_fa/2/1+"].id == "hf_sdpa/2/0+"
    assert {point.id for point in found.values()} == base_points_of(plan)
    longer = with_settings(a_plan(sizes=(1,)), max_new_tokens=64)
    assert bases(longer.points, longer)["vllm_fa/1/0+"].id == "hf_sdpa/1/0+"
    sampled = with_settings(a_plan((HF,)), temperature=0.7)
    assert bases(sampled.points, a_plan()).keys() == {point.id for point in a_plan((HF,)).points}


def base_points_of(plan: Plan) -> set[str]:
    return base_points(plan)


@pytest.mark.parametrize(
    ("outputs", "base"),
    [
        (None, "hf_sdpa/1/0"),
        ({"hf_sdpa/1/0": 3, "hf_sdpa/1/1": 3}, "hf_sdpa/1/0"),
        ({"hf_sdpa/1/0": 2, "hf_sdpa/1/1": 3}, "hf_sdpa/1/1"),
        ({"hf_sdpa/1/1": 3, "hf_sdpa/1/2": 3}, "hf_sdpa/1/1"),
        ({"hf_sdpa/1/0": 2, "hf_sdpa/1/1": 1, "hf_sdpa/2/0": 3}, "hf_sdpa/1/0"),
        ({"hf_sdpa/2/2": 1}, "hf_sdpa/2/2"),
        ({}, "hf_sdpa/1/0"),
    ],
)
def test_a_repeat_that_has_outputs_stands_in_for_one_that_lacks_some(outputs: dict[str, int] | None, base: str) -> None:
    """Of the same cell, and of another only if that has none at all."""
    plan = a_plan(sizes=(1, 2), repeats=3)
    assert bases(plan.points, plan, outputs)["vllm_fa/1/0"].id == base
    assert base in base_points(plan, outputs=outputs)


@pytest.mark.parametrize("lost", [PROMPTS, PROMPTS[:1]])
def test_others_are_judged_though_the_first_repeat_of_the_reference_failed(lost: list[str]) -> None:
    plan = a_plan(sizes=(1,), repeats=2)
    bad = Cause(cls="bad_prompt", message="no")
    failed = {("hf_sdpa/1/0", prompt) for prompt in lost}
    records = [
        answer(point, prompt, TEN, error=bad if (point.id, prompt) in failed else None)
        for point in plan.points
        for prompt in PROMPTS
    ]
    outputs = {point.id: len(PROMPTS) for point in plan.points} | {"hf_sdpa/1/0": len(PROMPTS) - len(lost)}
    own = [one for one in records if one.point in base_points(plan, outputs=outputs)]
    reference, method = agreements(plan, own, records, outputs=outputs).rows
    assert (method.verdict, method.outputs, method.failed) == ("agrees", 2 * len(PROMPTS), 0)
    assert (method.base, method.base_repeat) == ("hf_sdpa/1/1", 1)
    assert reference.failed == len(lost)


# --- verdicts -------------------------------------------------------------------------


def judged(
    other: Mapping[str, Sequence[int]], *, tops: Mapping[int, Mapping[int, float]] | None = None, **changes: Any
) -> Agreement:
    """`other` holds the outputs that differ; every prompt of the reference says TEN, with log-probabilities."""
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = (point for point in plan.points)
    own = [answer(reference, prompt, TEN, logprobs=logprobs(TEN, tops)) for prompt in PROMPTS]
    theirs = [answer(method, prompt, other.get(prompt, TEN), **changes) for prompt in PROMPTS]
    found = agreements(plan, own, [*own, *theirs])
    assert found.rows[0].verdict == "reference"
    return found.rows[1]


def answer(point: SweepPoint, prompt: str, ids: Sequence[int], **changes: Any) -> Record:
    return said(ids, prompt, point=point.id, method=point.method, repeat=point.repeat, **changes)


def test_agrees() -> None:
    row = judged({})
    assert (row.verdict, row.outputs, row.same, row.prefix, row.bad) == ("agrees", 6, 6, 1.0, False)


TIE = {4: {14: math.log(0.5), 99: math.log(0.4), 77: math.log(0.01)}}
PARTED = [*TEN[:4], 99, *TEN[5:]]


def test_agrees_within_ties() -> None:
    row = judged({"p1": PARTED, "p3": PARTED}, tops=TIE)
    assert (row.verdict, row.same, row.tied, row.bad) == ("agrees within ties", 4, 2, False)
    assert row.first == 4
    assert row.gap_max == pytest.approx(0.223, abs=1e-3)


def test_where_both_sides_round_the_gap_may_be_twice_as_large() -> None:
    """0.75 nats: too far from a float32 reference, and not from one that is rounded itself."""
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    tie = {4: {14: math.log(0.6), 99: math.log(0.6) - 0.75, 77: math.log(0.01)}}
    own = [answer(reference, prompt, TEN, logprobs=logprobs(TEN, tie)) for prompt in PROMPTS]
    theirs = [answer(method, prompt, PARTED) for prompt in PROMPTS]
    assert plan.model.dtype == "float32"
    assert agreements(plan, own, theirs).rows[1].verdict == "diverges"
    rounded = replace(plan, model=replace(plan.model, dtype="bfloat16"))
    assert agreements(rounded, own, theirs).rows[1].verdict == "agrees within ties"
    assert agreements(rounded, own, theirs, against=plan).rows[1].verdict == "diverges"


def test_diverges_and_names_prompt_position_and_gap() -> None:
    row = judged({"p2": [*TEN[:4], 77, *TEN[5:]], "p1": PARTED}, tops=TIE)
    assert (row.verdict, row.tied, row.bad) == ("diverges", 1, True)
    worst = row.differences[0]
    assert (worst.prompt_id, worst.at, worst.token) == ("p2", 4, 77)
    assert worst.gap == pytest.approx(math.log(50), rel=1e-5)
    assert "1 of 6 outputs" in row.why


def test_an_output_that_is_cut_short_diverges_though_nothing_is_known_of_its_gap() -> None:
    row = judged({"p2": TEN[:7]})
    assert (row.verdict, row.differences[0].kind) == ("diverges", "cut short")


def test_unknown_where_the_gap_is_not_told() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    own = [answer(reference, prompt, TEN) for prompt in PROMPTS]
    theirs = [answer(method, prompt, PARTED if prompt == "p1" else TEN) for prompt in PROMPTS]
    row = agreements(plan, own, theirs).rows[1]
    assert (row.verdict, row.undecided, row.bad) == ("unknown", 1, False)
    assert "ask for logprobs" in row.why


def test_few_outputs_none_of_which_is_the_same_are_said_to_be_few() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    for prompts, many in ((PROMPTS[:2], "none of 2 outputs is"), (PROMPTS[:1], "the only output is not")):
        own = [answer(reference, prompt, TEN) for prompt in prompts]
        theirs = [answer(method, prompt, PARTED) for prompt in prompts]
        row = agreements(plan, own, theirs).rows[1]
        assert (row.verdict, row.bad) == ("unknown", False)
        assert row.why.startswith(f"{many} the reference's, too few to tell a fault from near-ties; ")
        assert row.why.endswith("ask for logprobs")


def test_garbage_is_outputs_that_share_nothing() -> None:
    other = {prompt: [7 + n, *range(30, 39)] for n, prompt in enumerate(PROMPTS)}
    assert judged(other).verdict == "garbage"
    assert judged({**other, "p0": TEN}).verdict == "diverges", "one output is right"


def test_differences_at_once_are_no_garbage_where_each_is_a_near_tie() -> None:
    tie = {0: {10: math.log(0.5), 99: math.log(0.45), 77: math.log(0.01)}}
    other = {prompt: [99, *range(30, 39)] for prompt in PROMPTS}
    assert judged(other, tops=tie).verdict == "agrees within ties"


def test_few_or_short_outputs_are_never_called_garbage_by_their_prefix() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    for prompts, ids in ((PROMPTS[: GARBAGE_PROMPTS - 1], TEN), (PROMPTS, TEN[:3])):
        own = [answer(reference, prompt, ids) for prompt in prompts]
        theirs = [answer(method, prompt, [7] * len(ids)) for prompt in prompts]
        assert agreements(plan, own, theirs).rows[1].verdict == "unknown"


def test_garbage_is_outputs_that_say_nothing() -> None:
    row = judged({prompt: [5] * 16 for prompt in PROMPTS[:4]}, flags=[FLAG_DEGENERATE])
    assert row.verdict == "garbage"
    assert "6 of 6" in row.why


def test_outputs_of_other_prompts_are_named() -> None:
    row = judged({}, prompt_digest="fedcba9876543210")
    assert (row.verdict, row.bad) == ("other prompts", True)
    assert "chat template" in row.why


def test_records_that_are_errors_are_counted_and_told() -> None:
    cause = Cause(cls="engine_error", message="the engine was given other token ids")
    row = judged({}, error=cause)
    assert (row.verdict, row.outputs, row.failed) == ("unknown", 0, 6)
    assert "other token ids" in row.why


def test_a_score_past_all_numbers_is_no_perplexity_and_no_crash() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    own, theirs = (
        [answer(p, "p0", [], finish_reason="scored", logprobs=RecordLogprobs(chosen=[least]))]
        for p, least in ((reference, -1.0), (method, -3.4e38))
    )
    row = agreements(plan, own, theirs).rows[1]
    assert (row.verdict, row.perplexity, row.perplexity_ratio) == ("diverges", None, None)


def test_texts_without_token_ids_are_neither_the_same_nor_consistent() -> None:
    plan = a_plan(sizes=(1,), repeats=2)
    records = [answer(point, prompt, [], flags=[FLAG_NO_TOKEN_IDS]) for point in plan.points for prompt in PROMPTS]
    found = agreements(plan, [one for one in records if one.point == plan.points[0].id], records)
    assert [(row.verdict, row.outputs) for row in found.rows] == [("unknown", 0)] * 2
    assert "no token ids" in found.rows[1].why
    assert sum(one.same for one in found.consistency) == 0


def test_agreement_of_a_few_says_how_many_could_not_be_compared() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    own = [answer(reference, prompt, TEN) for prompt in PROMPTS]
    theirs = [answer(method, PROMPTS[0], TEN)]
    theirs += [answer(method, one, [], error=Cause(cls="oom", message="no room")) for one in PROMPTS[1:]]
    row = agreements(plan, own, theirs).rows[1]
    assert (row.verdict, row.why) == ("agrees", "5 of 6 could not be compared")


def test_a_reference_that_prefers_the_others_token_by_far_is_no_near_tie() -> None:
    tops = {3: {13: math.log(0.01), 99: math.log(0.9)}}
    found = apart(said(TEN, logprobs=logprobs(TEN, tops)), said([*TEN[:3], 99, *TEN[4:]]))
    assert found.gap == pytest.approx(-math.log(90), rel=1e-5)
    assert found.tied(0.5) is False


def test_sampled_outputs_are_not_judged_by_their_tokens() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    hot = [
        replace(s, points=tuple(replace(p, config=replace(p.config, temperature=0.7)) for p in s.points))
        for s in plan.starts
    ]
    plan = replace(plan, starts=tuple(hot))
    reference, method = plan.points
    own = [answer(reference, prompt, TEN) for prompt in PROMPTS]
    theirs = [answer(method, prompt, [7] * 10) for prompt in PROMPTS]
    row = agreements(plan, own, theirs).rows[1]
    assert (row.verdict, row.bad) == ("unknown", False)
    assert "sampled" in row.why


def test_perplexity_is_that_of_the_same_tokens() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points

    def score(point: SweepPoint, chosen: list[float | None]) -> Record:
        return answer(point, "p0", [], finish_reason="scored", logprobs=RecordLogprobs(chosen=chosen))

    own, theirs = [score(reference, [-1.0, -3.0, -5.0])], [score(method, [-1.2, -3.2, None])]
    row = agreements(plan, own, theirs).rows[1]
    assert row.perplexity == pytest.approx(math.exp(2.2), rel=1e-5)
    assert row.reference_perplexity == pytest.approx(math.exp(2.0), rel=1e-5)
    assert row.perplexity_ratio == pytest.approx(math.exp(0.2), rel=1e-5)
    assert (row.verdict, row.undecided) == ("unknown", 1), "one token is not told"
    assert "not all log-probabilities are known" in row.why
    tied = agreements(plan, own, [score(method, [-1.2, -3.2, -5.0])]).rows[1]
    assert (tied.verdict, tied.why) == ("agrees within ties", "1 of 1 outputs differ, each by 0.5 nats or less")
    assert (row.prefix, row.first) == (None, None)
    far = agreements(plan, own, [score(method, [-1.0, -4.0, -5.0])]).rows[1]
    assert (far.verdict, far.differences[0].at) == ("diverges", 1)
    same = agreements(plan, own, [score(method, [-1.0001, -3.0, -5.0])]).rows[1]
    assert same.verdict == "agrees"


def test_a_method_is_held_against_itself_over_repeats_and_batch_sizes() -> None:
    plan = a_plan((HF,), sizes=(1, 2), repeats=2)
    shaky = {"hf_sdpa/1/1": "p0", "hf_sdpa/2/0": "p1", "hf_sdpa/2/1": "p1"}
    records = [
        answer(point, prompt, PARTED if shaky.get(point.id) == prompt else TEN)
        for point in plan.points
        for prompt in PROMPTS
    ]
    found = {one.over: one for one in agreements(plan, (), records).consistency}
    counts = {over: (one.outputs, one.prompts, one.same) for over, one in found.items()}
    assert counts == {"repeats": (12, 6, 11), "batch sizes": (12, 6, 9)}
    assert list(consistency_lines(found.values())) == [
        "hf_sdpa against itself over repeats: 11 of 12 outputs of 6 prompts came out the same",
        "hf_sdpa against itself over batch sizes: 9 of 12 outputs of 6 prompts came out the same",
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_each_row_says_what_it_is_held_against(tmp_path: Path, temperature: float) -> None:
    plan = a_plan(sizes=(2,), repeats=2)
    starts = (
        replace(s, points=tuple(replace(p, config=replace(p.config, temperature=temperature)) for p in s.points))
        for s in plan.starts
    )
    plan = replace(plan, starts=tuple(starts))
    journal = begin(tmp_path / "run", plan)
    for number, start in enumerate(plan.starts):
        run_start(journal, start, f"w{number}")
    end(journal)
    view = RunView.load(tmp_path / "run")
    own, other = view.agreements.rows
    assert (own.own, other.own) == (True, False)
    text = "\n".join(markdown(view))
    assert "| hf_sdpa | 2 | its own repeat 1 |" in text
    assert "| vllm_fa | 2 | hf_sdpa batch_size=2, repeat 1 |" in text
    if temperature:
        assert own.why == "sampled, and compared only with its own repeat 1, which says nothing of other engines"
        assert other.why.startswith("sampled, and compared with hf_sdpa: ")
    assert any("the same as in its own repeat 1" in line for line in lines(view, view.agreements))


def test_another_runs_reference_judges_the_own_reference_too() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    reference, method = plan.points
    theirs = [answer(reference, prompt, TEN) for prompt in PROMPTS]
    records = [answer(point, prompt, TEN, prompt_digest="x") for point in (reference, method) for prompt in PROMPTS]
    found = agreements(plan, theirs, records, against=plan)
    assert [row.verdict for row in found.rows] == ["other prompts", "other prompts"]


def test_all_of_it_is_plain_data() -> None:
    plan = a_plan(sizes=(1,), repeats=1)
    records = [answer(point, prompt, TEN, logprobs=logprobs(TEN)) for point in plan.points for prompt in PROMPTS]
    assert msgspec.json.encode(agreements(plan, records, records))
