"""What the scripted backend can be told to do wrong, and when.

A fault is a map: {"at": MOMENT, "do": WHAT, "once": FILE, "touch": FILE, "gate": FIFO, "bytes": N}

MOMENT  hello import (by environment only) · load (at its start) · ready (at its end)
        · batch:N (the Nth batch this process gets, from 1) · prompt:ID (a batch that holds it)
        · beside (in a thread of its own, from load on) · shutdown
once    fires only if FILE does not exist, and makes it: a retry then succeeds
touch   appends "MOMENT PID" to FILE when the fault fires; with a FIFO a test waits
        for the moment without sleeping. For a child_… the PID is the child's
gate    first waits until somebody has opened the FIFO for writing and closed it
bytes   size for those that have one

The tables at the end list WHAT.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from protocol import PROTOCOL_VERSION
from protocol.codec import MAX_MESSAGE_BYTES, encode
from protocol.messages import BatchDone, Hello, Imported
from protocol.records import BatchStats, Generation
from workers.backends.base import EngineDead, Host

EARLY = frozenset({"hello", "import"})
_MOMENT = re.compile(r"hello|import|load|ready|beside|shutdown|batch:[1-9]\d*|prompt:.+", re.DOTALL)


class ScriptedFault(Exception):
    """What "raise" raises."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    at: str
    do: str
    once: str | None = None
    touch: str | None = None
    gate: str | None = None
    bytes: int = 0

    def __post_init__(self) -> None:
        if not _MOMENT.fullmatch(self.at):
            raise ValueError(f"no moment {self.at!r}")
        if self.do not in WHAT:
            raise ValueError(f"nothing called {self.do!r} can be done; there are {', '.join(sorted(WHAT))}")
        if self.do in RESULTS and not self.at.startswith(("batch:", "prompt:")):
            raise ValueError(f"{self.do!r} needs a batch or a prompt")


class Faults:
    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = tuple(faults)

    def fire(self, host: Host, *moments: str) -> list[Fault]:
        """Performs what is due and gives the faults that are left to be applied to the results."""
        due = [fault for moment in moments for fault in self._faults if fault.at == moment and _first_time(fault)]
        for fault in due:
            _perform(fault, host)
        return [fault for fault in due if fault.do in RESULTS]

    def start_beside(self, host: Host) -> None:
        threading.Thread(target=self.fire, args=(host, "beside"), daemon=True).start()


