"""Real engines beside each other: on CPUs or GPUs of their own, and one standing by for another's slot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices import discover
from orchestrator.events import StateChanged, WorkerLaunched, WorkerReady, WorkerReleased
from orchestrator.run.cpusets import parse
from tests.engines.conftest import FindEnv
from tests.engines.test_whole_sweeps import PATIENCE_S, sweep_of
from tests.process.sweeping import Bench

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked")]


@pytest.fixture
def bench(tmp_path: Path, home: str, find_env: FindEnv) -> Bench:
    for engine in ("hf", "vllm", "sglang"):
        find_env(engine)
    made = Bench(tmp_path)
    made.env["AIRLOCK_HOME"] = home
    return made


def of(bench: Bench, kind: type[Any]) -> dict[str, Any]:
    """By method."""
    methods = {e.incarnation: e.method for e in bench.events if isinstance(e, WorkerLaunched)}
    return {methods[e.incarnation]: e for e in bench.events if isinstance(e, kind)}


def place(bench: Bench, kind: type[Any], method: str, state: str = "") -> int:
    """In the journal."""
    names = {e.incarnation for e in bench.events if isinstance(e, WorkerLaunched) and e.method == method}
    return next(
        n
        for n, e in enumerate(bench.events)
        if isinstance(e, kind) and e.incarnation in names and getattr(e, "state", "") in (state, None)
    )


def run(bench: Bench, methods: list[str], model: str, **changes: Any) -> None:
    bench.write(**sweep_of(methods, model, **changes))
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    bench.assert_clean()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two engines on CPUs of their own need two CPUs")
def test_two_engines_at_once_keep_to_their_own_cpus(bench: Bench, model: str) -> None:
    run(bench, ["hf_sdpa", "vllm_eager"], model, devices={"slots": 2})
    launched, ready = of(bench, WorkerLaunched), of(bench, WorkerReady)
    sets = {method: parse(event.cpus) for method, event in launched.items()}
    assert not set(sets["hf_sdpa"]) & set(sets["vllm_eager"])
    assert place(bench, WorkerLaunched, "vllm_eager") < place(bench, WorkerReleased, "hf_sdpa")
    for method, event in ready.items():
        assert event.metadata.threads is None or event.metadata.threads <= len(sets[method]), method


def test_an_engine_that_stood_by_loads_when_its_slot_is_free(bench: Bench, model: str) -> None:
    run(bench, ["hf_sdpa", "vllm_eager"], model, devices={"standby": "on"})
    launched = of(bench, WorkerLaunched)
    assert launched["vllm_eager"].early in ("standby", "teardown")
    loads = place(bench, StateChanged, "vllm_eager", "loading")
    assert place(bench, WorkerLaunched, "vllm_eager") < place(bench, WorkerReleased, "hf_sdpa") < loads


@pytest.mark.gpu
def test_on_a_gpu_an_engine_that_stands_by_holds_no_memory_before_its_turn(bench: Bench, model: str) -> None:
    if discover().kind != "cuda":
        pytest.skip("this machine has no NVIDIA GPU")
    methods = ["hf_sdpa", "vllm_default", "sglang_default"]
    run(bench, methods, model, settings={"dtype": "bfloat16"}, devices={"standby": "on", "slots": 1})
    assert "standby" in {event.early for event in of(bench, WorkerLaunched).values()}
    notes = [note for release in bench.releases() for note in release.reclaim.notes]
    assert not [note for note in notes if "before it was to load" in note]


@pytest.mark.gpu
def test_on_two_gpus_two_engines_run_at_once(bench: Bench, model: str) -> None:
    if len(discover().devices) < 2:
        pytest.skip("this machine has no two NVIDIA GPUs")
    run(bench, ["hf_sdpa", "vllm_default"], model, settings={"dtype": "bfloat16"})
    assert len({release.reclaim.device for release in bench.releases()}) == 2
    assert place(bench, WorkerLaunched, "vllm_default") < place(bench, WorkerReleased, "hf_sdpa")
