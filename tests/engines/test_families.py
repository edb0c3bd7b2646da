"""Model families beside dense text, each in one sweep over all three engines: vision-language, mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import WorkerReady
from tests.engines.conftest import FindEnv
from tests.process.sweeping import Bench
from tests.unit.pictures import BLUE, RED, data_url

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked")]

PATIENCE_S = 900
METHODS = ["hf_sdpa", "vllm_eager", "sglang_torch_native"]
QUESTION = "What colour is it?"
#: Of other sizes, so that the rows of a batch are not equally long.
PICTURED: list[dict[str, Any]] = [
    {"id": "red", "prompt": QUESTION, "images": ["red.png"]},
    {"id": "blue", "prompt": QUESTION, "images": ["blue.png"]},
    {"id": "plain", "prompt": QUESTION},
    {
        "id": "both",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": "red.png"},
                    {"type": "text", "text": "and"},
                    {"type": "image_url", "image_url": {"url": data_url(BLUE)}},
                ],
            }
        ],
    },
]


@pytest.fixture
def bench(tmp_path: Path, find_env: FindEnv, home: str) -> Bench:
    for engine in ("hf", "vllm", "sglang"):
        find_env(engine)
    found = Bench(tmp_path)
    found.env["AIRLOCK_HOME"] = home
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    return found


def swept(bench: Bench, model: str, **changes: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Records by method and prompt, of a sweep in which nothing fails."""
    common = {
        "model": model,
        "methods": METHODS,
        "settings": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 12, "ignore_eos": True},
        "limits": {},
    }
    bench.write(**{**common, **changes})
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "end of sequence" not in done.stdout + done.stderr, "all of them were told to go on to the end"
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in bench.records:
        found.setdefault(record["method"], {})[record["prompt_id"]] = record
    bench.assert_clean()
    return found


def ready(bench: Bench) -> dict[str, Any]:
    return {event.metadata.engine: event.metadata for event in bench.events if isinstance(event, WorkerReady)}


def test_three_engines_see_the_same_images(bench: Bench, tiny_vision: str) -> None:
    """In float32, where each says the same of one image, and another thing of another one."""
    found = swept(bench, tiny_vision, prompts=PICTURED, matrix={"batch_size": [4]})
    plan = json.loads((bench.run_dir / "plan.json").read_text())
    assert {p["config"]["input_mode"] for s in plan["starts"] for p in s["points"]} == {"vision"}
    assert set(found) == set(METHODS)
    prompts = {one["id"]: one for one in map(json.loads, (bench.run_dir / "prompts.jsonl").read_text().splitlines())}
    for name, prompt in prompts.items():
        of_methods = [found[method][name] for method in METHODS]
        assert {tuple(one["token_ids"]) for one in of_methods} == {tuple(of_methods[0]["token_ids"])}, name
        assert {one["prompt_digest"] for one in of_methods} == {prompt["digest"]}
        assert {one["prompt_tokens"] for one in of_methods} == {of_methods[0]["prompt_tokens"]}
        widened = of_methods[0]["prompt_tokens"] - len(prompt["token_ids"])
        assert (widened > 0) == ("images" in prompt)
    outputs = {tuple(one["token_ids"]) for one in found["hf_sdpa"].values()}
    assert len(outputs) == len(PICTURED), "the images went in"
    assert {one.settings.image_processor for one in ready(bench).values()} == {"PaddleOCRVLImageProcessorPil"}


def test_a_vision_language_model_on_text_alone(bench: Bench, tiny_vision: str) -> None:
    settings = {"dtype": "float32", "input_mode": "text"}
    found = swept(bench, tiny_vision, prompts=[QUESTION, "Why?"], settings=settings, matrix={"batch_size": [2]})
    for name in ("0", "1"):
        assert len({tuple(found[method][name]["token_ids"]) for method in METHODS}) == 1
    assert {one.settings.image_processor for one in ready(bench).values()} == {None}


def test_images_for_a_model_of_text_are_refused_before_a_worker_starts(bench: Bench, model: str) -> None:
    bench.write(model=model, methods=METHODS, prompts=[QUESTION, *PICTURED], limits={})
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 2
    assert "takes text only, and there are prompts with images: red (" in done.stderr
    assert not bench.run_dir.exists()


def test_what_a_processor_can_not_take_is_refused_with_its_prompt(bench: Bench, tiny_vision: str) -> None:
    """A file whose header alone is that of an image, and a placeholder that somebody typed."""
    broken = data_url(RED[:60])
    lines = [{"prompt": "a", "images": [broken]}, "<|IMAGE_PLACEHOLDER|>", {"prompt": "a", "images": ["red.png"]}]
    bench.write(model=tiny_vision, methods=["hf_sdpa"], prompts=lines, limits={})
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 2
    assert "prompt 0: an image can't be decoded" in done.stderr
    assert "prompt 1: has no image, and its text has 1 place for one (<|IMAGE_PLACEHOLDER|>)" in done.stderr
    assert "prompt 2" not in done.stderr


def test_three_engines_run_a_mixture_of_experts(bench: Bench, tiny_moe: str) -> None:
    settings = {"dtype": "float32", "expert_load": True}
    found = swept(bench, tiny_moe, prompts=[QUESTION, "Name a colour."], settings=settings, matrix={"batch_size": [2]})
    for name in ("0", "1"):
        assert len({tuple(found[method][name]["token_ids"]) for method in METHODS}) == 1, name
