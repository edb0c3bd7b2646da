"""Starts processes, each under a warden of its own. Nothing else in Airlock spawns.

A worker's environment is exactly what its LaunchSpec says plus AIRLOCK_RUN,
AIRLOCK_INCARNATION and AIRLOCK_WARDEN_PID; its limits are ours, but for its mark.

The lifeline's write end lives in this process only (close-on-exec); a fork
without exec would keep it open and blind the warden, so never fork here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.errors import LaunchFailed
from orchestrator.handle import TIMING, Ended, Exited, Handle, LaunchSpec, Started, WardenDied, WardenEvent

__all__ = [
    "Completed",
    "Ended",
    "Exited",
    "Handle",
    "LaunchSpec",
    "Launcher",
    "Started",
    "WardenDied",
    "WardenEvent",
    "base_environment",
    "beside",
    "of_a_job",
]

WARDEN = str(Path(__file__).with_name("warden.py"))

#: Of the caller's own Python: none of it may reach a worker.
OF_PYTHON = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__"})
#: Of a job of torchrun, DeepSpeed or MPI that we stand in: an engine would take itself for a rank of it, and wait for
#: the others or for a store that nobody holds.
OF_JOBS = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "CROSS_RANK", "MASTER_ADDR"}
    | {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_SIZE", "CROSS_SIZE"}
    | {"MASTER_PORT"}
)
#: torchrun's agent; Open MPI and its runtimes; MPICH and Intel MPI; MVAPICH; Cray's launcher.
OF_JOBS_PREFIXES = (
    *("TORCHELASTIC_", "OMPI_", "PRTE_", "PMIX_", "PMI_", "PMI2_", "HYDI_", "MPI_LOCAL", "MV2_COMM_WORLD_"),
    *("MVP_COMM_WORLD_", "PALS_"),
)
ADDED = {
    "PYTHONNOUSERSITE": "1",  # ~/.local would mix into every environment
    "PYTHONUNBUFFERED": "1",  # a crash must not swallow the last lines of the log
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUTF8": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that CUDA counts devices as NVML does
    # setproctitle, which engines use, writes over /proc/<pid>/environ otherwise, and with it over our tag.
    "SPT_NOENV": "1",
}


def base_environment() -> dict[str, str]:
    """The caller's environment without what would leak into a worker, plus what every worker needs."""
    dropped = {name for name in os.environ if name in OF_PYTHON or name.startswith(("PYTHON", "AIRLOCK_"))}
    dropped.update(of_a_job(os.environ))
    return {name: value for name, value in os.environ.items() if name not in dropped} | ADDED


