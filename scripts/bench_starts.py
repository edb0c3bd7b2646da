"""The second start of a compiled method against its first, in a store that is empty. Run by scripts/bench --engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.events import WarmupDone, WorkerLaunched, WorkerReady
from orchestrator.record.replay import replay
from orchestrator.stores.home import airlock_home
from scripts.figures import Figure, run_sweep

#: vLLM compiles while it loads, Transformers in its first batch, which warms up.
METHODS = ("vllm_default", "hf_compile")
SWEEP = {
    "name": "starts",
    "model": "demo",
    "prompts": ["What is the capital of France?"],
    "methods": METHODS,
    "sampling": {"max_new_tokens": 8},
}


def second_start(folder: Path) -> Iterator[Figure]:
    """A compiled method's second start, against its first."""
    home = folder / "home"
    home.mkdir()
    for kept in ("envs", "models"):
        (home / kept).symlink_to(airlock_home() / kept)
    starts = [_told(run_sweep(folder / run, SWEEP, AIRLOCK_HOME=str(home))) for run in ("cold", "warm")]
    for method in starts[0]:
        (cold, cold_s), (warm, warm_s) = (found[method] for found in starts)
        if (cold, warm) != ("cold", "warm"):
            raise SystemExit(f"{method} was {cold}, then {warm}")
        yield Figure(f"second start of {method}, with warm-up", warm_s, "s", "the first", cold_s, most=0.5)


def _told(run_dir: Path) -> dict[str, tuple[str, float]]:
    """By method: cold or warm, and the seconds of load and warm-up, the engine's import left out."""
    states: dict[str, tuple[str, str]] = {}
    taken: dict[str, float] = {}
    method = ""
    for event in replay(run_dir).events():
        if isinstance(event, WorkerLaunched):
            method = event.method
            states[event.incarnation] = (method, event.artefacts)
        elif isinstance(event, WorkerReady):
            taken[method] = event.metadata.load.total_s
        elif isinstance(event, WarmupDone):
            taken[method] += event.stats.wall_s
    return {method: (state, taken[method]) for method, state in states.values()}
