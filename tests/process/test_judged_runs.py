"""Whole sweeps whose answers are judged: the scripted engine says the same to the same prompt, always."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.definition.inputs import SCRIPTED
from protocol.specs import BackendConfig, CallParams, MethodSpec, pack_ids
from tests.process.sweeping import NO_SECOND_TRY, PATIENCE_S, Bench
from workers.backends.scripted_backend import answer_ids

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NEW = 32
NAMES = [f"prompt {n}" for n in range(6)]
SALTED = {"name": "salted", "base": "scripted", "engine_args": {"salt": "x"}}
FAILING = {"name": "failing", "base": "scripted", "engine_args": {"fault": {"at": "prompt:p1", "do": "raise"}}}


def says(prompt: str) -> tuple[str, bool]:
    """What the scripted engine answers, and whether it is cut at the most new tokens."""
    config = BackendConfig(method=MethodSpec("scripted", "scripted"), model_path="scripted", max_new_tokens=NEW)
    call = CallParams.of(replace(config, stop_token_ids=SCRIPTED.stop_token_ids))
    ids = answer_ids(pack_ids(prompt.encode()), call)
    return bytes(one for one in ids if one).decode(), ids[-1] != 0


def prompts(right: int) -> list[dict[str, Any]]:
    """So many expect what the scripted engine says; the last one expects nothing."""
    wanted = [says(name)[0].strip().upper() if n < right else "something else" for n, name in enumerate(NAMES[:-1])]
    given = [
        {"id": f"p{n}", "prompt": name, "expected": one}
        for n, (name, one) in enumerate(zip(NAMES, wanted, strict=False))
    ]
    return [*given, {"id": "p5", "prompt": NAMES[-1]}]


def ask(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", *args]
    return subprocess.run(
        command, env=bench.env, cwd=bench.folder, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


def accuracies(bench: Bench, *args: str) -> dict[str, dict[str, Any]]:
    """By method."""
    done = ask(bench, "report", str(bench.run_dir), "--json", *args)
    assert done.returncode == 0, done.stderr
    return {row["method"]: row["accuracy"] for row in json.loads(done.stdout)["rows"]}


@pytest.fixture
def judged(bench: Bench) -> Bench:
    bench.write(
        prompts=prompts(right=3),
        methods=["scripted", SALTED],
        matrix={"batch_size": [4]},
        sampling={"max_new_tokens": NEW},
        repeats=2,
        answers={"judge": ["exact", "contains"]},
    )
    return bench


def test_a_runs_answers_are_counted(judged: Bench) -> None:
    done = judged.run()
    assert done.returncode == 0, done.stderr
    assert "60.0 % (" in done.stdout
    found = accuracies(judged)
    ours, salted = found["scripted"], found["salted"]
    cut = 2 * sum(says(name)[1] for name in NAMES[:-1])
    assert (ours["value"], ours["correct"], ours["judged"], ours["prompts"]) == (0.6, 6, 10, 5)
    assert (ours["truncated"], ours["unjudged"], ours["failed"], ours["missing"]) == (cut, 2, 0, 0)
    assert (salted["value"], salted["correct"]) == (0.0, 0)
    beside = salted["versus_reference"]
    assert (beside["value"], beside["better"], beside["worse"], beside["p"]) == (-0.6, 0, 3, pytest.approx(0.25))
    assert beside["verdict"] == "not distinguishable"
    told = ask(judged, "report", str(judged.run_dir)).stdout.partition("\n## Answers\n")[2].partition("\n## ")[0]
    assert "| scripted | 4 | exact | 60.0 % | 23.1 to 88.2 | 6 | 10 | 5 |" in told.replace(" !", "")
    assert "prompt p3: expected 'something else'" in told


def test_the_plan_tells_what_is_judged(judged: Bench) -> None:
    done = ask(judged, "plan", "sweep.yaml")
    assert "answers are judged by exact, contains: 5 of 6 prompts" in done.stdout
    assert "without `expected`, and so not judged: p5" in done.stdout


def test_a_prompt_that_failed_answered_wrong(bench: Bench) -> None:
    bench.write(
        prompts=prompts(right=5),
        methods=["scripted", FAILING],
        matrix={"batch_size": [1]},
        sampling={"max_new_tokens": NEW},
        policies=NO_SECOND_TRY,
        answers={"judge": "exact"},
    )
    assert bench.run().returncode == 1
    found = accuracies(bench)["failing"]
    assert (found["correct"], found["judged"], found["failed"], found["value"]) == (4, 5, 1, 0.8)


def test_a_finished_run_is_judged_by_other_rules_without_running_again(judged: Bench) -> None:
    judged.write(prompts=prompts(right=3), sampling={"max_new_tokens": NEW}, matrix={"batch_size": [4]})
    done = judged.run()
    assert done.returncode == 0, done.stderr
    assert "nothing judges the outputs by it" in ask(judged, "plan", "sweep.yaml").stdout
    assert accuracies(judged) == {"scripted": None}
    before = (judged.run_dir / "journal.jsonl").read_bytes()
    (judged.folder / "answers.yaml").write_text("answers: {judge: exact}\n")
    assert accuracies(judged, "--answers", "answers.yaml")["scripted"]["value"] == 0.6
    assert (judged.run_dir / "journal.jsonl").read_bytes() == before


def test_what_can_not_be_judged_is_told_before_anything_starts(bench: Bench) -> None:
    lines = [{"prompt": "2 + 3 =", "expected": 5}, {"prompt": "the capital", "expected": "Paris"}]
    (bench.folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    bench.write(prompts="prompts.jsonl", answers={"judge": "numeric", "threshold": 2, "pattern": "x"})
    done = bench.run()
    assert done.returncode == 2
    assert "answers.threshold: must be a number" in done.stderr
    bench.write(prompts="prompts.jsonl", answers={"judge": "numeric"})
    done = bench.run()
    assert done.returncode == 2
    assert "prompts.jsonl:2" in done.stderr
    assert "numeric needs a number as its `expected`" in done.stderr
    assert not bench.run_dir.exists()
