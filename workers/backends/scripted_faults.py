"""What the scripted backend can be told to do wrong, and when.

A fault is a map: {"at": MOMENT, "do": WHAT, "once": FILE, "touch": FILE, "gate": FIFO, "bytes": N, "path": FILE}

MOMENT  hello import standby (by environment only) · load (at its start) · ready (at its end)
        · idle · batch:N (the Nth batch this process gets, from 1) · prompt:ID (a batch that holds it)
        · beside (in a thread of its own, from load on) · shutdown (also the one that SIGTERM leads to)
        standby and idle need a gate: once it opens the fault strikes the main thread
        where that waits for its Init, or for a batch
once    fires only if FILE does not exist, and makes it: a retry then succeeds
touch   appends "MOMENT PID" to FILE when the fault fires; with a FIFO a test waits
        for the moment without sleeping. For a child_… the PID is the child's
gate    first waits until somebody has opened the FIFO for writing and closed it
bytes   size for those that have one
path    of child_hold_lock the file to lock, of memory_killed the folder of a memory cgroup,
        of port the address to listen at

WHAT, beside what says itself:

sys_exit sigquit_group raise raise_fatal memory_error give_up
                what engines do when they fail; group: all of the worker's process group
ruin            raises, and from then on at every batch
spin            one C call that keeps the GIL: not even a beat leaves
memory_limit    lowers RLIMIT_AS and asks for more
memory_killed   joins the cgroup and takes memory until the kernel kills it; without a path by its own SIGKILL
wrong_protocol wrong_token
                a Hello that is wrong; at "hello" instead of the right one, and nothing after it
out_of_turn     Imported once more, or Ready where Imported is due
late            an answer that nobody waits for any more: to the last batch if that is over
late_answer     answers the batch, in full, but only after SIGTERM came
oversized_frame more bytes than the wire allows, past our own check; oversized: stopped by that check
child_…         see scripted_children
shm port file   something left behind: a segment in /dev/shm, a listening socket, a file in TMPDIR
missing duplicate surplus wrong_digest unencodable surrogates
                results that are not what was asked
mark            nothing: touch and gate only
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable

from msgspec import Struct

from workers.backends.base import Host
from workers.backends.scripted_actions import ACTIONS, Cue, ScriptedFault, ruined
from workers.backends.scripted_children import CHILDREN, start_child
from workers.backends.scripted_results import RESULTS
from workers.termination import Terminated

EARLY = frozenset({"hello", "import", "standby"})
GATED = frozenset({"standby", "idle"})
_MOMENT = re.compile(r"hello|import|standby|load|ready|idle|beside|shutdown|batch:[1-9]\d*|prompt:.+", re.DOTALL)
LONG_AGO = "a-batch-of-long-ago"
STRIKE_AGAIN_S = 0.01
#: Deaf to SIGTERM before the touch, so that whoever waits for it meets no race.
DEAF = frozenset({"hang_ignore_term", "spin"})
WHAT = frozenset({*ACTIONS, *CHILDREN, *RESULTS})


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    at: str
    do: str
    once: str | None = None
    touch: str | None = None
    gate: str | None = None
    bytes: int = 0
    path: str = ""

    def __post_init__(self) -> None:
        if not _MOMENT.fullmatch(self.at):
            raise ValueError(f"no moment {self.at!r}")
        if self.do not in WHAT:
            raise ValueError(f"nothing called {self.do!r} can be done; there are {', '.join(sorted(WHAT))}")
        if self.do in {*RESULTS, "late_answer"} and not self.at.startswith(("batch:", "prompt:")):
            raise ValueError(f"{self.do!r} needs a batch or a prompt")
        if self.at in GATED and not self.gate:
            raise ValueError(f"a fault at {self.at!r} needs a gate")


class Scene(Struct, frozen=True):
    """`over` is the last batch that this worker need not answer any more."""

    host: Host
    over: str = LONG_AGO


class Faults:
    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = tuple(faults)

    def fire(self, host: Host, *moments: str, over: str = LONG_AGO) -> list[Fault]:
        """Performs what is due and gives the faults that are left to be applied to the results."""
        if ruined and any(moment.startswith("batch:") for moment in moments):
            raise ScriptedFault("nothing works any more")
        due = self._due(*moments)
        for fault in due:
            _wait_for_gate(fault)
            _perform(fault, Scene(host, over))
        return [fault for fault in due if fault.do in RESULTS]

    def start_beside(self, host: Host) -> None:
        threading.Thread(target=self.fire, args=(host, "beside"), daemon=True).start()

    def lie_in_wait(self, moment: str, scene: Callable[[], Scene]) -> None:
        """Strikes the main thread, whose call this is, wherever it is once the gates are open."""
        due = self._due(moment)
        if not due:
            return

        struck = threading.Event()

        def strike(_signum: int, _frame: object) -> None:
            if not struck.is_set():
                struck.set()
                for fault in due:
                    _perform(fault, scene())

        def watch() -> None:
            for fault in due:
                _wait_for_gate(fault)
            # Again and again: a signal just before the main thread goes to sleep on a lock does not wake it.
            while not struck.wait(STRIKE_AGAIN_S):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

        signal.signal(signal.SIGUSR2, strike)
        threading.Thread(target=watch, daemon=True).start()

    def _due(self, *moments: str) -> list[Fault]:
        return [fault for moment in moments for fault in self._faults if fault.at == moment and _first_time(fault)]


def _first_time(fault: Fault) -> bool:
    if fault.once is None:
        return True
    try:
        os.close(os.open(fault.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _wait_for_gate(fault: Fault) -> None:
    if fault.gate:
        with open(fault.gate, "rb") as gate:
            gate.read()


def _perform(fault: Fault, scene: Scene) -> None:
    if fault.do in CHILDREN:
        _touch(fault, start_child(fault.do, fault.bytes, fault.path))
        return
    if fault.do in DEAF and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _touch(fault, os.getpid())
        if fault.do in ACTIONS:
            ACTIONS[fault.do](Cue(scene.host, scene.over, fault.at, fault.bytes, fault.path))
    except Terminated:
        if fault.do != "late_answer":
            raise


def _touch(fault: Fault, pid: int) -> None:
    if fault.touch:
        with open(fault.touch, "ab", buffering=0) as file:
            file.write(f"{fault.at} {pid}\n".encode())
