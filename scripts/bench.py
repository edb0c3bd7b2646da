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
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import psutil
import zmq

from orchestrator.events import RunEnded
from orchestrator.record.replay import replay
from protocol.channel import RouterChannel
from protocol.codec import encode
from protocol.messages import BatchDone, Run
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids
from scripts.bench_engines import buckets, overhead
from scripts.bench_starts import second_start
from scripts.figures import REPO, START_S, Figure, median_s, receive, worker

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


def scripted_worker(folder: Path) -> AbstractContextManager[tuple[RouterChannel, bytes]]:
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
    run = Run(sample_batch())
    inside: list[float] = []
    answer = b""

    with scripted_worker(folder) as (channel, identity):

        def trip() -> None:
            nonlocal answer
            channel.send(identity, run)
            while not isinstance(done := receive(channel), BatchDone):
                pass
            inside.append(done.stats.wall_s)
            answer = encode(done)

        whole_s = median_s(trip, ROUNDS)
    engine_s = statistics.median(inside)
    echo_s = raw_echo(folder, len(encode(run)), len(answer))
    size = f"a raw ZeroMQ echo of {len(encode(run)) // 1000} + {len(answer) // 1000} kB"
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
    (folder / "sweep.yaml").write_text(json.dumps(sweep))
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "sweep",
        str(folder / "sweep.yaml"),
        "--run-dir",
        str(folder / "run"),
    ]
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


def share(run_dir: Path, name: str) -> Iterator[Figure]:
    """How much of a run's wall time was spent inside engines' generate calls, warm-up not counted."""
    for event in replay(run_dir).events():
        if isinstance(event, RunEnded):
            share_percent = 100 * event.measured_s / event.wall_s
            yield Figure(f"measurement in {name}", share_percent, "% of wall", target=f"of {event.wall_s:.1f} s")


def engines(folder: Path) -> Iterator[Figure]:
    run_dir = folder / "quickstart"
    command = [sys.executable, "-m", "orchestrator", "sweep", "examples/quickstart.yaml", "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=REPO, check=True, stdout=sys.stderr)
    yield from share(run_dir, "the quickstart sweep, loads included")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engines", action="store_true", help="also the figures that take real engines")
    parser.add_argument("--run", metavar="RUN", help="also tell the share of measurement in this finished run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="al-b") as name:
        folder = Path(name)
        figures = [*help_time(), *wire(folder), *coordinator_load(folder)]
        if args.engines:
            figures += [*engines(folder), *overhead(folder), *buckets(folder), *second_start(folder)]
        figures += share(Path(args.run), args.run) if args.run else []
    if args.json:
        sys.stdout.write(json.dumps([{**asdict(f), "ratio": f.ratio} for f in figures], indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{figure}\n" for figure in figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
