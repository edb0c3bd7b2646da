"""A sweep of four points by Airlock, against the same points run one process each. Run by scripts/bench --engines.

The points: Transformers, sdpa and eager × batches of 1 and 4, 64 prompt tokens, 32 new ones, three repeats, one
unmeasured batch before each repeat. A repeat is all prompts once, on every side: PROMPTS of them, so at batch size 1
there are four times as many batches as at 4. The others get the ids that Airlock's run left in its prompts.jsonl, and
must give the ids that stand in its records.

How many prompts there are decides the share of measurement, and how little what is left can gain: with none at all two
loads against four are half of the time, and the more is measured, the nearer to 1 the quotient comes.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from orchestrator.envs import EngineEnv
from orchestrator.events import RunEnded, WarmupDone, WorkerReady
from orchestrator.record.generations import read_records
from orchestrator.record.replay import replay
from orchestrator.view.runview import read_plan
from scripts.bench_engines import environment
from scripts.bench_optimum import optimum, points
from scripts.direct import Generate, Order, direct_process
from scripts.figures import Figure, spent, sweep_command, worker_environment

PROMPTS, PROMPT_TOKENS, NEW_TOKENS, REPEATS, WARMUP = 8, 64, 32, 3, 1
ATTENTIONS, BATCH_SIZES = ("sdpa", "eager"), (1, 4)
CELLS = tuple(product(ATTENTIONS, BATCH_SIZES))
#: One token each, wherever they stand behind a space.
WORDS = ("the", "sea", "is", "cold", "and", "sky", "was", "blue", "when", "we", "came", "home", "from", "old", "town")

Key = tuple[str, int, int, str]  # attention, batch size, repeat, prompt


@dataclass(frozen=True)
class Side:
    """Seconds: of all, inside the measured calls, inside those that warmed up, and of CPU."""

    wall_s: float
    measured_s: float
    warmup_s: float
    cpu_s: float

    @property
    def rest_s(self) -> float:
        """Starts, imports, loads, ends and whatever else is not generating."""
        return self.wall_s - self.measured_s - self.warmup_s


@dataclass(frozen=True)
class Ours:
    side: Side
    prompts: Mapping[str, list[int]]
    outputs: Mapping[Key, list[int]]
    model: str
    threads: int | None


def sweep() -> dict[str, Any]:
    return {
        "name": "points",
        "model": "demo",
        "prompts": {"inline": [text(n) for n in range(PROMPTS)], "chat_template": "off"},
        "methods": [f"hf_{attention}" for attention in ATTENTIONS],
        "settings": {"dtype": "float32"},
        "sampling": {"max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        "matrix": {"batch_size": list(BATCH_SIZES)},
        "repeats": REPEATS,
        "warmup": WARMUP,
    }


def text(number: int) -> str:
    words = [WORDS[(number + 1) * n % len(WORDS)] for n in range(PROMPT_TOKENS)]
    return " ".join(words)


def four_points(folder: Path) -> Iterator[Figure]:
    """A sweep of four points, against a process per point, and against optimum-benchmark."""
    env = environment("hf")
    ours = by_airlock(folder)
    whole, told = ours.side, f"{len(CELLS)} points × {REPEATS} repeats × {PROMPTS} prompts"
    measured = ours.side.measured_s
    yield Figure(f"{told}: measured", measured, "s", "Airlock's wall time", whole.wall_s, least=0.6)
    yield from _beside(told, whole, "a process per point", directly(folder, env, ours, [range(REPEATS)]))
    order = {
        "model": ours.model,
        "prompt_tokens": PROMPT_TOKENS,
        "new": NEW_TOKENS,
        "threads": ours.threads,
        "points": points(CELLS, REPEATS, PROMPTS),
    }
    environ = worker_environment(folder, env.variables)
    yield optimum(folder, env.python, environ, order, f"{told}, loads included", whole.wall_s)
    each = directly(folder, env, ours, [[repeat] for repeat in range(REPEATS)])
    yield from _beside(told, whole, "a process per point and repeat", each)


def _beside(told: str, ours: Side, way: str, theirs: Side) -> Iterator[Figure]:
    yield Figure(f"{told}, loads included", ours.wall_s, "s", way, theirs.wall_s, most=0.25)
    yield Figure("  of it not generating", ours.rest_s, "s", way, theirs.rest_s)
    yield Figure("  CPU time, which other jobs change least", ours.cpu_s, "s", way, theirs.cpu_s)
    yield Figure(f"  measured with {way}", theirs.measured_s, "s", "its wall time", theirs.wall_s)


def by_airlock(folder: Path) -> Ours:
    used = spent(sweep_command(folder, sweep()))
    run_dir = folder / "run"
    found = replay(run_dir)
    events = list(found.events())
    measured_s = sum(event.measured_s for event in events if isinstance(event, RunEnded))
    warmup_s = sum(event.stats.wall_s for event in events if isinstance(event, WarmupDone))
    threads = next(event.metadata.threads for event in events if isinstance(event, WorkerReady))
    prompts = read_prompts(run_dir)
    outputs = {
        (one.method.removeprefix("hf_"), one.batch_size, one.repeat, one.prompt_id): one.token_ids
        for one in read_records(run_dir, found.ranges)
    }
    if len(outputs) != len(CELLS) * REPEATS * PROMPTS:
        raise SystemExit(f"the sweep has {len(outputs)} outputs, not all")
    return Ours(
        Side(used.wall_s, measured_s, warmup_s, used.cpu_s), prompts, outputs, read_plan(run_dir).model.path, threads
    )


def read_prompts(run_dir: Path) -> dict[str, list[int]]:
    """Ids by prompt. Raises SystemExit where a prompt has another length than is claimed."""
    lines = map(json.loads, (run_dir / "prompts.jsonl").read_text().splitlines())
    prompts = {one["id"]: one["token_ids"] for one in lines}
    if found := {len(ids) for ids in prompts.values()} - {PROMPT_TOKENS}:
        raise SystemExit(f"there are prompts of {sorted(found)} tokens, not of {PROMPT_TOKENS}")
    return prompts


def directly(folder: Path, env: EngineEnv, ours: Ours, processes: Sequence[Sequence[int]]) -> Side:
    """`processes`: for each process of a cell, the repeats that it runs."""
    measured_s = warmup_s = 0.0
    begun, cpu_s = perf_counter(), _cpu_of_children_s()
    for (attention, size), repeats in product(CELLS, processes):
        order = Order(ours.model, NEW_TOKENS, ours.threads, attention)
        with direct_process(env.python, order, worker_environment(folder, env.variables)) as generate:
            for repeat in repeats:
                warm_s, run_s = _point(generate, ours, (attention, size, repeat))
                warmup_s, measured_s = warmup_s + warm_s, measured_s + run_s
    return Side(perf_counter() - begun, measured_s, warmup_s, _cpu_of_children_s() - cpu_s)


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _point(generate: Generate, ours: Ours, point: tuple[str, int, int]) -> tuple[float, float]:
    """Seconds of warm-up and of measurement."""
    warmup_s = measured_s = 0.0
    names = list(ours.prompts)
    batches = [names[at : at + point[1]] for at in range(0, len(names), point[1])]
    for _ in range(WARMUP):
        warmup_s += generate([ours.prompts[name] for name in batches[0]])[0]
    for batch in batches:
        seconds, made = generate([ours.prompts[name] for name in batch])
        measured_s += seconds
        if made != [ours.outputs[(*point, name)] for name in batch]:
            sys.stderr.write(f"{point}: other ids than Airlock's for some of {batch}\n")
            raise SystemExit("Airlock and Transformers called directly gave other ids: their times can't be compared")
    return warmup_s, measured_s
