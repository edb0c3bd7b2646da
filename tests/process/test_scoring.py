"""A sweep that generates and scores: the same prompts, with and without what is to be scored."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from orchestrator.events import WorkerLaunched
from protocol.specs import pack_ids
from tests.process.sweeping import Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

PAIRS = [("One two", " three"), ("A", "b c"), ("Six", " seven eight"), ("Ten", "!")]
PROMPTS = [{"id": f"p{n}", "prompt": p, "continuation": c} for n, (p, c) in enumerate(PAIRS)]


def digest(text: str) -> str:
    return hashlib.sha256(pack_ids(text.encode())).hexdigest()[:16]


def by_task(bench: Bench) -> dict[str, dict[str, dict[str, Any]]]:
    """Records by task, then by prompt."""
    plan = json.loads((bench.run_dir / "plan.json").read_text())
    tasks = {p["id"]: p["config"]["task"] for start in plan["starts"] for p in start["points"]}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in bench.records:
        found.setdefault(tasks[record["point"]], {})[record["prompt_id"]] = record
    return found


def test_one_worker_generates_and_scores_and_only_scoring_sends_the_continuation(bench: Bench) -> None:
    bench.write(
        prompts=PROMPTS, matrix={"task": ["generate", "score"]}, sampling={"batch_size": 3, "logprobs": 2}, warmup=1
    )
    done = bench.run()
    assert done.returncode == 0, done.stderr
    found = by_task(bench)
    for number, (prompt, continuation) in enumerate(PAIRS):
        made, scored = found["generate"][f"p{number}"], found["score"][f"p{number}"]
        assert (made["prompt_tokens"], made["prompt_digest"]) == (len(prompt), digest(prompt))
        assert made["generated_tokens"] == len(made["token_ids"]) == len(made["logprobs"]["chosen"]) > 0
        both = prompt + continuation
        assert (scored["prompt_tokens"], scored["prompt_digest"]) == (len(both), digest(both))
        assert (scored["finish_reason"], scored["token_ids"], scored["generated_tokens"]) == ("scored", [], 0)
        assert [ids[0] for ids in scored["logprobs"]["top_ids"]] == list(continuation.encode())
    assert len([event for event in bench.events if isinstance(event, WorkerLaunched)]) == 1
    bench.assert_clean()


def test_what_fails_while_it_scores_has_a_record_of_what_was_sent(bench: Bench) -> None:
    """Convicted alone: its record tells of prompt and continuation, as those of its neighbours do."""
    poison = {"name": "poisoned", "base": "scripted", "engine_args": {"fault": {"at": "prompt:p1", "do": "raise"}}}
    bench.write(prompts=PROMPTS, methods=[poison], matrix={"task": ["score"]}, sampling={"batch_size": 4})
    assert bench.run().returncode == 1
    found = by_task(bench)["score"]
    assert [name for name in sorted(found) if found[name]["error"]] == ["p1"]
    assert (found["p1"]["prompt_tokens"], found["p1"]["prompt_digest"]) == (len("Ab c"), digest("Ab c"))
    assert all(found[f"p{n}"]["logprobs"]["top_ids"] == [] for n in (0, 2, 3))


@pytest.mark.parametrize("key", ["sampling", "matrix"])
def test_prompts_without_a_continuation_can_t_be_scored(bench: Bench, key: str) -> None:
    more: dict[str, Any] = {"matrix": {"task": ["generate", "score"]}} if key == "matrix" else {}
    sampling = {"sampling": {"task": "score"}} if key == "sampling" else {}
    bench.write(prompts=[*PROMPTS, "bare", {"prompt": "x", "id": "also"}], **{**more, **sampling})
    done = bench.run()
    assert done.returncode == 2
    assert f"{key}.task: score needs a continuation with every prompt, and 2 of 6 have none: 4 (" in done.stderr
    assert '"continuation": …' in done.stderr
    assert not bench.run_dir.exists()


def test_a_continuation_counts_for_the_length_of_what_is_scored_alone(bench: Bench) -> None:
    settings = {"max_model_len": 40}
    long = [{"id": "a", "prompt": "x" * 20, "continuation": "y" * 20}]
    bench.write(prompts=long, settings=settings, matrix={"task": ["generate"], "max_new_tokens": [20]})
    assert bench.run().returncode == 0
    bench.write(prompts=long, settings=settings, matrix={"task": ["score"], "max_new_tokens": [20]})
    done = bench.run("--run-dir", str(bench.folder / "other"))
    assert done.returncode == 2
    assert "too long with their continuations and 1 more token for max_model_len of 40: a (40 tokens" in done.stderr
