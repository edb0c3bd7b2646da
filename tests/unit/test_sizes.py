"""Lengths and KV caches: one value for all engines, and what does not fit is refused."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.config import SweepConfig, parse
from orchestrator.definition import sizes
from orchestrator.definition.inputs import ModelInfo, Prompt, PromptSet
from orchestrator.definition.memory import CacheLayers, ModelShape
from orchestrator.errors import InputError
from orchestrator.plan import Plan, build
from protocol.specs import pack_ids
from tests.unit.plans import MODEL

BASE = "name: a\nmodel: demo\nprompts: p.jsonl\n"


def prompt_set(*lengths: int) -> PromptSet:
    packed = [pack_ids([5] * n) for n in lengths]
    prompts = tuple(Prompt(id=f"p{k}", token_ids=b, digest=f"d{k}", source={}) for k, b in enumerate(packed))
    return PromptSet(digest=f"set-{lengths}", prompts=prompts, templated=False)


PROMPTS = prompt_set(10, 20, 30)


def sweep(extra: str = "", methods: str = "hf_sdpa") -> SweepConfig:
    return parse(f"{BASE}methods: [{methods}]\n{extra}", "s.yaml")


def planned(extra: str = "", methods: str = "hf_sdpa", **more: Any) -> Plan:
    given: dict[str, Any] = {"model": MODEL, "prompts": PROMPTS, "device": "cpu", **more}
    return build(sweep(extra, methods), **given)


def refused(extra: str = "", methods: str = "hf_sdpa", **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(extra, methods, **more)
    return [str(p) for p in caught.value.problems]


def with_continuations(*lengths: tuple[int, int]) -> PromptSet:
    prompts = tuple(
        Prompt(f"p{k}", pack_ids([5] * n), f"d{k}", {}, continuation=pack_ids([6] * more), score_digest=f"s{k}")
        for k, (n, more) in enumerate(lengths)
    )
    return PromptSet(digest="scored", prompts=prompts, templated=False)


def test_to_score_takes_the_continuation_and_one_token_and_no_new_ones() -> None:
    scored = with_continuations((10, 130), (30, 1))
    tasks = "matrix: {task: [generate, score]}\nsampling: {max_new_tokens: 90}\n"
    assert {p.config.max_model_len for p in planned(tasks, prompts=scored).points} == {256}  # 10 + 130 + 1
    alone = "sampling: {max_new_tokens: 900, task: score}\n"
    assert {p.config.max_model_len for p in planned(alone, prompts=scored).points} == {256}
    assert {p.config.max_model_len for p in planned("sampling: {max_new_tokens: 90}\n", prompts=scored).points} == {128}


def test_a_continuation_that_does_not_fit_is_refused_where_it_is_scored_alone() -> None:
    scored = with_continuations((10, 90), (30, 1))
    limit = "settings: {max_model_len: 100}\nsampling: {max_new_tokens: 70}\n"
    assert planned(limit, prompts=scored)
    (only,) = refused(f"{limit}matrix: {{task: [score, generate]}}\n", prompts=scored)
    assert "too long with their continuations and 1 more token for max_model_len of 100: p0 (100 tokens)" in only
    assert planned("settings: {max_model_len: 101}\nsampling: {task: score, max_new_tokens: 500}\n", prompts=scored)


@pytest.mark.parametrize(
    ("method", "heads", "kv_heads", "fit", "odd"),
    [
        ("hf_sdpa", 9, 3, [1, 3], [2, 9]),
        ("vllm_eager", 9, 3, [1, 3, 9], [2, 4]),
        ("sglang_torch_native", 32, 8, [2, 8, 16, 32], [3, 64]),
        ("hf_sdpa", 32, 8, [2, 8], [16, 3]),
    ],
)
def test_heads_that_tensor_parallelism_can_not_share_out_are_refused(
    method: str, heads: int, kv_heads: int, fit: list[int], odd: list[int]
) -> None:
    layers = (CacheLayers("full", 2, 128 * kv_heads, heads=kv_heads), CacheLayers("state", 2, 0))
    model = replace(MODEL, shape=ModelShape(layers, 576, 1536, 49152, {"F32": 4}, 1, attention_heads=heads))
    for size in fit:
        assert planned(f"settings: {{tensor_parallel_size: {size}}}\n", method, model=model)
    for size in odd:
        (only,) = refused(f"settings: {{tensor_parallel_size: {size}}}\n", method, model=model)
        assert f"settings.tensor_parallel_size: {size} does not divide the model's" in only
        assert method in only


def test_prompts_that_no_bucket_holds_are_refused_where_prompts_are_padded() -> None:
    buckets = "matrix: {bucket_lengths: [[16, 20], [64]]}\n"
    (only,) = refused(buckets, "hf_rocket")
    assert "matrix.bucket_lengths: no bucket is longer than 20, and these prompts are: p2 (30 tokens)" in only
    assert planned("matrix: {bucket_lengths: [[16, 30]]}\n", "hf_rocket")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("settings: {bucket_lengths: [64, 1001]}", "no prompt can be so long: 1001 with the model's context of 1000"),
        (
            "settings: {bucket_lengths: [64, 201, 300], max_model_len: 200}",
            "no prompt can be so long: 201, 300 with max_model_len of 200 (200 is the most)",
        ),
        (
            "settings: {max_model_len: 200}\nmatrix: {bucket_lengths: [[64], [64, 999]]}",
            "no prompt can be so long: 999 with max_model_len of 200",
        ),
    ],
)
def test_buckets_longer_than_any_prompt_may_be_are_refused(extra: str, says: str) -> None:
    (only,) = refused(f"{extra}\n", "hf_rocket")
    assert says in only
    assert re.match(r"s\.yaml:[56]: (settings|matrix)\.bucket_lengths: ", only)


def test_buckets_as_long_as_the_limit_are_not_and_nothing_is_said_where_it_is_left_open() -> None:
    assert planned("settings: {bucket_lengths: [64, 1000]}\n", "hf_rocket")
    assert planned("settings: {bucket_lengths: [64, 200], max_model_len: 200}\n", "hf_rocket")
    assert planned("settings: {bucket_lengths: [500]}\n", "hf_rocket")


def test_no_bucket_for_the_largest_batch_is_refused_by_the_method() -> None:
    (only,) = refused("settings: {bucket_batch_sizes: [1, 4]}\nmatrix: {batch_size: [4, 8]}\n", "hf_rocket")
    assert only == "s.yaml:4: methods[0]: hf_rocket: no bucket holds a batch of 8 prompts (at batch_size=8)"


@pytest.mark.parametrize(
    ("extra", "methods", "device", "note"),
    [
        ("", "hf_rocket", "cpu", "hf_rocket pads to batches of 1 and prompts of 64, 96 tokens"),
        (
            "settings: {bucket_batch_sizes: [2, 16, 4], bucket_lengths: [64, 96, 500]}\nsampling: {batch_size: 3}\n",
            "hf_rocket",
            "cpu",
            "hf_rocket pads to batches of 2, 4 and prompts of 64, 96 tokens",
        ),
        ("sampling: {batch_size: 6}\n", "vllm_rocket", "cuda", "vllm_rocket captures graphs for batches of 1, 2, 4, 6"),
    ],
)
def test_the_buckets_that_there_will_be_are_noted(
    extra: str, methods: str, device: Literal["cpu", "cuda"], note: str
) -> None:
    assert note in planned(extra, methods, device=device).notes
    provisional = planned(extra, methods, device=device, lengths_known=False).notes
    assert any(one.startswith(note.split(" of ")[0]) for one in provisional)


def test_one_length_for_all_engines_and_cells() -> None:
    got = planned("matrix: {max_new_tokens: [8, 100], batch_size: [1, 2]}\n", "hf_sdpa, vllm_eager")
    assert {p.config.max_model_len for p in got.points} == {256}  # 30 + 100, in blocks of 128
    assert any("max_model_len 256" in note for note in got.notes)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.integers(1, 300))
def test_the_length_is_enough_and_no_more_than_a_block_too_much(lengths: list[int], new: int) -> None:
    got = planned(f"sampling: {{max_new_tokens: {new}}}\n", prompts=prompt_set(*lengths))
    length = got.points[0].config.max_model_len
    assert length is not None
    assert 0 <= length - (max(lengths) + new) < sizes.BLOCK_TOKENS
    assert length <= 1000
    assert length % sizes.BLOCK_TOKENS == 0 or length == 1000


def test_a_given_length_is_kept() -> None:
    got = planned("matrix: {max_model_len: [null, 300]}\n")
    assert [s.config.max_model_len for s in got.starts] == [128, 300]
    assert refused("matrix: {max_model_len: [null, 128]}\n")[0].startswith("s.yaml:5: matrix: two of its combinations")


def test_every_prompt_that_is_too_long_is_named() -> None:
    long = prompt_set(*[990] * 25, 5)
    (text,) = refused(prompts=long)
    assert "the model's context of 1000" in text
    assert "p0 (990 tokens)" in text
    assert "p19 (990 tokens) and 5 more" in text
    assert "p25" not in text
    (text,) = refused("settings: {max_model_len: 50}\n")
    assert "max_model_len of 50: p1 (20 tokens), p2 (30 tokens)" in text
    assert planned("settings: {max_model_len: 62}\n").points


def test_the_limit_is_met_exactly_or_not_at_all() -> None:
    assert planned("sampling: {max_new_tokens: 970}\n").points[0].config.max_model_len == 1000
    assert "p2 (30 tokens)" in refused("sampling: {max_new_tokens: 971}\n")[0]


def test_longer_than_the_model() -> None:
    assert refused("settings: {max_model_len: 1001}\n") == [
        "s.yaml:5: settings.max_model_len: 1001 is too much: the model's context is 1000 tokens"
    ]
    assert planned("settings: {max_model_len: 1001}\n", model=replace(MODEL, context_length=None)).points


def test_without_lengths_nothing_is_checked_and_nothing_decided() -> None:
    got = planned(prompts=prompt_set(990, 0), lengths_known=False)
    assert (got.points[0].config.max_model_len, got.points[0].config.kv_cache_bytes) == (None, None)
    assert "not tokenised" in got.notes[0]


def kv(extra: str, model: ModelInfo = MODEL, device: Literal["cpu", "cuda"] = "cpu") -> list[int | None]:
    return [p.config.kv_cache_bytes for p in planned(extra, "vllm_default", model=model, device=device).points]


def test_a_cache_for_the_largest_batch_on_a_cpu() -> None:
    big = replace(MODEL, kv_bytes_per_token=1_000_000)
    least, step = sizes.KV_LEAST_BYTES, sizes.KV_STEP_BYTES
    assert kv("") == [least]
    need = (4 * 128 + 128) * 1_000_000
    (one, two) = kv("matrix: {batch_size: [1, 4]}\n", big)
    assert one == two
    assert one is not None
    assert 0 <= one - need < step
    assert one % step == 0
    (wide,) = kv("settings: {dtype: float32}\nsampling: {batch_size: 4}\n", big)
    assert wide is not None
    assert 0 <= wide - 2 * need < step
    assert kv("", replace(MODEL, kv_bytes_per_token=None)) == [least]
    assert kv("", big, "cuda") == [None]


SHAPE = ModelShape((CacheLayers("full", 1, 500, heads=4),), 16, 64, 100, {"BF16": 2}, 1, attention_heads=4)


@pytest.mark.parametrize(("size", "share"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_a_rank_s_cache_is_for_the_heads_that_it_holds(size: int, share: float) -> None:
    big = replace(MODEL, kv_bytes_per_token=10**6, shape=SHAPE)
    (one,) = kv(f"settings: {{tensor_parallel_size: {size}}}\nsampling: {{batch_size: 9}}\n", big)
    assert one is not None
    need = 10 * 128 * 10**6 * share
    assert 0 <= one - need < sizes.KV_STEP_BYTES


def test_with_a_rank_and_two_the_cache_is_for_the_one_that_holds_all() -> None:
    big = replace(MODEL, kv_bytes_per_token=10**6, shape=SHAPE)
    both = kv("matrix: {tensor_parallel_size: [1, 2]}\nsampling: {batch_size: 9}\n", big)
    assert both == kv("sampling: {batch_size: 9}\n", big) * 2


def noted(name: str, extra: str = "", methods: str = "vllm_default", **more: Any) -> list[str]:
    return [note for note in planned(extra, methods, **more).notes if note.startswith(name)]


@pytest.mark.parametrize(
    ("kv_token_bytes", "extra", "says"),
    [
        (1000, "", "(256.0 MiB): the least that is set; the largest batch needs 250.0 KiB at full length"),
        (None, "", "(256.0 MiB): the least that is set; what a token takes is not known"),
        (10**7, "", "(2.4 GiB): the largest batch needs 2.4 GiB at full length"),
        (1000, "settings: {tensor_parallel_size: 2}\n", "(256.0 MiB on each rank): the least that is set; "),
    ],
)
def test_why_the_cache_has_its_size(kv_token_bytes: int | None, extra: str, says: str) -> None:
    (note,) = noted("kv_cache_bytes", extra, model=replace(MODEL, kv_bytes_per_token=kv_token_bytes))
    assert says in note


def test_a_cache_that_no_method_heeds_is_no_note_and_what_was_decided_is_known() -> None:
    assert noted("kv_cache_bytes", methods="hf_sdpa") == []
    assert planned().chosen == {"max_model_len": 128, "kv_cache_bytes": sizes.KV_LEAST_BYTES}
    assert planned("settings: {max_model_len: 99, kv_cache_bytes: 900000}\n").chosen == {}


def test_a_length_is_noted_with_what_is_needed() -> None:
    assert noted("max_model_len") == [
        "max_model_len 128: 62 needed for the longest prompt and its new tokens, in whole blocks of 128"
    ]
    (note,) = noted("max_model_len", model=replace(MODEL, context_length=100))
    assert note.endswith("62 needed for the longest prompt and its new tokens")


def test_a_given_cache_is_kept_unless_one_sequence_does_not_fit() -> None:
    assert kv("settings: {kv_cache_bytes: 128000}\n") == [128000]
    (text,) = refused("settings: {kv_cache_bytes: 127999}\n", "vllm_default")
    assert "127999 can't hold one sequence of max_model_len 128, which takes 128000" in text


def test_a_cache_that_holds_one_sequence_by_its_windows_is_not_refused() -> None:
    """Engines that know of windows run with it; 1000 bytes a token, a quarter of them in layers that keep all."""
    layers = (CacheLayers("full", 1, 10, heads=1), CacheLayers("sliding", 3, 10, heads=1, window=64))
    model = replace(MODEL, shape=ModelShape(layers, 576, 1536, 49152, {"F32": 4}, 1))
    need = 1000 * (128 + 3 * 64) // 4
    given = "settings: {max_model_len: 128, kv_cache_bytes: %d}\n"
    assert kv(given % need, model=model) == [need]
    (text,) = refused(given % (need - 1), "vllm_default", model=model)
    assert f"{need - 1} can't hold one sequence of max_model_len 128, which takes {need}" in text


@pytest.mark.parametrize(
    ("dtypes", "need"),
    [
        (["fp8"], 64_000),
        (["auto"], 128_000),
        (["fp8", "auto"], 128_000),
        (["fp8_e5m2", "fp8"], 64_000),
        (["float32"], 256_000),
        (["of another engine"], 0),
    ],
)
def test_a_cache_of_another_width_is_held_against_that(dtypes: list[str], need: int) -> None:
    methods = ", ".join(
        f"{{name: m{n}, base: vllm_default, engine_args: {{kv_cache_dtype: {one}}}}}" for n, one in enumerate(dtypes)
    )
    given = "settings: {max_model_len: 128, kv_cache_bytes: %d}\n"
    half = replace(MODEL, dtype="bfloat16")
    assert planned(given % max(need, 1), methods, model=half)
    if need:
        (text,) = refused(given % (need - 1), methods, model=half)
        assert text.endswith(f"which takes {need} ({need} or more)")


def test_prompts_too_long_are_named_with_their_line() -> None:
    prompts = PromptSet("d", (Prompt("a", pack_ids([5] * 999), "d", {}, "p.jsonl:7"),), templated=False)
    (text,) = refused(prompts=prompts)
    assert text.startswith("s.yaml:3: prompts: ")
    assert "a (999 tokens, p.jsonl:7)" in text


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ("matrix:\n  max_model_len:\n    - 1001\n", "s.yaml:6: matrix.max_model_len: "),
        ("settings:\n  kv_cache_bytes: 1\n", "s.yaml:6: settings.kv_cache_bytes: "),
    ],
)
def test_what_does_not_fit_is_placed_where_the_file_gives_it(extra: str, place: str) -> None:
    assert refused(extra)[0].startswith(place)
