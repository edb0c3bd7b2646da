"""One warden and what it guards, as the coordinator sees them.

What a Handle promises: both its descriptors are pollable, read_events() never
blocks, close() leaves neither a process nor a descriptor behind, whatever state
the warden is in. Any thread may call any method; of several that close, one
does it and the others wait until it is done.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Union

from orchestrator.errors import LaunchFailed
from orchestrator.proc import ProcessRef
from orchestrator.reaper import Reaper
from protocol.pidfd import open_pidfd, send_signal


@dataclass(frozen=True)
class Timing:
    """Seconds. start_s: until a warden tells how the start went. end_s: until one that was told to kill is
    through, before it is killed itself. step_s: between two looks at stop() and calls of on_wait()."""

    start_s: float = 30.0
    end_s: float = 5.0
    step_s: float = 0.25


TIMING = Timing()


@dataclass(frozen=True)
class LaunchSpec:
    """`argv[0]` is looked up in the PATH of `env`; `log` is appended to; `cpus` are those that it and its warden
    are held to, () for all that we may use."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: str
    run_tag: str
    incarnation: str
    cpus: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        return {**self.env, "AIRLOCK_RUN": self.run_tag, "AIRLOCK_INCARNATION": self.incarnation}


@dataclass(frozen=True)
class Started:
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Exited:
    """The leader ended: with a code, or by a signal (named, "SIGKILL")."""

    code: int | None
    signal: str | None


@dataclass(frozen=True)
class Ended:
    """Nothing is left below the warden. strays: names of those that outlived the leader and had to be
    killed. killed: how many were killed in all, those taken down together with the leader included."""

    strays: tuple[str, ...]
    killed: int


@dataclass(frozen=True)
class WardenDied:
    """Without saying that all is over: sweep by tag. status: exit code, or the negative signal number."""

    status: int


@dataclass(frozen=True)
class Failed:
    """Nothing was started; launch() raises it as LaunchFailed."""

    error: str


WardenEvent = Union[Started, Exited, Ended, WardenDied, Failed]
LAST = (Ended, WardenDied, Failed)
EVENTS: dict[str, Callable[..., WardenEvent]] = {
    "started": Started,
    "exited": Exited,
    "ended": lambda strays, killed: Ended(tuple(strays), killed),
    "failed": Failed,
}


class Handle:
    """One warden and what it guards."""

    def __init__(self, spec: LaunchSpec, warden: subprocess.Popen[bytes], lifeline: int, status: int) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.started_ticks = 0  # with pid: the worker for good
        self.warden_pid = warden.pid
        self._warden = warden
        self._lifeline = lifeline
        self._status = status
        self._pidfd = open_pidfd(warden.pid)
        self._heard = b""
        self._pending: list[WardenEvent] = []
        self._last: WardenEvent | None = None  # one of LAST, once seen
        self._closing = threading.Lock()
        self._lock = threading.RLock()  # over what was heard, and over the descriptors: a closed one's number is reused
        self.closed = False
        for fd in (lifeline, status):
            os.set_blocking(fd, False)

    def fileno_status(self) -> int:
        return self._status

    def fileno_pidfd(self) -> int:
        """Readable once the warden has ended, shortly after it sent Ended."""
        return self._pidfd

    def read_events(self) -> list[WardenEvent]:
        """What was reported since the last call. Started is there right after the launch, before any poll."""
        with self._lock:
            self._receive()
            events, self._pending = self._pending, []
        return events

    def terminate(self) -> None:
        """Asks for SIGTERM to the worker's process group."""
        self._say(b"term\n")

    def kill(self) -> None:
        """Asks for SIGKILL to everything below the warden, until nothing is left."""
        self._say(b"kill\n")

    def close(self) -> None:
        """Kills what is left, reaps the warden, closes the descriptors. Idempotent.

        Returns at once after Ended; else it blocks, up to end_s for the warden's
        work and then for a tag sweep. What it learns can still be read_events().
        """
        with self._closing:
            if not self.closed:
                self._close()

    def _close(self) -> None:
        if not self._last:
            self.kill()
            self._wait(lambda: self._last is not None, TIMING.end_s)
        if not self._wait(lambda: self._warden.poll() is not None, TIMING.end_s):
            self._warden.kill()
            self._warden.wait()
        with self._lock:
            self._receive()
            self.closed = True
            for fd in (self._lifeline, self._status, self._pidfd):
                os.close(fd)
        # Now, with three descriptors to spare: it needs a few.
        if isinstance(self._last, WardenDied):
            worker = [ProcessRef(self.pid, self.started_ticks, self.spec.incarnation)] if self.pid else []
            Reaper(self.spec.run_tag).sweep(self.spec.incarnation, known=worker)

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to read, at most `timeout_s`."""
        self._poll(timeout_s)

    def hand_over(self, order: bytes) -> None:
        """Gives the warden its order and waits for its answer. Raises LaunchFailed."""
        deadline = time.monotonic() + TIMING.start_s
        while order and not self._last and (left_s := deadline - time.monotonic()) > 0:
            with suppress(BlockingIOError, BrokenPipeError):
                order = order[os.write(self._lifeline, order) :]
            self._poll(min(left_s, TIMING.step_s) if order else 0, select.POLLOUT)
            self._receive()
            self._wake()
        while not self._pending and (left_s := deadline - time.monotonic()) > 0:
            self._wait(lambda: bool(self._pending), min(left_s, TIMING.step_s))
            self._wake()
        first = self._pending[0] if self._pending else None
        if not isinstance(first, Started):
            raise LaunchFailed(f"{self.spec.argv[0]} could not be started: {refusal(first)}")
        self.pid = first.pid
        self.started_ticks = first.start_ticks

    def _say(self, command: bytes) -> None:
        with self._lock:
            if self.closed:
                return
            with suppress(OSError):  # a warden that is gone shows up in read_events()
                os.write(self._lifeline, command)
            self._wake()

    def _wake(self) -> None:
        """Somebody may have stopped it."""
        with suppress(OSError):
            send_signal(self._pidfd, signal.SIGCONT)

    def _receive(self) -> None:
        with self._lock:
            if self._last or self.closed:
                return
            status = self._warden.poll()  # before reading: then all that a dead warden wrote is there
            with suppress(BlockingIOError):
                while text := os.read(self._status, 1 << 16):
                    self._heard += text
            *lines, self._heard = self._heard.split(b"\n")
            self._pending += map(parse_event, lines)
            if status is not None and not any(isinstance(event, LAST) for event in self._pending):
                self._pending.append(WardenDied(status))
            self._last = next((event for event in self._pending if isinstance(event, LAST)), None)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition() and (left_s := deadline - time.monotonic()) > 0:
            self._poll(left_s)
            self._receive()
        return condition()

    def _poll(self, timeout_s: float, lifeline: int = 0) -> None:
        if self.closed:
            return
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not self._last:  # afterwards its end of file would be ready at all times
            poll.register(self._status, select.POLLIN)
        if lifeline:
            poll.register(self._lifeline, lifeline)
        poll.poll(max(0.0, timeout_s) * 1000)


def parse_event(line: bytes) -> WardenEvent:
    fields = json.loads(line)
    return EVENTS[fields.pop("event")](**fields)


def refusal(first: WardenEvent | None) -> str:
    if isinstance(first, Failed):
        return first.error
    if isinstance(first, WardenDied):
        return f"its warden ended with status {first.status}; see the log"
    return f"its warden did not answer within {TIMING.start_s:g} s"
