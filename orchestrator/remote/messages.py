"""What a coordinator and its outposts tell each other, as msgpack, over the same wire as workers speak on.

An outpost runs a worker start as this machine would: with the same loop, and the worker on a socket of its own. What
it would write into a journal it tells, numbered and again until it is acknowledged. What the coordinator wants stands
in its pulse, so that nothing depends on any one message getting through.

    outpost                           coordinator
    Joined              →
                        ←             Brief, then Assign
    Told, Wrote, Logged →             (journalled)
    Tick, every second  →
                        ←             Pulse, every second: acknowledged so far, what is assigned, whether to leave
    Finished            →
"""

from __future__ import annotations

import re
from typing import Any, Union

import msgspec
from msgspec import Struct

from orchestrator.clusters.allocations import Node
from orchestrator.config import Limits, Measurement, Policies, Repairs
from orchestrator.definition.inputs import ModelInfo, Prompt
from orchestrator.definition.sources import ModelRef
from orchestrator.outcomes import Cause
from orchestrator.plan import WorkerStart
from orchestrator.progress import WorkerProgress
from orchestrator.provenance import HostUse
from protocol.codec import MAX_MESSAGE_BYTES
from protocol.errors import Malformed, Oversized
from protocol.records import BatchStats

#: Raised when an outpost of another version would be misunderstood.
REMOTE_VERSION = 2


# --- from an outpost -----------------------------------------------------------------


class Joined(Struct, frozen=True, kw_only=True, tag="joined"):
    version: int
    airlock: str
    token: str
    node: Node


class Told(Struct, frozen=True, kw_only=True, tag="told"):
    """An event, as a journal holds it: text that is no clean Unicode is dealt with there, and nowhere else."""

    number: int
    event: bytes


class Wrote(Struct, frozen=True, kw_only=True, tag="wrote"):
    """A batch of records, to be committed, each as generations.jsonl holds it."""

    number: int
    point: str
    batch: str
    incarnation: str
    records: list[bytes]
    stats: BatchStats | None
    flags: list[str]
    host: HostUse | None = None


class Logged(Struct, frozen=True, kw_only=True, tag="logged"):
    """A worker's log, once the worker is gone; its middle left out where it is long."""

    number: int
    name: str
    text: bytes


class Finished(Struct, frozen=True, kw_only=True, tag="finished"):
    """The assignment is over. `trouble`: why there is no more to be had from this place, "" if there is."""

    number: int
    assignment: int
    trouble: str = ""
    cause: Cause | None = None


class Tick(Struct, frozen=True, kw_only=True, tag="tick"):
    """`assignment`: the last that came. `leaving`: it was told to end, by its back end say, and why."""

    assignment: int
    briefed: bool
    progress: WorkerProgress | None = None
    leaving: str = ""


Numbered = Union[Told, Wrote, Logged, Finished]
Up = Union[Joined, Told, Wrote, Logged, Finished, Tick]


# --- from the coordinator ------------------------------------------------------------


class Brief(Struct, frozen=True, kw_only=True, tag="brief"):
    """What holds for all assignments of a run."""

    run: str
    model_ref: ModelRef
    model: ModelInfo
    prompts: list[Prompt]
    limits: Limits
    policies: Policies
    repairs: Repairs
    warmup: int
    measurement: Measurement


class Assign(Struct, frozen=True, kw_only=True, tag="assign"):
    """
    start   with the points that are left of it
    done    per point the prompts that have a record; bad: those of them whose record is an error
    left_s  of the run's time; None for no end
    """

    assignment: int
    start: WorkerStart
    fingerprint: str
    done: dict[str, list[str]]
    bad: dict[str, dict[str, Cause]]
    left_s: float | None = None


class Pulse(Struct, frozen=True, kw_only=True, tag="pulse"):
    """`heard`: the last number that is taken care of. `leave`: why the outpost is to end, "" while it is not; `kill`:
    at once."""

    heard: int
    assignment: int
    leave: str = ""
    kill: bool = False


Down = Union[Brief, Assign, Pulse]

_SURROGATE = re.compile("[\ud800-\udfff]")
_encoder = msgspec.msgpack.Encoder()
_up = msgspec.msgpack.Decoder(Up)
_down = msgspec.msgpack.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    """Raises Oversized, and Malformed for what can't be told. Lone surrogates become U+FFFD, as in a journal: names of
    files and what engines say are not always Unicode."""
    try:
        data = _encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError, RecursionError) as exc:
        raise Malformed(f"{type(message).__name__} can't be encoded: {exc}") from exc
    if len(data) > MAX_MESSAGE_BYTES:
        raise Oversized(len(data), MAX_MESSAGE_BYTES)
    return data


def _encode(message: Up | Down) -> bytes:
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(_clean(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _clean(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    return value


def decode_up(frame: bytes) -> Up:
    """Raises Malformed."""
    found: Up = _decode(_up, frame)
    return found


def decode_down(frame: bytes) -> Down:
    """Raises Malformed."""
    found: Down = _decode(_down, frame)
    return found


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise Malformed(f"no message of an outpost: {exc}") from exc
