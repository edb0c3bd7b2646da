"""From the request to stop until the memory is back, against the engine's own exit. Run by scripts/bench.

Its own exit is that of the same worker, with the same batch behind it, that nobody takes down: told to leave, and
waited for until its last process is gone. On a CPU memory is back when that is so; a GPU's has to be seen back, which
the coordinator waits for and nobody waits for here.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.envs import EngineEnv
from orchestrator.events import WorkerLaunched, WorkerReleased
from orchestrator.reclaim import Reclaim
from orchestrator.record.replay import replay
from orchestrator.stores.envexam import own_environment
from orchestrator.view.runview import read_plan
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, pack_ids
from scripts.bench_engines import environment
from scripts.figures import Figure, run_sweep, worker

#: Workers of each method.
TIMES, TIMES_OF_ENGINES = 5, 2
REAL = ("hf_sdpa", "vllm_eager", "sglang_torch_native")


def scripted(folder: Path) -> Iterator[Figure]:
    """Until a worker's memory is back, against its own exit."""
    held = {"name": "holds_1_gib", "base": "scripted", "engine_args": {"memory_bytes": 1 << 30}}
    sweep = {"model": "scripted", "methods": ["scripted", held]}
    yield from _figures(folder, sweep, TIMES, AIRLOCK_HOME=str(folder / "home"))


def real(folder: Path) -> Iterator[Figure]:
    """The same with all three engines."""
    yield from _figures(folder, {"model": "demo", "methods": REAL}, TIMES_OF_ENGINES)


def _figures(folder: Path, parts: Mapping[str, Any], times: int, **variables: str) -> Iterator[Figure]:
    sweep = {
        "name": "teardown",
        "prompts": ["What is the capital of France?"],
        "sampling": {"max_new_tokens": 8},
        "repeats": times,
        "measurement": {"order": "interleaved"},  # a fresh worker for each repeat
        "warmup": 0,
        **parts,
    }
    run_dir = run_sweep(folder, sweep, **variables)
    ours = torn_down(run_dir)
    for start in {start.config.method.name: start for start in read_plan(run_dir).starts}.values():
        config, method = start.config, start.config.method.name
        env = own_environment() if config.method.engine == "scripted" else environment(config.method.engine)
        theirs = [_own_exit_s(folder, env, config, _batch(run_dir, config)) for _ in range(times)]
        took = statistics.median(one.teardown_s + one.wait_s for one in ours[method])
        yield Figure(f"teardown of {method}", took, "s", "its own exit", statistics.median(theirs))


def torn_down(run_dir: Path) -> dict[str, list[Reclaim]]:
    """By method. Raises SystemExit where one was not told to stop, or memory stayed away."""
    methods: dict[str, str] = {}
    found: dict[str, list[Reclaim]] = {}
    for event in replay(run_dir).events():
        if isinstance(event, WorkerLaunched):
            methods[event.incarnation] = event.method
        elif isinstance(event, WorkerReleased):
            if event.reclaim.rung != "shutdown" or not event.reclaim.returned:
                raise SystemExit(f"{event.incarnation} did not leave in order: {event.reclaim}")
            found.setdefault(methods[event.incarnation], []).append(event.reclaim)
    return found


def _batch(run_dir: Path, config: BackendConfig) -> PromptBatch:
    lines = map(json.loads, (run_dir / "prompts.jsonl").read_text().splitlines())
    prompts = [PromptInput(one["id"], pack_ids(one["token_ids"])) for one in lines]
    return PromptBatch("b", prompts, CallParams.of(config))


def _own_exit_s(folder: Path, env: EngineEnv, config: BackendConfig, batch: PromptBatch) -> float:
    with worker(folder, env.python, config, env.variables) as peer:
        peer.run(batch)
        return peer.leave_s()
