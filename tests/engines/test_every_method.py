"""Every method that a machine without a GPU can run, in one sweep; and that they all give the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.events import WorkerReleased
from orchestrator.methods import builtin, misfits, refuse
from protocol.records import RuntimeMetadata
from protocol.specs import BackendConfig
from tests.engines.conftest import FindEnv
from tests.process.sweeping import Bench

# Whole sweeps over many engine starts, 15 s each where nothing else runs.
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked"), pytest.mark.timeout(1800)]

PATIENCE_S = 1800
EXAMPLE = Path(__file__).parents[2] / "examples" / "every-cpu-method.yaml"
#: Of a near-tie in float32; rounding in another order moves logits by some 1e-5.
TIE_NATS = 0.01
FULL = os.environ.get("AIRLOCK_TEST_DEPTH") == "full"


@pytest.fixture
def bench(tmp_path: Path, find_env: FindEnv, home: str) -> Bench:
    for engine in ("hf", "vllm", "sglang"):
        find_env(engine)
    made = Bench(tmp_path)
    made.env["AIRLOCK_HOME"] = home
    return made


def named() -> list[str]:
    return list(YAML(typ="safe").load(EXAMPLE)["methods"])


def run(bench: Bench, **sections: Any) -> None:
    bench.write(**{"limits": {}, "warmup": 1, "settings": {"dtype": "float32"}, **sections})
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def agreement(bench: Bench) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "orchestrator", "agree", str(bench.run_dir), "--json"]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def assert_the_same(rows: list[dict[str, Any]], outputs: int) -> None:
    """Each output is the reference's, or leaves it where that is all but undecided itself."""
    for row in rows:
        if row["verdict"] != "reference":
            assert row["outputs"] == outputs
            assert row["verdict"] in ("agrees", "agrees within ties"), (row["method"], row["why"])
            assert all(one["gap"] <= TIE_NATS for one in row["differences"]), row


def test_the_example_names_every_method_that_can_run_here() -> None:
    configs = {name: BackendConfig(method=method, model_path="m") for name, method in builtin().items()}
    able = {name for name, config in configs.items() if not refuse(config.method, "cpu") and not misfits(config)}
    assert set(named()) == able - {"scripted"}


def test_every_method_runs_in_one_sweep_and_answers_alike(bench: Bench, model: str) -> None:
    prompts = ["What is the capital of France?", "Name a colour.", "one two three one two three one two"]
    run(
        bench,
        model=model,
        prompts=prompts,
        methods=named(),
        settings={"dtype": "float32", "bucket_lengths": [64]},
        sampling={"batch_size": 1, "max_new_tokens": 12},
        matrix={},
    )
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    assert set(bench.outcomes()) == set(named())
    assert_the_same(agreement(bench), len(prompts))
    told = [event.metadata for event in bench.events if isinstance(event, WorkerReleased) and event.metadata]
    assert len(told) == len(named())
    for metadata in told:
        check_told(metadata)
    bench.assert_clean()


def check_told(metadata: RuntimeMetadata) -> None:
    """By the engine's own word, under names that mean the same for all."""
    assert metadata.attention_backend
    assert metadata.dtype == "float32"
    assert metadata.settings.batching in ("static", "continuous")
    assert metadata.settings.prefix_caching is False
    assert metadata.settings.eos == "stop"
    assert metadata.load.total_s > 0
    told = metadata.settings
    if told.speculation not in (None, "none"):
        assert (told.ngram_min, told.ngram_max, told.draft_tokens) == (1, 3, 3)


def test_three_engines_batched_and_single_agree_on_64_prompts(bench: Bench, model: str) -> None:
    texts = [f"What is {a} plus {b}?" for a in range(3, 11) for b in range(4, 8)]
    texts += [f"Name {n} things that begin with the letter {letter}." for n in (2, 3) for letter in "ABCDEFGHIKLMNOPR"]
    assert len(texts) == 64
    run(
        bench,
        model=model,
        prompts=texts,
        methods=["hf_sdpa", "vllm_eager", "vllm_ngram", "sglang_torch_native"],
        sampling={"max_new_tokens": 32 if FULL else 8, "logprobs": 2},
        matrix={"batch_size": [1, 16]},
    )
    assert_the_same(agreement(bench), len(texts))
    bench.assert_clean()
