#!/usr/bin/env python3
"""A worker for Airlock in one file: ZeroMQ, msgpack and docs/protocol.md, and nothing of Airlock's own code.

Its "engine" gives every prompt back, last token first. It needs a Python with pyzmq and msgpack, such as the one that
Airlock itself runs with. To see it at work beside the scripted engine:

    methods:
      - scripted
      - {name: tiny, base: scripted, worker: [/path/of/airlock/.venv/bin/python, /path/of/examples/tiny_worker.py]}
"""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import time
from typing import Any

import msgpack
import zmq

PROTOCOL = 3
PART_BYTES = 256 * 1024
BEAT_MS = 1000


class Wire:
    """A DEALER socket: messages are msgpack maps, in parts of PART_BYTES."""

    def __init__(self, given: dict[str, str]) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 2000  # milliseconds, for the farewell to leave; ZeroMQ's own default is for ever
        digest = hashlib.sha256(given["AIRLOCK_TOKEN"].encode()).hexdigest()[:16]
        self.socket.setsockopt(zmq.IDENTITY, f"{given['AIRLOCK_INCARNATION']}.{digest}".encode())
        secret = given["AIRLOCK_SECRET_KEY"].encode()
        if given["AIRLOCK_ENDPOINT"].startswith("ipc:"):
            self.socket.plain_username = given["AIRLOCK_INCARNATION"].encode()
            self.socket.plain_password = secret
        else:
            self.socket.ipv6 = "[" in given["AIRLOCK_ENDPOINT"]
            self.socket.curve_serverkey = given["AIRLOCK_SERVER_KEY"].encode()
            self.socket.curve_secretkey = secret
            self.socket.curve_publickey = zmq.curve_public(secret)
        self.socket.connect(given["AIRLOCK_ENDPOINT"])

    def send(self, kind: str, **fields: Any) -> None:
        data = msgpack.packb({"type": kind, **fields})
        self.socket.send_multipart([data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)])

    def receive(self, phase: str) -> dict[str, Any]:
        """The next message; beats while it waits."""
        beats = 0
        while not self.socket.poll(BEAT_MS):
            beats += 1
            self.send("beat", phase=phase, progress=beats)
        message: dict[str, Any] = msgpack.unpackb(b"".join(self.socket.recv_multipart()))
        return message


def answer(prompt: dict[str, Any], call: dict[str, Any], started: float) -> dict[str, Any]:
    """One generation: the ids backwards, then the end-of-sequence id if there is room for it."""
    given = prompt["token_ids"]
    wanted = list(struct.unpack(f"<{len(given) // 4}I", given))[::-1] + list(call["stop_token_ids"][:1])
    ids = wanted[: call["max_new_tokens"]]
    ended = bool(ids) and ids[-1] in call["stop_token_ids"]
    return {
        "prompt_id": prompt["id"],
        "text": bytes(one for one in ids if 0 < one < 256).decode("utf-8", "replace"),
        "token_ids": struct.pack(f"<{len(ids)}I", *ids),
        "generated_tokens": len(ids),
        "finish_reason": "stop" if ended else "length",
        "prompt_tokens": len(given) // 4,
        "prompt_digest": hashlib.sha256(given).hexdigest()[:16],
        "latency_s": time.perf_counter() - started,
    }


def refusal(batch: dict[str, Any]) -> str:
    """What is asked and can't be done as asked, which must not look as if it had been; empty if all can."""
    call = batch["call"]
    asked = {
        f"task: {call['task']}": call["task"] != "generate",
        "images": any(prompt["images"] for prompt in batch["prompts"]),
        "temperature": call["temperature"] > 0,
        "logprobs": call["logprobs"] > 0,
        "ignore_eos": call["ignore_eos"],
    }
    return ", ".join(name for name, on in asked.items() if on)


def run(wire: Wire, batch: dict[str, Any]) -> None:
    started = time.perf_counter()
    if refused := refusal(batch):
        error = {"type": "NotImplementedError", "message": f"it turns prompts round, and nothing else: no {refused}"}
        wire.send("batch_failed", batch_id=batch["batch_id"], error=error)
        return
    generations = [answer(prompt, batch["call"], started) for prompt in batch["prompts"]]
    stats = {
        "wall_s": time.perf_counter() - started,
        "generated_tokens": sum(one["generated_tokens"] for one in generations),
    }
    wire.send("batch_done", batch_id=batch["batch_id"], generations=generations, stats=stats)


def main() -> None:
    given = dict(os.environ)
    wire = Wire(given)
    python, name, token = platform.python_version(), given["AIRLOCK_INCARNATION"], given["AIRLOCK_TOKEN"]
    wire.send("hello", protocol=PROTOCOL, incarnation=name, token=token, pid=os.getpid(), python=python)
    wire.send("imported", import_s=0.0, engine_version="1")
    phase = "standby"
    while (message := wire.receive(phase))["type"] != "shutdown":
        if message["type"] == "init":
            if unknown := ", ".join(message["config"]["method"]["engine_args"]):
                error = {"type": "ValueError", "message": f"it takes no arguments: {unknown}"}
                wire.send("fatal", phase="loading", error=error)
                break
            phase = "ready"
            notes = ["no model: dtype, attention, KV cache and lengths do not exist"]
            metadata = {"engine": "tiny", "engine_version": "1", "python_version": python, "notes": notes}
            wire.send("ready", metadata=metadata)
        elif message["type"] == "run":
            run(wire, message["batch"])
    else:
        wire.send("goodbye")
    wire.context.destroy()


if __name__ == "__main__":
    main()
