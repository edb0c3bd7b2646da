"""A process of the same user that sees where the coordinator listens and what its workers are called, but no token.

    adversary.py LOG_FOLDER

It says that it is there, is told the endpoint by a line, and attacks until its standard input ends; then it says how
often it tried, as JSON.
Everything it plants has PLANTED in it.
"""

from __future__ import annotations

import itertools
import json
import random
import select
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zmq

from protocol import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.messages import BatchDone, BatchFailed, Fatal, Hello, Message, Ready
from protocol.records import BatchStats, ErrorInfo, Generation, RuntimeMetadata
from tests.process.zmtp import asked_of, command, connected, greeting
from tests.unit.frames import NASTY, mutations

PLANTED = "PLANTED"
BLAME = ErrorInfo(type=PLANTED, message=PLANTED, traceback=PLANTED, fatal=True)
ASKED = [greeting(way) + command(hello) for way, hello in map(asked_of, ("ipc:", "tcp:"))]
RAW = (b"", b"GET / HTTP/1.1\r\n\r\n", greeting(b"NULL"), *ASKED)
#: Of each wave: messages on each socket, and plain connections.
MESSAGES, CONNECTIONS = 100, 300
#: How many of the last ones are kept open.
MAX_CONTEXTS, MAX_CONNECTIONS = 3, 800


def lies(name: str) -> Iterator[list[bytes]]:
    """Every kind of message that could do harm, then noise; without end."""
    result = Generation(
        prompt_id="p0", text=PLANTED, token_ids=b"", generated_tokens=0, finish_reason="stop", prompt_tokens=1,
        prompt_digest="0" * 16,
    )  # fmt: skip
    metadata = RuntimeMetadata(engine=PLANTED, engine_version=PLANTED, python_version=PLANTED)
    kinds: list[Message] = [
        Hello(PROTOCOL_VERSION, name, PLANTED, 1, PLANTED),
        Hello(PROTOCOL_VERSION + 1, name, "", 1, PLANTED),
        Ready(metadata),
        BatchDone(PLANTED, [result], BatchStats(wall_s=0.0, generated_tokens=0)),
        BatchFailed(PLANTED, BLAME),
        Fatal("busy", BLAME),
    ]
    yield from ([encode(one)] for one in kinds)
    yield from ([one] for one in NASTY)
    yield [PLANTED.encode()] * 100
    yield from ([one] for one in mutations(1))


def sockets(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[zmq.Socket[bytes]]:
    """Without any security, with a password, and with keys of its own."""
    yield context.socket(zmq.DEALER)
    password = context.socket(zmq.DEALER)
    password.plain_username, password.plain_password = b"w1", PLANTED.encode()
    yield password
    keyed = context.socket(zmq.DEALER)
    keyed.curve_publickey, keyed.curve_secretkey = zmq.curve_keypair()
    keyed.curve_serverkey, _ = zmq.curve_keypair()
    yield keyed


def speak(endpoint: str, name: str, tried: Counter[str]) -> zmq.Context[zmq.Socket[bytes]]:
    """As the worker itself, with a guess at what only it knows, and as nobody; all stays open."""
    context = zmq.Context()
    for identity in (name, f"{name}.{random.randbytes(8).hex()}", ""):
        for dealer in sockets(context):
            dealer.linger = 0
            if identity:
                dealer.setsockopt(zmq.IDENTITY, identity.encode())
            dealer.connect(endpoint)
            for parts in itertools.islice(lies(name), MESSAGES):
                with suppress(zmq.Again):
                    dealer.send_multipart(parts, zmq.NOBLOCK)
                    tried["messages"] += 1
    return context


def crowd(endpoint: str, tried: Counter[str], held: list[socket.socket]) -> None:
    for said in itertools.islice(itertools.cycle(RAW), CONNECTIONS):
        with suppress(OSError):
            one = connected(endpoint)
            held.append(one)
            one.sendall(said)
            tried["connections"] += 1


def names(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("w*.log")] or ["w1"]


def main(folder: str) -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()
    tried: Counter[str] = Counter()
    endpoint = sys.stdin.readline().strip()
    contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
    connections: list[socket.socket] = []
    while endpoint and not select.select([sys.stdin], [], [], 0)[0]:
        contexts += [speak(endpoint, name, tried) for name in names(Path(folder))]
        crowd(endpoint, tried, connections)
        while len(contexts) > MAX_CONTEXTS:
            contexts.pop(0).destroy(linger=0)
        while len(connections) > MAX_CONNECTIONS:
            connections.pop(0).close()
    sys.stdout.write(json.dumps(tried))


if __name__ == "__main__":
    main(*sys.argv[1:])