def _first_time(fault: Fault) -> bool:
    if fault.once is None:
        return True
    try:
        os.close(os.open(fault.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _perform(fault: Fault, host: Host) -> None:
    if fault.gate:
        with open(fault.gate, "rb") as gate:
            gate.read()
    if fault.do in CHILDREN:
        _touch(fault, _child(CHILDREN[fault.do], fault.bytes))
        return
    if fault.do in DEAF and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _touch(fault, os.getpid())
    if fault.do in ACTIONS:
        ACTIONS[fault.do](fault, host)


def _touch(fault: Fault, pid: int) -> None:
    if fault.touch:
        with open(fault.touch, "ab", buffering=0) as file:
            file.write(f"{fault.at} {pid}\n".encode())


# --- children that stay ---------------------------------------------------

_CHILD_SOURCE = """
import os, signal, sys
report, size, style = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if style == "orphan" and os.fork():
    os._exit(0)
if style in ("orphan", "setsid"):
    os.setsid()
if style == "ignore_term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = bytearray(b"x") * size
os.write(report, b"%d" % os.getpid())
os.close(report)
while True:
    signal.pause()
"""
#: What to do → style of the child, whether it keeps our environment.
CHILDREN: dict[str, tuple[str, bool]] = {
    "child_plain": ("plain", True),
    "child_ignore_term": ("ignore_term", True),
    "child_setsid": ("setsid", True),
    "child_double_fork": ("orphan", True),
    "child_clear_env": ("orphan", False),
}
_kept: list[subprocess.Popen[bytes]] = []


def _child(kind: tuple[str, bool], size: int) -> int:
    """Starts it and gives its pid once it runs."""
    style, keeps_environment = kind
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _CHILD_SOURCE, str(writing), str(size), style]
    _kept.append(subprocess.Popen(command, pass_fds=[writing], env=None if keeps_environment else {}))
    os.close(writing)
    with open(reading, "rb") as answer:
        pid = int(answer.read())
    if style == "orphan":
        _kept.pop().wait()
    return pid


# --- what happens at once -------------------------------------------------


def _hang(_fault: Fault, _host: Host) -> NoReturn:
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
    while True:
        signal.pause()


def _raise(fault: Fault, _host: Host) -> NoReturn:
    raise ScriptedFault(f"told to fail at {fault.at}")


def _raise_fatal(fault: Fault, _host: Host) -> NoReturn:
    raise EngineDead(f"told to die at {fault.at}")


def _memory_error(fault: Fault, _host: Host) -> NoReturn:
    raise MemoryError(f"told to run out of memory at {fault.at}")


def _segv(_fault: Fault, _host: Host) -> None:
    ctypes.string_at(0)


def _spin(_fault: Fault, _host: Host) -> None:
    """One C call that never gives the GIL back: not even a beat leaves."""
    deque(itertools.repeat(None), maxlen=0)


def _hello(protocol: int, token: str, host: Host) -> NoReturn:
    """Instead of the right one: waits for ever after it."""
    host.send_raw(encode(Hello(protocol, os.environ["AIRLOCK_INCARNATION"], token, os.getpid(), "")))
    while True:
        signal.pause()


def _wrong_protocol(_fault: Fault, host: Host) -> NoReturn:
    _hello(PROTOCOL_VERSION + 998, os.environ["AIRLOCK_TOKEN"], host)


def _wrong_token(_fault: Fault, host: Host) -> NoReturn:
    _hello(PROTOCOL_VERSION, "0" * 32, host)


def _late(_fault: Fault, host: Host) -> None:
    host.send_raw(encode(BatchDone("a-batch-of-long-ago", [], BatchStats(wall_s=0.0, generated_tokens=0))))


def _print_flood(fault: Fault, _host: Host) -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(fault.bytes // len(line)):
        os.write(1, line)


def _shm(fault: Fault, _host: Host) -> None:
    """A mapped segment that nobody will remove."""
    fd = os.open(f"/dev/shm/airlock-scripted-{os.getpid()}", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, fault.bytes or mmap.PAGESIZE)
    _segments.append(mmap.mmap(fd, fault.bytes or mmap.PAGESIZE))
    os.close(fd)


_segments: list[mmap.mmap] = []

#: Deaf to SIGTERM before the touch, so that whoever waits for it meets no race.
DEAF = frozenset({"hang_ignore_term", "spin"})
Action = Callable[[Fault, Host], None]
ACTIONS: dict[str, Action] = {
    "exit0": lambda _fault, _host: os._exit(0),
    "exit1": lambda _fault, _host: os._exit(1),
    "sys_exit": lambda _fault, _host: sys.exit(3),
    "segv": _segv,
    "sigkill": lambda _fault, _host: os.kill(os.getpid(), signal.SIGKILL),
    "sigstop": lambda _fault, _host: os.kill(os.getpid(), signal.SIGSTOP),
    "sigquit_group": lambda _fault, _host: os.killpg(0, signal.SIGQUIT),
    "hang": _hang,
    "hang_ignore_term": _hang,
    "spin": _spin,
    "raise": _raise,
    "raise_fatal": _raise_fatal,
    "memory_error": _memory_error,
    "give_up": lambda fault, host: host.give_up(EngineDead(f"told to give up at {fault.at}")),
    "garbage": lambda _fault, host: host.send_raw(b"\xc1 this is not msgpack"),
    "wrong_protocol": _wrong_protocol,
    "wrong_token": _wrong_token,
    "out_of_turn": lambda _fault, host: host.send_raw(encode(Imported(0.0, "again"))),
    "late": _late,
    "print_flood": _print_flood,
    "shm": _shm,
    "mark": lambda _fault, _host: None,  # touch and gate only
}


# --- what happens to the results ------------------------------------------


def apply(faults: Iterable[Fault], generations: list[Generation]) -> list[Generation]:
    for fault in faults:
        generations = RESULTS[fault.do](generations)
    return generations


def _oversized(generations: list[Generation]) -> list[Generation]:
    return [replace(generations[0], text="x" * MAX_MESSAGE_BYTES), *generations[1:]]


def _unencodable(generations: list[Generation]) -> list[Generation]:
    return [replace(generations[0], generated_tokens=2**70), *generations[1:]]


RESULTS: dict[str, Callable[[list[Generation]], list[Generation]]] = {
    "missing": lambda generations: generations[1:],
    "duplicate": lambda generations: [*generations, generations[0]],
    "surplus": lambda generations: [*generations, replace(generations[0], prompt_id="nobody-asked")],
    "wrong_digest": lambda generations: [replace(generations[0], prompt_digest="0" * 16), *generations[1:]],
    "oversized": _oversized,
    "unencodable": _unencodable,
    "surrogates": lambda generations: generations,  # done when the text is made, see ScriptedBackend
}
WHAT = frozenset({*ACTIONS, *CHILDREN, *RESULTS})
