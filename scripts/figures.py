"""What the figures of scripts/bench are made with: their form, a median, a whole sweep, a worker of no coordinator."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from orchestrator.launcher import Ended, Handle, Launcher, LaunchSpec, base_environment
from orchestrator.view.stats import Interval
from protocol.channel import RouterChannel
from protocol.codec import decode_up
from protocol.messages import BatchDone, BatchFailed, Fatal, Init, Ready, Run, Shutdown
from protocol.parts import join
from protocol.records import RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch

REPO = Path(__file__).resolve().parent.parent
BOOTSTRAP = REPO / "workers" / "bootstrap.py"
TAG = "be9c4be9c4be9c40"
START_S = 30.0
CONFIDENCE = 0.95

#: A figure's maker gets a folder of its own, that is empty.
Maker = Callable[[Path], "Iterator[Figure]"]


@dataclass(frozen=True)
class Figure:
    """`ratio` is value over `against`, both in `unit`; `interval` is that of the value, with CONFIDENCE. What the
    project holds itself to: `most` or `least` of the ratio, `target` where that is not a bound of a ratio."""

    name: str
    value: float
    unit: str
    against: str = ""
    reference: float | None = None
    target: str = ""
    interval: Interval | None = None
    most: float | None = None
    least: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """None where there is no bound, or nothing to hold against it."""
        if self.ratio is None or (self.most is None and self.least is None):
            return None
        return (self.least or 0.0) <= self.ratio <= (math.inf if self.most is None else self.most)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    def __str__(self) -> str:
        beside = self.against  # a sentence where there is nothing to compare with
        if self.ratio is not None:
            beside = f"{self.ratio:8.3f} × {self.against} ({self.reference:.4g} {self.unit})"
        if self.interval:
            beside = f"{CONFIDENCE:.0%} interval {self.interval.low:.4g} to {self.interval.high:.4g}  {beside}"
        return f"{self.name:<52} {self.value:10.4g} {self.unit:<10} {beside:<64} {self._held_to()}".rstrip()

    def _held_to(self) -> str:
        bounds = (("at most", self.most), ("at least", self.least))
        words = [f"target: {which} {bound:g}" for which, bound in bounds if bound is not None]
        verdict = {None: "", True: ": met", False: ": missed"}[self.met]
        return f"{self.target}{' and '.join(words)}{verdict}"


def median_s(run: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def medians_s(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of several that take turns, so that what else runs on the machine meets all alike."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for place, run in enumerate(runs):
            taken[place].append(median_s(run, 1))
    return [statistics.median(one) for one in taken]


class Spent(NamedTuple):
    """By a command and what it waited for. CPU time is what other jobs on the machine change least."""

    wall_s: float
    peak_bytes: int
    cpu_s: float


#: A process starts with the peak of the one that started it, so that one has to be small.
_METER = """
import json, os, sys, time
begun = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
spent = [time.perf_counter() - begun, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]
os.write(int(sys.argv[1]), json.dumps([os.waitstatus_to_exitcode(status), *spent]).encode())
"""


def spent(command: Sequence[str], environment: Mapping[str, str] | None = None, given: IO[str] | None = None) -> Spent:
    """Raises SystemExit where the command does not end well. `given` is its stdin."""
    told, tell = os.pipe()
    argv = [sys.executable, "-I", "-S", "-c", _METER, str(tell), *command]
    with os.fdopen(told) as reader:
        process = subprocess.Popen(
            argv, cwd=REPO, env=environment, stdin=given, stdout=subprocess.DEVNULL, pass_fds=[tell]
        )
        os.close(tell)
        process.wait()
        code, *found = json.loads(reader.read() or "[null]")
    if code != 0:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return Spent(*found)


# --- a whole sweep ----------------------------------------------------------


def sweep_command(folder: Path, sweep: Mapping[str, Any] | Path) -> list[str]:
    """Of a sweep that is a file already, or is written to one in `folder`. Its run directory is `folder`/run."""
    if not isinstance(sweep, Path):
        path = folder / "sweep.yaml"
        path.write_text(json.dumps(sweep))
        sweep = path
    return [sys.executable, "-m", "orchestrator", "sweep", str(sweep), "--run-dir", str(folder / "run")]


def run_sweep(folder: Path, sweep: Mapping[str, Any] | Path, **variables: str) -> Path:
    """The run directory of a sweep that has ended well. Raises CalledProcessError."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, **variables}
    subprocess.run(sweep_command(folder, sweep), cwd=REPO, env=environment, check=True, stdout=sys.stderr)
    return folder / "run"


# --- a worker without a coordinator -----------------------------------------


class Peer(NamedTuple):
    """A worker that is ready, and what it said of itself."""

    channel: RouterChannel
    identity: bytes
    metadata: RuntimeMetadata
    handle: Handle

    def run(self, batch: PromptBatch) -> BatchDone:
        self.channel.send(self.identity, Run(batch))
        while not isinstance(done := receive(self.channel), BatchDone):
            pass
        return done

    def leave_s(self) -> float:
        """From the order to shut down until nothing of it is left."""
        begun = time.perf_counter()
        self.channel.send(self.identity, Shutdown("done"))
        while not any(isinstance(event, Ended) for event in self.handle.read_events()):
            if time.perf_counter() - begun > START_S:
                raise SystemExit("the worker does not leave")
            self.handle.wait(START_S)
        return time.perf_counter() - begun


def worker_environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    return base_environment() | {"TMPDIR": str(folder), **variables}


@contextmanager
def worker(
    folder: Path, python: str, config: BackendConfig, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Peer]:
    channel, identity = RouterChannel(f"ipc://{folder}/s"), "w1"
    env = worker_environment(folder, variables) | {
        "AIRLOCK_ENDPOINT": channel.endpoint,
        "AIRLOCK_TOKEN": "t",
        **channel.admit(identity, "t").variables,
        "AIRLOCK_ENGINE": config.method.engine,
    }
    argv = (python, str(BOOTSTRAP), "worker")
    handle = Launcher().launch(LaunchSpec(argv, env, str(folder), str(folder / "log"), TAG, identity))
    try:
        receive(channel)  # Hello
        receive(channel)  # Imported
        channel.send(identity.encode(), Init(config))
        while not isinstance(ready := receive(channel), Ready):
            pass
        yield Peer(channel, identity.encode(), ready.metadata, handle)
    finally:
        handle.close()
        channel.close()


def receive(channel: RouterChannel) -> Any:
    while (message := channel.receive()) is None:
        if not channel.socket.poll(int(START_S * 1000)):
            raise SystemExit("the worker is silent")
    found = decode_up(join(message[1]))
    if isinstance(found, (Fatal, BatchFailed)):
        raise SystemExit(f"the worker failed: {found.error.type}: {found.error.message}")
    return found
