"""Figures that take a real engine, each beside what it is compared with. Run by scripts/bench --engines."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator import devices
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.launcher import Launcher
from orchestrator.methods import builtin
from orchestrator.report import RunView, rows
from orchestrator.stores.demo import DemoModel
from orchestrator.stores.home import airlock_home
from protocol.messages import BatchDone, Run
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, pack_ids
from scripts.figures import REPO, Figure, receive, worker

PROMPTS, NEW_TOKENS, ROUNDS = 64, 32, 5
#: Lengths of the prompts, so that there is padding as there is in a sweep.
SHORTEST, LONGEST = 16, 64

DIRECT = """
import json, sys, time
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
order = json.loads(sys.stdin.readline())
model = AutoModelForCausalLM.from_pretrained(order["path"], dtype=torch.float32, attn_implementation="sdpa").eval()
width = max(map(len, order["prompts"]))
ids = torch.tensor([[0] * (width - len(one)) + one for one in order["prompts"]])
mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in order["prompts"]])
settings = GenerationConfig(
    max_new_tokens=order["new"],
    do_sample=False,
    eos_token_id=None,
    pad_token_id=0,
    use_cache=True,
    disable_compile=True,
)
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(input_ids=ids, attention_mask=mask, generation_config=settings).tolist()
    print(time.perf_counter() - started, flush=True)
"""


def environment(name: str) -> EngineEnv:
    store = EnvStore(airlock_home(), Launcher(), print_progress, kind=devices.discover().kind)
    return store.build(name)


def print_progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def overhead(folder: Path) -> Iterator[Figure]:
    """A batch from its dispatch to its answer against `generate` called in a process of its own, in turns."""
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
    batch = PromptBatch(
        "b", [PromptInput(str(n), pack_ids(ids)) for n, ids in enumerate(prompts)], CallParams.of(config)
    )
    whole, inside, direct = [], [], []
    order = {"path": model, "prompts": prompts, "new": NEW_TOKENS}
    with (
        direct_process(env.python, order) as bare,
        worker(folder, env.python, config, env.variables) as (channel, identity),
    ):
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            channel.send(identity, Run(batch))
            while not isinstance(done := receive(channel), BatchDone):
                pass
            whole.append(time.perf_counter() - begun)
            inside.append(done.stats.wall_s)
            direct.append(bare())
    whole, inside, direct = whole[1:], inside[1:], direct[1:]  # the first of each warms up
    outside = statistics.median(1 - engine / all_of_it for all_of_it, engine in zip(whole, inside, strict=True))
    what = f"{PROMPTS} prompts × {NEW_TOKENS} tokens"
    yield Figure(
        f"{what} through Airlock",
        statistics.median(whole),
        "s",
        "Transformers called directly",
        statistics.median(direct),
        "target: at most 1.01",
    )
    yield Figure(f"{what}: spent outside the engine's call", 100 * outside, "% of batch", target="target: at most 1 %")


def buckets(folder: Path) -> Iterator[Figure]:
    """Compiled decoding with fixed buckets against compiled decoding that takes every batch as it comes."""
    methods = ["hf_compile", "hf_rocket"]
    sweep = {
        "name": "buckets",
        "model": "demo",
        "prompts": [" ".join(["Tell me more about the sea."] * (1 + n % 12)) for n in range(PROMPTS)],
        "methods": methods,
        "settings": {"bucket_batch_sizes": [8], "bucket_lengths": [64, 128]},
        "sampling": {"batch_size": 8, "max_new_tokens": 16, "ignore_eos": True},
    }
    (folder / "buckets.yaml").write_text(json.dumps(sweep))
    run_dir = folder / "buckets"
    command = [sys.executable, "-m", "orchestrator", "sweep", str(folder / "buckets.yaml"), "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=REPO, check=True, stdout=sys.stderr)
    plain, rocket = ((row.speed.output, row.counters.told("recompiles")) for row in rows(RunView.load(run_dir)))
    if plain[0] is None or rocket[0] is None or plain[1] is None or rocket[1] is None:
        raise SystemExit("one of the two does not tell its speed or its recompiles")
    what = f"{PROMPTS} prompts of mixed lengths"
    yield Figure(f"hf_rocket, {what}", rocket[0].value, "tokens/s", "hf_compile", plain[0].value)
    yield Figure("hf_rocket: recompiles after warm-up", rocket[1], "", target="target: 0")
    yield Figure("hf_compile: recompiles after warm-up", plain[1], "")


@contextmanager
def direct_process(python: str, order: dict[str, Any]) -> Iterator[Any]:
    """Gives a call that runs one batch there, and its seconds as measured there."""
    with subprocess.Popen([python, "-c", DIRECT], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("Transformers could not be called directly")

        def run() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield run
        process.stdin.close()
