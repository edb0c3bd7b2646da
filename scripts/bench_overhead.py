"""What Airlock adds to a batch, by two measurements that do not depend on each other. Run by scripts/bench --engines.

Side by side: the same batch through a worker and by `generate` in a process of its own, which sleeps meanwhile, as the
worker does in its turn. A round is one batch of this, two of that and one of this (ABBA), so that a machine that gets
slower is slower for both; of each round the quotient counts, and of all rounds their median with its interval.

By subtraction: what of a batch's time was spent outside the engine's own call. That is not blurred by how much a call
takes from one time to the next, and in a sweep it holds the coordinator too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.events import BatchCommitted, WarmupDone
from orchestrator.launcher import Launcher
from orchestrator.methods import builtin
from orchestrator.record.replay import replay
from orchestrator.stores.demo import DemoModel
from orchestrator.stores.home import airlock_home
from orchestrator.view import stats
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, pack_ids, unpack_ids
from scripts.bench_engines import environment, print_progress
from scripts.direct import Order, direct_process
from scripts.figures import CONFIDENCE, Figure, Peer, run_sweep, worker, worker_environment

PROMPTS, NEW_TOKENS, ROUNDS = 64, 32, 12
WHAT = f"{PROMPTS} prompts × {NEW_TOKENS} tokens"
#: Lengths of the prompts, so that there is padding as there is in a sweep.
SHORTEST, LONGEST = 16, 64
BATCHES_OF_SWEEP = 4
#: For threads that spin a little before they sleep.
SETTLE_S = 0.05
MOST = 1.01
MOST_PERCENT = "target: at most 1 %"

#: Runs the batch once: seconds, and the ids of each prompt.
Batch = Callable[[], tuple[float, list[list[int]]]]


def overhead(folder: Path) -> Iterator[Figure]:
    """A batch through Airlock, against Transformers called directly."""
    env = environment("hf")
    model = str(DemoModel(airlock_home(), Launcher(), print_progress, None).ensure(env))
    prompts = [list(range(100 + n, 100 + n + SHORTEST + n * (LONGEST - SHORTEST) // PROMPTS)) for n in range(PROMPTS)]
    config = BackendConfig(
        method=builtin()["hf_sdpa"],
        model_path=model,
        dtype="float32",
        batch_size=PROMPTS,
        max_new_tokens=NEW_TOKENS,
        ignore_eos=True,
    )
    inside: list[float] = []
    with worker(folder, env.python, config, env.variables) as peer:
        order = Order(model, NEW_TOKENS, peer.metadata.threads)
        with direct_process(env.python, order, worker_environment(folder, env.variables)) as generate:
            ours, theirs = in_rounds(through(peer, config, prompts, inside), lambda: generate(prompts), ROUNDS)
    yield from _side_by_side(ours, theirs)
    outside = [1 - call / whole for call, whole in zip(inside[1:], ours, strict=True)]  # the first warmed up
    yield _median(f"{WHAT}: outside the engine's call", [100 * one for one in outside], "% of batch", MOST_PERCENT)
    yield _in_a_sweep(folder / "sweep")


def through(peer: Peer, config: BackendConfig, prompts: Sequence[Sequence[int]], inside: list[float]) -> Batch:
    """A batch from its dispatch to its answer; the seconds of the engine's own call are added to `inside`."""
    inputs = [PromptInput(str(n), pack_ids(ids)) for n, ids in enumerate(prompts)]
    batch = PromptBatch("b", inputs, CallParams.of(config))

    def run() -> tuple[float, list[list[int]]]:
        begun = time.perf_counter()
        done = peer.run(batch)
        whole = time.perf_counter() - begun
        inside.append(done.stats.wall_s)
        return whole, [unpack_ids(one.token_ids) for one in done.generations]

    return run


def in_rounds(ours: Batch, theirs: Batch, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each batch, two a round, after one of each that is not counted. Raises SystemExit where the two do
    not give the same ids: then they did not do the same work."""
    pair: tuple[Batch, Batch] = (ours, theirs)
    taken: tuple[list[float], list[float]] = ([], [])
    _, expected = ours()
    for place in (1, *(0, 1, 1, 0) * rounds):
        time.sleep(SETTLE_S)
        seconds, ids = pair[place]()
        if ids != expected:
            raise SystemExit("Airlock and Transformers called directly gave other ids: their times can't be compared")
        taken[place].append(seconds)
    return taken[0], taken[1][1:]


def per_round(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The quotient of each round of two batches."""
    rounds = range(0, len(ours), 2)
    return [sum(ours[at : at + 2]) / sum(theirs[at : at + 2]) for at in rounds]


def _side_by_side(ours: list[float], theirs: list[float]) -> Iterator[Figure]:
    usual, direct = statistics.median(ours), statistics.median(theirs)
    yield Figure(f"{WHAT} through Airlock", usual, "s", "Transformers called directly", direct)
    # What else runs on a machine makes a batch slower, never faster.
    best = min(ours), min(theirs)
    yield Figure(f"{WHAT}: the fastest of {len(ours)}", best[0], "s", "the fastest directly", best[1], most=MOST)
    name = f"{WHAT}: the same by round, of {ROUNDS}"
    yield _median(name, per_round(ours, theirs), "×", f"target: at most {MOST}")


def _median(name: str, values: Sequence[float], unit: str, target: str) -> Figure:
    found = stats.median([[one] for one in values])
    assert found is not None
    return Figure(name, found.value, unit, target=target, interval=found.interval(CONFIDENCE))


def _in_a_sweep(folder: Path) -> Figure:
    """From one batch's commit to the next one's, the engine's own call left out."""
    sweep = {
        "name": "overhead",
        "model": "demo",
        "prompts": [
            f"{n} times: " + "Tell me more about the sea. " * (n % 8) for n in range(PROMPTS * BATCHES_OF_SWEEP)
        ],
        "methods": ["hf_sdpa"],
        "settings": {"dtype": "float32"},
        "sampling": {"batch_size": PROMPTS, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
    }
    before, outside = 0.0, []
    for event in replay(run_sweep(folder, sweep)).events():
        if isinstance(event, BatchCommitted) and event.stats and before:
            outside.append(1 - event.stats.wall_s / (event.at - before))
        if isinstance(event, (BatchCommitted, WarmupDone)):
            before = event.at
    name = f"{WHAT} in a sweep: outside the engine's call"
    return _median(name, [100 * one for one in outside], "% of batch", MOST_PERCENT)
