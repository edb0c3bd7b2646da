"""Images in the prompts of a sweep: from a file beside the prompts to the record, and what is refused at once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from protocol.digests import prompt_digest
from protocol.specs import pack_ids
from tests.process.sweeping import Bench
from tests.unit.pictures import BLUE, RED, data_url

pytestmark = pytest.mark.usefixtures("nothing_leaked")

PLACE = 255
LINES: list[dict[str, Any]] = [
    {"id": "red", "prompt": "Hue?", "images": ["red.png"]},
    {"id": "blue", "prompt": "Hue?", "images": [data_url(BLUE)]},
    {"id": "text", "prompt": "Hue?"},
    {
        "id": "chat",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": "red.png"},
                    {"type": "text", "text": "or"},
                    {"type": "image_url", "image_url": {"url": "blue.png"}},
                ],
            }
        ],
    },
]


def write(bench: Bench, *lines: dict[str, Any], **changes: Any) -> None:
    folder = bench.folder / "data"
    folder.mkdir()
    (folder / "red.png").write_bytes(RED)
    (folder / "blue.png").write_bytes(BLUE)
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    bench.write(prompts="data/p.jsonl", **changes)


def seen(*parts: str | None) -> bytes:
    """What the scripted model sees: None is an image."""
    return pack_ids(one for part in parts for one in ([PLACE] * 4 if part is None else part.encode()))


def test_images_reach_the_engine_and_its_digest_says_so(bench: Bench) -> None:
    write(bench, *LINES, warmup=1)
    done = bench.run()
    assert done.returncode == 0, done.stderr
    expected = {
        "red": (seen(None, "Hue?"), (RED,)),
        "blue": (seen(None, "Hue?"), (BLUE,)),
        "text": (seen("Hue?"), ()),
        "chat": (seen("user: ", None, "or", None, "\nassistant: "), (RED, BLUE)),
    }
    outputs: dict[str, set[tuple[int, ...]]] = {}
    for record in bench.records:
        ids, images = expected[record["prompt_id"]]
        assert record["prompt_digest"] == prompt_digest(ids, images)
        assert record["prompt_tokens"] == len(ids) // 4, "counted by what the model sees"
        outputs.setdefault(record["prompt_id"], set()).add(tuple(record["token_ids"]))
    assert all(len(found) == 1 for found in outputs.values()), "whatever the batch"
    assert len({next(iter(found)) for found in outputs.values()}) == len(LINES), "another image is another input"
    bench.assert_clean()


def test_the_run_keeps_which_images_there_were_and_not_the_images(bench: Bench) -> None:
    write(bench, *LINES)
    assert bench.run().returncode == 0
    kept = {one["id"]: one for one in map(json.loads, (bench.run_dir / "prompts.jsonl").read_text().splitlines())}
    assert kept["red"]["images"] == [{"sha256": hashlib.sha256(RED).hexdigest(), "bytes": len(RED), "kind": "png"}]
    assert kept["red"]["source"]["images"] == ["red.png"]
    assert "images" not in kept["text"]
    assert data_url(BLUE) not in (bench.run_dir / "prompts.jsonl").read_text()
    plan = json.loads((bench.run_dir / "plan.json").read_text())
    configs = [point["config"] for start in plan["starts"] for point in start["points"]]
    assert {(one["input_mode"], one["images_per_prompt"]) for one in configs} == {("vision", 2)}


def test_another_image_is_another_sweep(bench: Bench) -> None:
    write(bench, *LINES)
    assert bench.run().returncode == 0
    (bench.folder / "data" / "red.png").write_bytes(BLUE)
    resumed = bench.run("--resume")
    assert resumed.returncode == 2
    assert "the prompts changed since this run began" in resumed.stderr


def test_a_prompt_that_fails_keeps_the_digest_of_its_image(bench: Bench) -> None:
    poison = {"name": "poisoned", "base": "scripted", "engine_args": {"fault": {"at": "prompt:blue", "do": "raise"}}}
    write(bench, *LINES, methods=[poison], matrix={"batch_size": [4]})
    assert bench.run().returncode == 1
    [failed] = [one for one in bench.records if one["error"]]
    assert (failed["prompt_id"], failed["prompt_tokens"]) == ("blue", 8)
    assert failed["prompt_digest"] == prompt_digest(seen(None, "Hue?"), (BLUE,))


@pytest.mark.parametrize("model", ["demo", "./model"])
def test_a_model_of_text_is_to_blame_and_not_the_methods_beside_it(bench: Bench, model: str) -> None:
    folder = bench.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.json").write_text("{}")
    write(bench, *LINES, model=model, methods=["hf_rocket", "hf_ngram"], matrix={})
    done = bench.run()
    assert done.returncode == 2
    assert "takes text only, and there are prompts with images: red (data/p.jsonl:1), blue" in done.stderr
    assert "rocket" not in done.stderr
    (folder / "config.json").write_text('{"model_type": "llava", "vision_config": {"depth": 1}}')
    seeing = bench.run("--set", "model=./model")
    assert "hf_rocket: prompts with images go with none of" in seeing.stderr
    assert "takes text only" not in seeing.stderr


@pytest.mark.parametrize(
    ("line", "changes", "says"),
    [
        ({"prompt": "a", "images": ["green.png"]}, {}, "data/p.jsonl:2: images[0]"),
        ({"prompt": "a", "images": ["http://example.org/a.png"]}, {}, "nothing is downloaded"),
        ({"prompt": "a", "images": ["red.png"]}, {"settings": {"input_mode": "text"}}, "red (data/p.jsonl:1)"),
        ({"prompt": "a", "continuation": "b"}, {"sampling": {"task": "score"}}, "prompts with images can't be scored"),
    ],
)
def test_what_can_not_be_shown_is_refused_before_anything_starts(
    bench: Bench, line: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    write(bench, {**LINES[0], "continuation": "c"}, line, **changes)
    done = bench.run()
    assert done.returncode == 2
    assert says in done.stderr
    assert not Path(bench.run_dir).exists()
