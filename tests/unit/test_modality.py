"""Text or vision: decided once, by the model's config, and what of a sweep it excludes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.config import parse
from orchestrator.definition import modality, sizes
from orchestrator.definition.inputs import ModelInfo, Prompt, PromptSet
from orchestrator.errors import InputError
from orchestrator.plan import Plan, build
from protocol.specs import pack_ids

TEXT = ModelInfo("small", "/models/small", "m" * 16, 1000, (2,), 1000, "bfloat16", vision=False)
SEEING = replace(TEXT, vision=True)


def prompt(name: str, images: tuple[bytes, ...] = (), widened: int = 0) -> Prompt:
    return Prompt(
        name, pack_ids([5] * 10), f"d-{name}", {}, f"p.jsonl:{name}", images=images, widened=pack_ids([5] * widened)
    )


PLAIN = prompt("1")
PICTURED = prompt("2", (b"i", b"j"), 300)


def planned(model: ModelInfo, *prompts: Prompt, methods: str = "hf_sdpa", extra: str = "") -> Plan:
    config = parse(f"name: a\nmodel: demo\nprompts: p.jsonl\nmethods: [{methods}]\n{extra}", "s.yaml")
    return build(config, model, PromptSet("set", prompts, False), "cpu")


def refused(*args: Any, **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        planned(*args, **more)
    return [str(p) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("model", "asked", "mode"),
    [
        (TEXT, "auto", "text"),
        (TEXT, "text", "text"),
        (SEEING, "auto", "vision"),
        (SEEING, "text", "text"),
        (SEEING, "vision", "vision"),
        (replace(TEXT, vision=None), "auto", "auto"),
    ],
)
def test_the_mode_is_that_of_the_model_unless_it_is_asked_for(model: ModelInfo, asked: str, mode: str) -> None:
    found = planned(model, PLAIN, extra=f"settings: {{input_mode: {asked}}}")
    assert {point.config.input_mode for point in found.points} == {mode}
    assert modality.resolved({}, model)["input_mode"] == modality.natural(model)


def test_every_engine_is_told_the_same_mode_and_the_most_images() -> None:
    found = planned(SEEING, PLAIN, PICTURED, methods="hf_sdpa, vllm_eager")
    assert {(p.config.input_mode, p.config.images_per_prompt) for p in found.points} == {("vision", 2)}
    assert planned(SEEING, PLAIN).points[0].config.images_per_prompt == 0


def test_lengths_are_counted_by_what_the_model_sees() -> None:
    length = planned(SEEING, PICTURED).points[0].config.max_model_len
    assert length == -(-(300 + 32) // sizes.BLOCK_TOKENS) * sizes.BLOCK_TOKENS
    assert "2 (1200 tokens, p.jsonl:2)" in refused(SEEING, prompt("2", (b"i",), 1200))[0]


def test_a_mode_that_is_the_models_own_is_the_same_point_whether_asked_for_or_not() -> None:
    def ids(model: ModelInfo, asked: str) -> list[str]:
        return [point.id for point in planned(model, PLAIN, extra=f"settings: {{input_mode: {asked}}}").points]

    assert ids(TEXT, "auto") == ids(TEXT, "text") == ids(SEEING, "vision") == ids(SEEING, "auto") != ids(SEEING, "text")


def test_a_mode_and_what_it_comes_to_are_no_two_points() -> None:
    assert any(
        "come to the same settings" in one
        for one in refused(SEEING, PLAIN, extra="matrix: {input_mode: [auto, vision]}")
    )


def test_vision_needs_a_vision_language_model() -> None:
    [problem] = refused(TEXT, PLAIN, extra="settings: {input_mode: vision}")
    assert "settings.input_mode: vision, and small is no vision-language model" in problem


def test_images_for_a_model_or_a_mode_of_text_are_refused_with_their_place() -> None:
    [problem] = refused(TEXT, PLAIN, PICTURED)
    assert "small takes text only, and there are prompts with images: 2 (p.jsonl:2)" in problem
    [problem] = refused(SEEING, PLAIN, PICTURED, extra="settings: {input_mode: text}")
    assert "settings.input_mode: text, and there are prompts with images: 2 (p.jsonl:2)" in problem
    many = [prompt(str(n), (b"i",), 20) for n in range(30)]
    assert "9 (p.jsonl:9) and 20 more" in refused(TEXT, *many)[0]


def test_methods_that_take_no_images_are_refused_by_name() -> None:
    names = ["hf_sdpa", "hf_paged", "hf_rocket", "hf_ngram", "vllm_eager"]
    found = refused(SEEING, PICTURED, methods=", ".join(names))
    unfit = {name for name in names if any(f"{name}: prompts with images" in problem for problem in found)}
    assert unfit == {"hf_paged", "hf_rocket", "hf_ngram"}
    scored = replace(PICTURED, continuation=pack_ids([1]))
    assert any("can't be scored" in one for one in refused(SEEING, scored, extra="sampling: {task: score}"))


@pytest.mark.parametrize(
    ("model", "cell", "count"),
    [
        (SEEING, {}, 3),
        (SEEING, {"input_mode": "text"}, 0),
        (TEXT, {}, 0),
        (replace(TEXT, vision=None), {}, 3),
        (replace(TEXT, vision=None), {"input_mode": "text"}, 0),
    ],
)
def test_where_only_text_goes_in_no_method_is_asked_for_images(
    model: ModelInfo, cell: dict[str, Any], count: int
) -> None:
    assert modality.images_of(cell, model, 3) == count


def test_a_batch_of_token_ids_that_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modality, "MAX_MESSAGE_BYTES", modality.ROOM_BYTES + 2 * sizes.MIB)
    many = [prompt(str(n), (), sizes.MIB // 4) for n in range(4)]
    extra = "settings: {max_model_len: 300000}\n"
    model = replace(TEXT, context_length=None)
    assert planned(model, *many, extra=f"{extra}sampling: {{batch_size: 1}}").points
    [problem] = refused(model, *many, extra=f"{extra}matrix: {{batch_size: [1, 3]}}")
    assert "batch_size: 3: a batch has 3 MiB of token ids, and 2 MiB can be sent" in problem


def test_a_batch_of_images_that_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modality, "MAX_MESSAGE_BYTES", modality.ROOM_BYTES + 2 * sizes.MIB)
    many = [prompt(str(n), (bytes(sizes.MIB),), 20) for n in range(4)]
    assert planned(SEEING, *many, extra="sampling: {batch_size: 2}").points
    [problem] = refused(SEEING, *many, extra="matrix: {batch_size: [1, 3]}")
    assert "batch_size: 3: a batch has 3 MiB of images, and 2 MiB can be sent" in problem
