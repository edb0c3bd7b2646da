"""What the scripted backend does wrong when it is told to, see `scripted_faults`."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from msgspec import Struct

from protocol import PROTOCOL_VERSION
from protocol.codec import MAX_MESSAGE_BYTES, encode
from protocol.messages import BatchDone, Hello, Imported, Ready
from protocol.records import BatchStats, RuntimeMetadata
from workers.backends.base import EngineDead, Host

#: What stays free under a lowered limit: with less, glibc aborts where it makes an arena or a thread's own data.
SPARE_BYTES = 512 << 20


class ScriptedFault(Exception):
    """What "raise" raises."""


class Cue(Struct, frozen=True):
    """What an action is told. `over` is the last batch that this worker need not answer any more; the rest is of the
    fault."""

    host: Host
    over: str
    at: str
    bytes: int
    path: str


# --- what happens at once -------------------------------------------------


def _hang(_cue: Cue) -> NoReturn:
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
    while True:
        signal.pause()


def _raise(cue: Cue) -> NoReturn:
    raise ScriptedFault(f"told to fail at {cue.at}")


#: Not empty once it is so.
ruined: list[bool] = []


def _ruin(cue: Cue) -> NoReturn:
    ruined.append(True)
    _raise(cue)


def _raise_fatal(cue: Cue) -> NoReturn:
    raise EngineDead(f"told to die at {cue.at}")


def _memory_error(cue: Cue) -> NoReturn:
    raise MemoryError(f"told to run out of memory at {cue.at}")


def _memory_limit(_cue: Cue) -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_BYTES, hard))
    bytearray(2 * SPARE_BYTES)


def _memory_killed(cue: Cue) -> NoReturn:
    if cue.path:
        with open(os.path.join(cue.path, "cgroup.procs"), "w", encoding="ascii") as members:
            members.write(str(os.getpid()))
    held = bytearray(b"x") * cue.bytes
    if not cue.path:
        os.kill(os.getpid(), signal.SIGKILL)
    raise MemoryError(f"{len(held)} bytes are no more than {cue.path} allows")


def _segv(_cue: Cue) -> None:
    ctypes.string_at(0)


def _spin(_cue: Cue) -> None:
    deque(itertools.repeat(None), maxlen=0)


def _hello(cue: Cue, protocol: int, token: str) -> None:
    cue.host.send_raw(encode(Hello(protocol, os.environ["AIRLOCK_INCARNATION"], token, os.getpid(), "")))
    while cue.at == "hello":
        signal.pause()


def _wrong_protocol(cue: Cue) -> None:
    _hello(cue, PROTOCOL_VERSION + 998, os.environ["AIRLOCK_TOKEN"])


def _wrong_token(cue: Cue) -> None:
    _hello(cue, PROTOCOL_VERSION, "0" * 32)


def _out_of_turn(cue: Cue) -> None:
    metadata = RuntimeMetadata(engine="scripted", engine_version="again", python_version="")
    cue.host.send_raw(encode(Ready(metadata) if cue.at == "import" else Imported(0.0, "again")))


def _late(cue: Cue) -> None:
    cue.host.send_raw(encode(BatchDone(cue.over, [], BatchStats(wall_s=0.0, generated_tokens=0))))


def _print_flood(cue: Cue) -> None:
    for _ in range(cue.bytes // 1024):
        sys.stdout.write("x" * 1023 + "\n")  # as engines print: what the stream raises is the batch's


# --- what is left lying about ---------------------------------------------

_left: list[mmap.mmap | socket.socket] = []


def _shm(cue: Cue) -> None:
    """A mapped segment that nobody will remove, with every page of it really there."""
    name = f"/dev/shm/airlock-scripted-{os.environ['AIRLOCK_INCARNATION']}"
    fd = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, cue.bytes or mmap.PAGESIZE)
    segment = mmap.mmap(fd, cue.bytes or mmap.PAGESIZE)
    _left.append(segment)
    segment[:] = bytes(len(segment))
    os.close(fd)


def _port(cue: Cue) -> None:
    _left.append(socket.create_server((cue.path or "127.0.0.1", 0)))


def _file(cue: Cue) -> None:
    fd, _ = tempfile.mkstemp(prefix="airlock-scripted-")
    if cue.bytes:
        os.posix_fallocate(fd, 0, cue.bytes)
    os.close(fd)


Action = Callable[[Cue], None]
ACTIONS: dict[str, Action] = {
    "exit0": lambda _cue: os._exit(0),
    "exit1": lambda _cue: os._exit(1),
    "sys_exit": lambda _cue: sys.exit(3),
    "segv": _segv,
    "sigkill": lambda _cue: os.kill(os.getpid(), signal.SIGKILL),
    "sigstop": lambda _cue: os.kill(os.getpid(), signal.SIGSTOP),
    "sigquit_group": lambda _cue: os.killpg(0, signal.SIGQUIT),
    "hang": _hang,
    "hang_ignore_term": _hang,
    "late_answer": _hang,  # SIGTERM ends the wait and not the batch; the session heeds it at its next window
    "spin": _spin,
    "raise": _raise,
    "ruin": _ruin,
    "raise_fatal": _raise_fatal,
    "memory_error": _memory_error,
    "memory_limit": _memory_limit,
    "memory_killed": _memory_killed,
    "give_up": lambda cue: cue.host.give_up(EngineDead(f"told to give up at {cue.at}")),
    "garbage": lambda cue: cue.host.send_raw(b"\xc1 this is not msgpack"),
    "wrong_protocol": _wrong_protocol,
    "wrong_token": _wrong_token,
    "out_of_turn": _out_of_turn,
    "late": _late,
    "oversized_frame": lambda cue: cue.host.send_raw(bytes(MAX_MESSAGE_BYTES + 1)),
    "print_flood": _print_flood,
    "shm": _shm,
    "port": _port,
    "file": _file,
    "mark": lambda _cue: None,
}
