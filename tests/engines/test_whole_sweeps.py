"""The main job on real engines: one sweep over all three, killed half-way and resumed; and engines that can't start."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.devices import discover
from orchestrator.events import RunStarted, WorkerReady
from orchestrator.stores.envstate import EngineEnv, Fingerprint, Stored, save
from tests.engines.conftest import FindEnv
from tests.process.sweeping import GONE_AFTER_KILL_S, Bench, wait_gone

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked")]

PATIENCE_S = 900
CAPITAL = "What is the capital of France?"
PROMPTS = [{"id": "capital", "prompt": CAPITAL}, "Name a colour.", "Count to three.", "Say hello."]
METHODS = ["hf_sdpa", "vllm_eager", "sglang_torch_native"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def sweep_of(methods: list[str], model: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": model,
        "prompts": PROMPTS,
        "methods": methods,
        "settings": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 12},
        "matrix": {"batch_size": [1, 4]},
        "limits": {},
        "warmup": 1,
        **changes,
    }


def own_home(bench: Bench, found: EngineEnv) -> None:
    """A home of the test's own, in which one environment works."""
    keep(bench, msgspec.structs.replace(found, name="good", source="user"))


def keep(bench: Bench, env: EngineEnv) -> None:
    folder = Path(bench.env["AIRLOCK_HOME"]) / "envs" / env.name
    folder.mkdir(parents=True)
    save(folder, Stored(env=env))


def test_three_engines_killed_in_the_second_method_and_resumed(
    bench: Bench, find_env: FindEnv, model: str, home: str
) -> None:
    for engine in ("hf", "vllm", "sglang"):
        find_env(engine)
    bench.env["AIRLOCK_HOME"] = home
    bench.write(**sweep_of(METHODS, model))
    first = bench.start()
    assert first.stdout is not None
    assert any("vllm_eager: ready" in line for line in first.stdout)
    left = bench.processes()
    assert left
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    committed = bench.keys()
    assert len(PROMPTS) * 2 <= len(committed) < len(PROMPTS) * 6

    resumed = bench.run("--resume", patience_s=PATIENCE_S)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    points = {p["id"] for s in json.loads((bench.run_dir / "plan.json").read_text())["starts"] for p in s["points"]}
    assert set(bench.keys()) == {(point, prompt) for point in points for prompt in ("capital", "1", "2", "3")}
    assert set(bench.keys().values()) == {1}
    assert committed.keys() <= bench.keys().keys()
    assert [e.life for e in bench.events if isinstance(e, RunStarted)] == [1, 2]
    check_results(bench)
    bench.assert_clean()


def check_results(bench: Bench) -> None:
    """The same work everywhere, read back from the engines."""
    digests: dict[str, set[str]] = {}
    texts: dict[str, set[str]] = {}
    for record in bench.records:
        digests.setdefault(record["prompt_id"], set()).add(record["prompt_digest"])
        texts.setdefault(record["prompt_id"], set()).add(record["text"])
        assert record["generated_tokens"] == len(record["token_ids"])
        assert record["ttft_s"] is not None
        assert 0 < record["ttft_s"] <= record["latency_s"]
    assert {len(found) for found in digests.values()} == {1}
    assert all("Paris" in text for text in texts["capital"])
    assert {len(found) for found in texts.values()} == {1}, "greedy float32 output is the same in all three"
    ready = {e.metadata.engine: e for e in bench.events if isinstance(e, WorkerReady)}
    assert set(ready) == {"hf", "vllm", "sglang"}
    assert all(e.fingerprint and e.metadata.attention_backend and e.metadata.torch_version for e in ready.values())


def test_an_engine_that_cannot_be_imported_fails_its_points_alone(bench: Bench, find_env: FindEnv, model: str) -> None:
    found = find_env("hf")
    own_home(bench, found)
    # A vLLM environment in which there is no vLLM, as after an accident with pip.
    keep(bench, EngineEnv("bad", "vllm", found.python, Fingerprint("", {}, "", "stale"), "user"))
    bench.write(**sweep_of(["vllm_eager", "hf_sdpa"], model, environments={"vllm": "bad", "hf": "good"}))
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 1, done.stdout + done.stderr
    for outcome in bench.outcomes()["vllm_eager"]:
        assert outcome.outcome == "failed"
        assert outcome.cause is not None
        assert (outcome.cause.cls, outcome.cause.phase) == ("environment", "importing")
        assert "No module named 'vllm'" in outcome.cause.message
    assert [o.outcome for o in bench.outcomes()["hf_sdpa"]] == ["ok", "ok"]
    bench.assert_clean()


def test_an_environment_that_cannot_be_built_fails_its_points_alone(
    bench: Bench, find_env: FindEnv, model: str
) -> None:
    own_home(bench, find_env("hf"))
    bench.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    bench.write(**sweep_of(["vllm_eager", "hf_sdpa"], model, environments={"hf": "good"}))
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {(o.outcome, o.cause and o.cause.cls) for o in bench.outcomes()["vllm_eager"]} == {("failed", "environment")}
    assert [o.outcome for o in bench.outcomes()["hf_sdpa"]] == ["ok", "ok"]
    assert not (Path(bench.env["AIRLOCK_HOME"]) / "envs" / "vllm").exists(), "a half-made environment is removed"
    bench.assert_clean()


@pytest.mark.gpu
def test_device_memory_comes_back_between_methods(bench: Bench, find_env: FindEnv, model: str, home: str) -> None:
    if discover().kind != "cuda":
        pytest.skip("this machine has no NVIDIA GPU")
    for engine in ("hf", "vllm", "sglang"):
        find_env(engine)
    bench.env["AIRLOCK_HOME"] = home
    methods = ["hf_sdpa", "vllm_default", "sglang_default"]
    bench.write(**sweep_of(methods, model, settings={"dtype": "bfloat16"}))
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    for release in bench.releases():
        proof = release.reclaim
        assert proof.device != "cpu"
        assert proof.baseline_bytes is not None
        assert proof.after_bytes is not None
        assert proof.peak_bytes is not None
        assert proof.peak_bytes > proof.baseline_bytes
        assert proof.after_bytes <= proof.baseline_bytes + proof.tolerance_bytes
    bench.assert_clean()
