"""Performance figures as ratios against something measured in the same run. See scripts/bench."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import psutil
import zmq

from protocol.codec import encode
from protocol.messages import Run
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids
from scripts.bench_engines import buckets, quickstart, share
from scripts.bench_overhead import overhead
from scripts.bench_starts import second_start
from scripts.figures import REPO, START_S, Figure, Maker, Peer, median_s, sweep_command, worker

PROMPTS, PROMPT_IDS, NEW_TOKENS = 64, 256, 256
ROUNDS = 300
WATCH_S = 8.0


def help_time() -> Iterator[Figure]:
    def spawn(*args: str) -> None:
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL, cwd=REPO)

    bare_s = median_s(lambda: spawn("-c", "pass"), 10)
    help_s = median_s(lambda: spawn("-m", "orchestrator", "--help"), 10)
    yield Figure("--help", help_s, "s", "a bare interpreter", bare_s, "target: under 0.2 s")


# --- wire -------------------------------------------------------------------

ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.IDENTITY, b"echo")
socket.setsockopt(zmq.LINGER, 0)
socket.connect(sys.argv[1])
answer = b"x" * int(sys.argv[2])
socket.send(b"hello")
while len(socket.recv()) > 1:
    socket.send(answer)
"""


def scripted_worker(folder: Path) -> AbstractContextManager[Peer]:
    config = BackendConfig(method=MethodSpec("scripted", "scripted"), model_path="scripted")
    return worker(folder, sys.executable, config)


def sample_batch() -> PromptBatch:
    config = BackendConfig(
        method=MethodSpec("scripted", "scripted"), model_path="x", max_new_tokens=NEW_TOKENS, batch_size=PROMPTS
    )
    prompts = [PromptInput(str(i), pack_ids(range(i, i + PROMPT_IDS))) for i in range(PROMPTS)]
    return PromptBatch("b", prompts, CallParams.of(config))


def wire(folder: Path) -> Iterator[Figure]:
    """A batch of 64 prompts × 1 kB against a raw echo of as many bytes over the same kind of socket."""
    batch = sample_batch()
    inside: list[float] = []
    answer = b""

    with scripted_worker(folder) as peer:

        def trip() -> None:
            nonlocal answer
            done = peer.run(batch)
            inside.append(done.stats.wall_s)
            answer = encode(done)

        whole_s = median_s(trip, ROUNDS)
    engine_s, asked = statistics.median(inside), len(encode(Run(batch)))
    echo_s = raw_echo(folder, asked, len(answer))
    size = f"a raw ZeroMQ echo of {asked // 1000} + {len(answer) // 1000} kB"
    yield Figure(
        "round trip, 64 prompts, scripted worker", whole_s * 1e3, "ms", size, echo_s * 1e3, "target: under 2 ms"
    )
    yield Figure(
        "the same without the scripted engine's own time", (whole_s - engine_s) * 1e3, "ms", size, echo_s * 1e3
    )


def raw_echo(folder: Path, asked_bytes: int, answer_bytes: int) -> float:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    endpoint = f"ipc://{folder}/e"
    socket.bind(endpoint)
    ask = b"x" * asked_bytes
    with subprocess.Popen([sys.executable, "-c", ECHO, endpoint, str(answer_bytes)]) as peer:
        socket.recv_multipart()

        def trip() -> None:
            socket.send_multipart([b"echo", ask])
            socket.recv_multipart()

        taken_s = median_s(trip, ROUNDS)
        socket.send_multipart([b"echo", b"x"])
        peer.wait(START_S)
    context.destroy(linger=0)
    return taken_s


# --- the coordinator while a worker generates --------------------------------


def coordinator_load(folder: Path) -> Iterator[Figure]:
    """CPU of the coordinator while a worker sits in one long batch, with the live view's plain mode."""
    fifo = folder / "busy"
    os.mkfifo(fifo)
    fault = {"at": "batch:1", "do": "mark", "touch": str(fifo)}
    busy = {"name": "busy", "base": "scripted", "engine_args": {"token_s": 1.0, "fault": fault}}
    sweep = {"name": "load", "model": "scripted", "prompts": ["x"], "methods": [busy], "warmup": 0}
    command = sweep_command(folder, sweep)
    env = {**os.environ, "AIRLOCK_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    with subprocess.Popen(command, cwd=REPO, env=env, stdout=subprocess.DEVNULL) as sweeping:
        fifo.read_text()
        process = psutil.Process(sweeping.pid)
        before, begun = process.cpu_times(), time.monotonic()
        time.sleep(WATCH_S)
        after, took_s = process.cpu_times(), time.monotonic() - begun
        sweeping.terminate()
    used_s = (after.user - before.user) + (after.system - before.system)
    yield Figure("coordinator while a worker generates", 100 * used_s / took_s, "% of core", target="target: under 2 %")


#: By the name that --only takes.
PLAIN: dict[str, Maker] = {"help": lambda _: help_time(), "wire": wire, "coordinator": coordinator_load}
ENGINES: dict[str, Maker] = {
    "quickstart": quickstart,
    "overhead": overhead,
    "buckets": buckets,
    "second_start": second_start,
}


def made(names: Iterable[str]) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="al-b") as root:
        for name in names:
            folder = Path(root, name)
            folder.mkdir()
            yield from (PLAIN | ENGINES)[name](folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engines", action="store_true", help="also the figures that take real engines")
    parser.add_argument("--only", action="append", choices=[*PLAIN, *ENGINES], help="may be given several times")
    parser.add_argument("--run", metavar="RUN", help="also tell the share of measurement in this finished run")
    args = parser.parse_args()
    figures = list(made(args.only or (PLAIN | ENGINES if args.engines else PLAIN)))
    figures += share(Path(args.run), args.run) if args.run else []
    if args.json:
        sys.stdout.write(json.dumps([{**asdict(f), "ratio": f.ratio} for f in figures], indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{figure}\n" for figure in figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
