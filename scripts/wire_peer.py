"""The far end of a wire, in a process of its own, that answers each batch with the same 64 records at once.

As `airlock` it is all that a worker has between socket and engine: its password, the wire and its lock, the codec. As
`msgpack` it unpacks what comes and packs its answer, with nothing else; as `echo` it does not even look; as `curve` it
does not either, but what goes over the socket is encrypted and in parts, as Airlock's is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgpack
import zmq

from protocol.channel import DealerChannel
from protocol.codec import encode
from protocol.keys import Keys
from protocol.messages import BatchDone, Run
from protocol.parts import split
from protocol.records import BatchStats, Generation
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids
from workers.wire import Wire

PROMPTS, PROMPT_IDS, NEW_TOKENS, TEXT_BYTES = 64, 256, 256, 2000


def question() -> Run:
    """64 prompts × 1 kB."""
    config = BackendConfig(
        method=MethodSpec("scripted", "scripted"), model_path="x", max_new_tokens=NEW_TOKENS, batch_size=PROMPTS
    )
    prompts = [PromptInput(str(n), pack_ids(range(n, n + PROMPT_IDS))) for n in range(PROMPTS)]
    return Run(PromptBatch("b", prompts, CallParams.of(config)))


def answer() -> BatchDone:
    """64 records × 2 kB of text and 256 ids."""
    records = [
        Generation(
            prompt_id=str(n),
            text=chr(ord("a") + n % 26) * TEXT_BYTES,
            token_ids=pack_ids(range(n, n + NEW_TOKENS)),
            generated_tokens=NEW_TOKENS,
            finish_reason="length",
            prompt_tokens=PROMPT_IDS,
            prompt_digest="0123456789abcdef",
            ttft_s=0.01,
            latency_s=0.5,
        )
        for n in range(PROMPTS)
    ]
    return BatchDone("b", records, BatchStats(wall_s=0.5, generated_tokens=PROMPTS * NEW_TOKENS))


def airlock(given: Mapping[str, str]) -> None:
    keys = Keys("", given["secret"])
    wire, done = Wire(DealerChannel(given["endpoint"], given["name"], given["token"], keys)), answer()
    wire.send(done)  # it is there
    while isinstance(wire.receive(), Run):
        wire.send(done)
    wire.close()


def bare(way: str, endpoint: str, server_key: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, way.encode())
    socket.setsockopt(zmq.LINGER, 0)
    if server_key:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = server_key.encode()
    socket.connect(endpoint)
    packed = encode(answer())
    plain: Any = msgpack.unpackb(packed)
    socket.send(b"hello")
    while len(asked := b"".join(socket.recv_multipart())) > 1:
        if way == "msgpack":
            msgpack.unpackb(asked)
            packed = msgpack.packb(plain)
        socket.send_multipart(split(packed) if server_key else [packed])


if __name__ == "__main__":
    if sys.argv[1] == "airlock":
        airlock(dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True)))
    else:
        bare(*sys.argv[1:])
