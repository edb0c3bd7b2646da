"""Real outputs against a float32 reference: bfloat16 differs by near-ties, a wrong attention scale by much more."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import FindEnv
from tests.process.sweeping import Bench

pytestmark = pytest.mark.engine

PATIENCE_S = 600
TEXTS = ["What is the capital of France?", "Name a colour.", "Count to three.", "Say hello.", "Why is the sky blue?"]
PROMPTS = [
    {"id": f"p{n}", "prompt": text, "continuation": " The answer to this is easy to give."}
    for n, text in enumerate(TEXTS)
]
#: Found by Python before the worker begins; what a broken kernel does, without one.
WRONG_SCALE = """
import torch.nn.functional as functional

right = functional.scaled_dot_product_attention


def wrong(*args, scale=None, **options):
    return right(*args, scale=None if scale is None else 2 * scale, **options)


functional.scaled_dot_product_attention = wrong
"""


@dataclass(frozen=True)
class Runs:
    """A float32 run of the reference, and a bfloat16 run of it beside the same method with a planted defect."""

    exact: Bench
    rounded: Bench

    def judged(self, *args: str) -> dict[tuple[str, str], dict[str, Any]]:
        """By method and task, what `agree` says of the bfloat16 run."""
        done = ask(self.rounded, "agree", str(self.rounded.run_dir), "--json", *args)
        plan = json.loads((self.rounded.run_dir / "plan.json").read_text())
        tasks = {p["id"]: p["config"]["task"] for start in plan["starts"] for p in start["points"]}
        return {(row["method"], tasks[row["points"][0]]): row for row in json.loads(done.stdout)["rows"]}


def ask(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", *args]
    return subprocess.run(
        command, env=bench.env, cwd=bench.folder, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


def run(folder: Path, home: str, model: str, methods: list[Any], dtype: str) -> Bench:
    folder.mkdir()
    bench = Bench(folder)
    bench.env["AIRLOCK_HOME"] = home
    bench.write(
        model=model,
        prompts=PROMPTS,
        methods=methods,
        settings={"dtype": dtype},
        sampling={"batch_size": len(PROMPTS), "max_new_tokens": 24, "logprobs": 8},
        matrix={"task": ["generate", "score"]},
        limits={},
    )
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return bench


@pytest.fixture(scope="module")
def runs(find_env: FindEnv, model: str, home: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    find_env("hf")
    folder = tmp_path_factory.mktemp("agreement")
    (folder / "defect").mkdir()
    (folder / "defect" / "sitecustomize.py").write_text(WRONG_SCALE)
    broken = {"name": "hf_broken", "base": "hf_sdpa", "env_vars": {"PYTHONPATH": str(folder / "defect")}}
    exact = run(folder / "exact", home, model, ["hf_sdpa"], "float32")
    return Runs(exact, run(folder / "rounded", home, model, ["hf_sdpa", broken], "bfloat16"))


def test_bfloat16_agrees_with_float32_within_ties(runs: Runs) -> None:
    row = runs.judged("--reference", str(runs.exact.run_dir))["hf_sdpa", "generate"]
    assert row["verdict"] in ("agrees", "agrees within ties"), row["why"]
    assert row["outputs"] == len(PROMPTS)
    assert 0 < row["kl_mean"] < 0.05
    assert row["kl_max"] < 0.5
    for difference in row["differences"]:
        assert difference["gap"] <= 0.5


def test_scores_in_bfloat16_give_the_perplexity_of_float32(runs: Runs) -> None:
    row = runs.judged("--reference", str(runs.exact.run_dir))["hf_sdpa", "score"]
    assert row["verdict"] == "agrees within ties", row["why"]
    assert row["perplexity_ratio"] == pytest.approx(1, rel=0.1)
    assert row["perplexity_ratio"] != 1, "it was compared with itself"


def test_a_wrong_attention_scale_is_named_with_prompt_position_and_gap(runs: Runs) -> None:
    found = runs.judged()
    row = found["hf_broken", "generate"]
    assert row["verdict"] in ("diverges", "garbage")
    worst = row["differences"][0]
    assert worst["gap"] > 1
    assert worst["prompt_id"] in {prompt["id"] for prompt in PROMPTS}
    assert worst["at"] is not None
    scored = found["hf_broken", "score"]
    assert scored["verdict"] == "diverges"
    assert scored["perplexity_ratio"] > 1.2


def test_the_defect_marks_the_row_before_its_speed(runs: Runs) -> None:
    report = ask(runs.rounded, "report", str(runs.rounded.run_dir)).stdout
    # Behind the mark of a defect may stand that of a machine that others used meanwhile.
    assert "| hf_broken \\*" in report
    assert "| hf_sdpa \\*" not in report
    plan = ask(runs.rounded, "plan", "sweep.yaml", "--strict")
    assert plan.returncode == 2
    assert "environment variable PYTHONPATH: hf_sdpa not set; hf_broken set" in plan.stderr
