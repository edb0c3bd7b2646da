"""Images on the worker's side without an engine: who admits them, what is echoed, what each engine is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from protocol.digests import prompt_digest
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids
from workers.backends import sglang_vision, vllm_vision
from workers.backends.admission import NotAdmitted, admit, refusals
from workers.backends.base import Output, assemble

PLACE = 7
PICTURED = PromptInput("p", pack_ids([1, PLACE, 2]), images=(b"i",), widened=pack_ids([1, PLACE, PLACE, PLACE, 2]))
PLAIN = PromptInput("t", pack_ids([1, 2]))


def batch(*prompts: PromptInput, **call: Any) -> PromptBatch:
    given = {"batch_size": 4, "max_new_tokens": 3, "temperature": 0.0, "top_p": 1.0, "seed": 0, "ignore_eos": True}
    return PromptBatch("b", list(prompts), CallParams(**{**given, "stop_token_ids": (), **call}))


def config(engine: Any, folder: Path, **fields: Any) -> BackendConfig:
    return BackendConfig(method=MethodSpec("m", engine), model_path=str(folder), kv_cache_bytes=1, **fields)


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"depth": 1}, "text_config": {}}))
    return tmp_path


def test_a_worker_that_loaded_text_alone_admits_no_image() -> None:
    with pytest.raises(NotAdmitted, match="prompt p: has 1 images, and none may be in a prompt"):
        admit(batch(PLAIN, PICTURED), 100, 100)
    with pytest.raises(NotAdmitted, match="prompt p: has images, and is to be scored"):
        admit(batch(replace(PICTURED, score_from=1), task="score"), 100, 100, 1)
    assert admit(batch(PLAIN, PICTURED), 100, 100, 1) == [[1, 2], [1, PLACE, PLACE, PLACE, 2]]


def test_lengths_are_those_that_the_model_sees() -> None:
    assert admit(batch(PICTURED), 8, 100, 1)
    with pytest.raises(NotAdmitted, match="5 tokens and 3 new ones exceed the limit of 7"):
        admit(batch(PICTURED), 7, 100, 1)


@pytest.mark.parametrize("told", [None, [1, PLACE, PLACE, PLACE, 2]])
def test_what_is_echoed_is_what_the_model_saw_and_the_images(told: list[int] | None) -> None:
    output = Output("p", [3, 4, 5], prompt_token_ids=told)
    [one] = assemble(batch(PICTURED), [output], None, ())
    assert (one.prompt_digest, one.prompt_tokens) == (prompt_digest(PICTURED.widened, (b"i",)), 5)


def test_an_engine_that_widened_in_another_way_is_found_out() -> None:
    [one] = assemble(batch(PICTURED), [Output("p", [3], prompt_token_ids=[1, PLACE, PLACE, 2])], None, ())
    assert one.prompt_digest != prompt_digest(PICTURED.widened, (b"i",))
    assert sglang_vision.miscounted(PICTURED, 5) == ""
    assert "made 4 tokens of a prompt with images that comes to 5" in sglang_vision.miscounted(PICTURED, 4)
    assert "None" in sglang_vision.miscounted(PICTURED, None)
    assert sglang_vision.miscounted(PLAIN, 99) == ""


def test_a_worker_refuses_images_in_another_mode(tmp_path: Path) -> None:
    for engine in ("hf", "vllm", "sglang"):
        assert any(
            "input_mode is text" in one
            for one in refusals(config(engine, tmp_path, input_mode="text", images_per_prompt=1))
        )


def test_engines_of_a_seeing_model_are_told_whether_it_may_see(seeing: Path) -> None:
    assert vllm_vision.engine_args(config("vllm", seeing, input_mode="text")) == {
        "skip_tokenizer_init": False,
        "language_model_only": True,
    }
    told = vllm_vision.engine_args(config("vllm", seeing, input_mode="vision"))
    assert told["limit_mm_per_prompt"] == {"image": 0, "video": 0, "audio": 0}
    assert told["mm_processor_cache_gb"] == 0
    assert sglang_vision.engine_args(config("sglang", seeing, input_mode="text")) == {"enable_multimodal": False}
    assert sglang_vision.engine_args(config("sglang", seeing, input_mode="vision"))["enable_multimodal"]


def test_engines_of_a_model_of_text_are_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert vllm_vision.engine_args(config("vllm", tmp_path, input_mode="text")) == {}
    assert sglang_vision.engine_args(config("sglang", tmp_path, input_mode="text")) == {}


def test_sglang_gets_one_placeholder_for_each_image_and_the_file() -> None:
    assert sglang_vision.sent_ids([PLAIN, PICTURED], [[1, 2], [1, PLACE, PLACE, PLACE, 2]]) == [[1, 2], [1, PLACE, 2]]
    assert sglang_vision.call_args([PLAIN, PICTURED]) == {"image_data": [None, [b"i"]]}
    assert sglang_vision.call_args([PLAIN]) == {}