def beside(python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """With the programs beside an interpreter on the PATH, first, as activating its environment would have it: engines
    call ninja by its bare name. A folder that is there keeps its place: others may be meant to come before."""
    folder, path = os.path.dirname(python), environment.get("PATH", os.defpath)
    known = not folder or folder in path.split(os.pathsep)
    return {**environment, "PATH": path if known else f"{folder}{os.pathsep}{path}"}


def of_a_job(environ: Iterable[str]) -> list[str]:
    """The names of those that tell a process its place in a job of several; no worker gets them."""
    return sorted(name for name in environ if name in OF_JOBS or name.startswith(OF_JOBS_PREFIXES))


@dataclass(frozen=True)
class Completed:
    """How Launcher.run ended. stopped: the caller's stop() said so."""

    code: int | None
    signal: str | None
    strays: tuple[str, ...]
    timed_out: bool
    stopped: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out and not self.stopped


class Launcher:
    """Starts wardens and knows which of them are still this process's own to reap."""

    def __init__(self) -> None:
        self._handles: list[Handle] = []

    def owned(self) -> frozenset[int]:
        """Pids of the wardens whose handles are open."""
        self._handles = [handle for handle in self._handles if not handle.closed]
        return frozenset(handle.warden_pid for handle in self._handles)

    def launch(self, spec: LaunchSpec) -> Handle:
        """Returns when the process runs, or raises LaunchFailed with the system's reason."""
        if not proc.is_ours():  # every pid read there, and so every kill, would be somebody else's
            raise LaunchFailed("/proc is not there or is that of another PID namespace; mount one of our own first")
        try:
            handle = start_warden(spec)
        except OSError as error:
            raise LaunchFailed(f"{spec.argv[0]} could not be started: {error}") from error
        try:
            handle.hand_over(encode_order(spec))
        except BaseException:
            handle.close()
            raise
        self.owned()
        self._handles.append(handle)
        return handle

    def run(
        self,
        spec: LaunchSpec,
        timeout_s: float,
        on_wait: Callable[[], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Completed:
        """Runs a tool to its end, with nothing of it left afterwards, whatever happens.

        on_wait is called, and stop asked, every step_s. A warden that dies raises LaunchFailed.
        """
        handle = self.launch(spec)
        try:
            return self._follow(handle, timeout_s, on_wait, stop)
        finally:
            handle.close()

    def _follow(
        self,
        handle: Handle,
        timeout_s: float,
        on_wait: Callable[[], None] | None,
        stop: Callable[[], bool] | None,
    ) -> Completed:
        deadline = time.monotonic() + timeout_s
        timed_out = stopped = False
        exited = Exited(None, None)
        while True:
            for event in handle.read_events():
                if isinstance(event, WardenDied):
                    raise LaunchFailed(f"the warden of {handle.spec.argv[0]} was killed (status {event.status})")
                if isinstance(event, Exited):
                    exited = event
                if isinstance(event, Ended):
                    return Completed(exited.code, exited.signal, event.strays, timed_out, stopped)
            late = time.monotonic() >= deadline
            if late and (timed_out or stopped):  # not even SIGKILL helped; close() does what can be done
                return Completed(exited.code, exited.signal, (), timed_out, stopped)
            if not (timed_out or stopped):
                stopped = stop is not None and stop()
                timed_out = late and not stopped
                if timed_out or stopped:
                    handle.kill()
                    deadline = time.monotonic() + TIMING.end_s
            handle.wait(min(TIMING.step_s, deadline - time.monotonic()))
            if on_wait:
                on_wait()


def start_warden(spec: LaunchSpec) -> Handle:
    with ExitStack() as theirs, ExitStack() as ours:
        orders, lifeline = os.pipe2(os.O_CLOEXEC)
        theirs.callback(os.close, orders)
        ours.callback(os.close, lifeline)
        status, events = os.pipe2(os.O_CLOEXEC)
        theirs.callback(os.close, events)
        ours.callback(os.close, status)
        log = os.open(spec.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        theirs.callback(os.close, log)
        warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", WARDEN],
            stdin=orders,
            stdout=events,
            stderr=log,
            cwd="/",
            env=warden_environment(spec),
            start_new_session=True,  # no terminal's ^C, no group's signal reaches it
        )
        try:
            handle = Handle(spec, warden, lifeline, status)
        except BaseException:  # out of descriptors just now, or interrupted
            warden.kill()
            warden.wait()
            raise
        ours.pop_all()
        return handle


def warden_environment(spec: LaunchSpec) -> dict[str, str]:
    """Its own Python may need the library path; the tag makes it findable once its coordinator is gone."""
    kept = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
    return {**kept, "AIRLOCK_RUN": spec.run_tag, "AIRLOCK_INCARNATION": spec.incarnation}


def encode_order(spec: LaunchSpec) -> bytes:
    """The warden runs in UTF-8 mode, this process perhaps not: the bytes must be the same on both sides."""
    order = {
        "argv": [wire(part) for part in spec.argv],
        "env": {wire(name): wire(value) for name, value in spec.environment().items()},
        "cwd": wire(spec.cwd),
        "mark": proc.mark(spec.run_tag, spec.incarnation),
        "cpus": spec.cpus,
    }
    return json.dumps(order).encode() + b"\n"


def wire(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")
