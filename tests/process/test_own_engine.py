"""examples/own_engine.py: an adapter of one's own, in a worker of one's own, in a sweep."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from orchestrator.events import WorkerReady
from tests.process.sweeping import NO_SECOND_TRY, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

REPO = Path(__file__).resolve().parents[2]
ENGINE = REPO / "examples" / "own_engine.py"
PARROT = {"name": "parrot", "base": "scripted", "worker": [sys.executable, str(ENGINE)]}


@pytest.fixture(autouse=True)
def importable(bench: Bench) -> None:
    """As where Airlock is installed in the engine's own environment."""
    bench.env["PYTHONPATH"] = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def test_it_runs_beside_others_and_is_taken_down_as_they_are(bench: Bench) -> None:
    prompts = [{"id": "ab", "prompt": "abcab"}, {"id": "no", "prompt": "xyz"}]
    bench.write(methods=["scripted", PARROT], prompts=prompts, sampling={"max_new_tokens": 4})
    done = bench.run()
    assert done.returncode == 0, done.stderr
    texts = {(r["method"], r["prompt_id"]): r["text"] for r in bench.records}
    assert (texts["parrot", "ab"], texts["parrot", "no"]) == ("cabc", "xyzx")
    assert ("scripted", "ab") in texts
    assert all(len(r["itl_s"]) == 3 for r in bench.records if r["method"] == "parrot")
    bench.assert_clean()


def test_what_it_says_of_itself_is_in_the_record(bench: Bench) -> None:
    bench.write(methods=[PARROT])
    assert bench.run().returncode == 0
    (found,) = [event.metadata for event in bench.events if isinstance(event, WorkerReady)]
    assert (found.engine, found.engine_version, found.settings.batching) == ("parrot", "1.0", "static")


def test_what_it_can_not_do_fails_its_points_and_no_others(bench: Bench) -> None:
    told = {**PARROT, "name": "told", "engine_args": {"louder": 1}}
    prompts = [{"prompt": "a", "continuation": "b"}]
    bench.write(
        methods=[told, PARROT, "scripted"],
        prompts=prompts,
        sampling={"task": "score"},
        matrix={},
        policies=NO_SECOND_TRY,
    )
    assert bench.run().returncode == 1
    causes = {name: end.cause for name, (end,) in bench.outcomes().items()}
    classes = {name: cause and (cause.cls, cause.message) for name, cause in causes.items()}
    assert classes == {
        "told": ("config", "ValueError: Parrot takes no arguments: louder"),
        "parrot": ("engine_error", "NotImplementedError: Parrot generates text out of text"),
        "scripted": None,
    }
    bench.assert_clean()


def test_it_refuses_to_sample(bench: Bench) -> None:
    bench.write(methods=[PARROT], sampling={"temperature": 0.5}, matrix={}, policies=NO_SECOND_TRY)
    assert bench.run().returncode == 1
    (end,) = bench.outcomes()["parrot"]
    assert end.cause
    assert end.cause.message == "NotImplementedError: Parrot has no probabilities: no temperature, no logprobs"


def test_the_document_shows_what_the_example_does() -> None:
    source, shown = ENGINE.read_text(), (REPO / "docs" / "adding-an-engine.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
    assert blocks
    for block in blocks:
        for line in block.splitlines():
            assert line.strip() in ("", "...") or line in source, line
