"""Coordinators that meet their end at a chosen moment: `Lives` in a test, and the process it talks to.

That process has read all modules already and forks for each life, which then is an
ordinary run of the command line. As a child subreaper it gets whatever a life leaves
behind, so it knows when all of that is gone.

A fate is a map:

    {"write": N, "torn": true}     SIGKILL just before the Nth write into the run directory, or in the middle of it
    {"replace": N}                 SIGKILL just before the Nth file is put in its place
    {"event": TYPE, "state": S}    acts just after this event (of this state) is in the journal:
      … "signals": [N, …]          sends these to itself
      … "raise": TEXT              raises RuntimeError(TEXT)
      … "stop_wardens": true       stops its wardens first
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36

Fate = Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """code: exit code, or the negative signal number. gone_s: from its end until the last descendant's."""

    code: int
    writes: int
    gone_s: float
    output: str


class Lives:
    """`env` is what all lives start with; `live` can change it for one."""

    def __init__(self, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.process.dying", str(log)],
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def live(self, fate: Fate, *argv: str, env: Mapping[str, str] | None = None) -> Ended:
        assert self._server.stdin
        assert self._server.stdout
        self._log.write_bytes(b"")
        self._server.stdin.write(json.dumps({"fate": dict(fate), "argv": argv, "env": {**(env or {})}}) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()), output=self._log.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.communicate()


# --- the process ----------------------------------------------------------


def serve(log: str) -> None:
    import orchestrator.run.sweep  # noqa: F401 - with all that it needs

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        order = json.loads(line)
        counted, counting = os.pipe()
        child = os.fork()
        if not child:
            os.environ.update(order["env"])
            begin(log)
            os._exit(live(order["fate"], order["argv"], counting))
        os.close(counting)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended = time.monotonic()
        reap_all()
        with open(counted, "rb") as writes:
            report = {"code": code, "writes": len(writes.read()), "gone_s": time.monotonic() - ended}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def begin(log: str) -> None:
    """What a freshly executed program would find."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for fd, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, fd)


def live(fate: Fate, argv: list[str], counting: int) -> int:
    from orchestrator.cli import run

    counter = Counter(counting, fate)
    counter.install()
    if "event" in fate:
        act_at_event(fate)
    code = run(argv)
    sys.stdout.flush()
    return code


def reap_all() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


class Counter:
    """Stands before every write and every os.replace."""

    def __init__(self, told: int, fate: Fate) -> None:
        self._told = told
        self._fate = fate
        self._writes = self._replaces = 0

    def install(self) -> None:
        pwrite, replace = os.pwrite, os.replace

        def counted_write(fd: int, data: bytes, offset: int) -> int:
            self._writes += 1
            os.write(self._told, b".")
            if self._writes == self._fate.get("write"):
                if self._fate.get("torn"):
                    pwrite(fd, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return pwrite(fd, data, offset)

        def counted_replace(source: Any, target: Any) -> None:
            self._replaces += 1
            if self._replaces == self._fate.get("replace"):
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.pwrite, os.replace = counted_write, counted_replace  # type: ignore[assignment]


def act_at_event(fate: Fate) -> None:
    from orchestrator.journal import Journal

    emit: Callable[[Journal, Any], None] = Journal.emit

    def emit_and_act(self: Journal, event: Any) -> None:
        emit(self, event)
        tag = type(event).__struct_config__.tag
        if tag == fate["event"] and fate.get("state") in (None, getattr(event, "state", None)):
            act(fate)

    Journal.emit = emit_and_act  # type: ignore[method-assign]


def act(fate: Fate) -> None:
    if fate.get("stop_wardens"):
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGSTOP)
    for number in fate.get("signals", ()):
        os.kill(os.getpid(), number)
    if "raise" in fate:
        raise RuntimeError(fate["raise"])


if __name__ == "__main__":
    serve(sys.argv[1])
