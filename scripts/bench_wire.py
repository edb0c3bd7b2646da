"""What the wire costs, and what the coordinator does while a worker is at work. Run by scripts/bench."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgpack
import psutil
import zmq

from protocol.channel import RouterChannel
from protocol.codec import decode_down, decode_up, encode
from protocol.messages import BatchDone
from protocol.parts import split
from protocol.specs import BackendConfig, MethodSpec
from scripts import wire_peer
from scripts.figures import REPO, START_S, Figure, medians_s, receive, sweep_command, worker

#: So many that what a fresh process does in its first second, above all taking memory from the system, weighs nothing.
ROUNDS = 2000
WATCH_S = 10.0
#: Of the coordinator's watch: a step of the engine takes so long, and a batch about a second.
TOKEN_S, TOKENS, BATCH = 0.03, 32, 8

Trip = Callable[[], object]


def wire(folder: Path) -> Iterator[Figure]:
    """A batch there and its records back, against the same bytes by other means, in turns."""
    asked, answered = (len(encode(one)) for one in (wire_peer.question(), wire_peer.answer()))
    with ExitStack() as open_peers:
        trips = [open_peers.enter_context(_airlock(folder)), _codec]
        trips += [open_peers.enter_context(_bare(folder, way)) for way in ("echo", "curve", "msgpack")]
        ours, codec, echo, curve, packed = (1e3 * taken for taken in medians_s(trips, ROUNDS))
    name = f"round trip, {asked // 1000} kB there and {answered // 1000} kB back"
    yield Figure(name, ours, "ms", "a raw ZeroMQ echo of as many bytes", echo, most=2.0)
    yield Figure(name, ours, "ms", "ZeroMQ and msgpack, neither keys nor types", packed)
    yield Figure("  beside it a raw echo that is encrypted, in parts", curve, "ms", "the echo", echo)
    yield Figure("  of it the codec of both ends", codec, "ms", "the echo", echo)
    yield from _whole_worker(folder, echo)


@contextmanager
def _airlock(folder: Path) -> Iterator[Trip]:
    channel, name, token, batch = RouterChannel(f"ipc://{folder}/a"), "w1", "t", wire_peer.question()
    keys = channel.admit(name, token)
    given = {"endpoint": channel.endpoint, "name": name, "token": token, "secret": keys.secret}
    with _peer("airlock", *(part for pair in given.items() for part in pair)) as process:
        identity = name.encode()
        receive(channel)

        def trip() -> None:
            channel.send(identity, batch)
            while not isinstance(receive(channel), BatchDone):
                pass

        try:
            yield trip
        finally:
            process.terminate()
            channel.close()


@contextmanager
def _bare(folder: Path, way: str) -> Iterator[Trip]:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    endpoint, identity, key = f"ipc://{folder}/{way}", way.encode(), b""
    if way == "curve":
        key, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_server = True
    socket.bind(endpoint)
    ask = encode(wire_peer.question())
    plain = msgpack.unpackb(ask)

    def echo() -> None:
        socket.send_multipart([identity, *(split(ask) if key else [ask])])
        b"".join(socket.recv_multipart()[1:])

    def packed() -> None:
        socket.send_multipart([identity, msgpack.packb(plain)])
        msgpack.unpackb(socket.recv_multipart()[1])

    with _peer(way, endpoint, key.decode()) as process:
        socket.recv_multipart()
        yield packed if way == "msgpack" else echo
        socket.send_multipart([identity, b"x"])
        process.wait(START_S)
    context.destroy(linger=0)


@contextmanager
def _peer(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", "scripts.wire_peer", *args], cwd=REPO) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


_QUESTION, _ANSWER = wire_peer.question(), wire_peer.answer()


def _codec() -> None:
    decode_down(encode(_QUESTION))
    decode_up(encode(_ANSWER))


def _whole_worker(folder: Path, echo_ms: float) -> Iterator[Figure]:
    """The same prompts through a whole worker, whose engine is a script and has to make up its records."""
    config = BackendConfig(method=MethodSpec("scripted", "scripted"), model_path="scripted")
    inside: list[float] = []
    batch = wire_peer.question().batch
    with worker(folder, sys.executable, config) as peer:

        def trip() -> None:
            inside.append(peer.run(batch).stats.wall_s)

        whole = 1e3 * medians_s([trip], ROUNDS)[0]
    engine = 1e3 * statistics.median(inside)
    name = f"{wire_peer.PROMPTS} prompts through a scripted worker"
    yield Figure(f"{name}, without its engine's time", whole - engine, "ms", "the echo", echo_ms)


# --- the coordinator while a worker generates --------------------------------


def coordinator_load(folder: Path) -> Iterator[Figure]:
    """CPU of the coordinator while a worker has one batch after the other, of a second each."""
    fifo = folder / "busy"
    os.mkfifo(fifo)
    fault = {"at": "batch:2", "do": "mark", "touch": str(fifo)}
    busy = {"name": "busy", "base": "scripted", "engine_args": {"token_s": TOKEN_S, "fault": fault}}
    batches = 3 + int(WATCH_S / (TOKEN_S * TOKENS))
    sweep = {
        "name": "load",
        "model": "scripted",
        "prompts": [f"prompt {n}" for n in range(BATCH * batches)],
        "methods": [busy],
        "sampling": {"batch_size": BATCH, "max_new_tokens": TOKENS, "ignore_eos": True},
        "warmup": 0,
    }
    env = {**os.environ, "AIRLOCK_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    with subprocess.Popen(sweep_command(folder, sweep), cwd=REPO, env=env, stdout=subprocess.DEVNULL) as sweeping:
        fifo.read_text()
        used_s, took_s = _cpu_s(sweeping.pid, WATCH_S)
        sweeping.terminate()
    name = f"coordinator's CPU, batches of {TOKEN_S * TOKENS:.1f} s"
    yield Figure(name, used_s, "s", "the time it was watched", took_s, most=0.01)


def _cpu_s(pid: int, watch_s: float) -> tuple[float, float]:
    """CPU that a process used, and in how long."""
    process = psutil.Process(pid)
    before, begun = process.cpu_times(), time.monotonic()
    time.sleep(watch_s)
    after, took_s = process.cpu_times(), time.monotonic() - begun
    return (after.user - before.user) + (after.system - before.system), took_s
