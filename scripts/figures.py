"""What the figures of scripts/bench are made with: their form, a median, a whole sweep, a worker of no coordinator."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from orchestrator.view.stats import Interval
from protocol.channel import RouterChannel, join
from protocol.codec import decode_up
from protocol.messages import BatchDone, BatchFailed, Fatal, Init, Ready, Run, Shutdown
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
    """`ratio` is value over `against`, both in `unit`; `interval` is that of the value, with CONFIDENCE; `target` is
    what the project holds itself to."""

    name: str
    value: float
    unit: str
    against: str = ""
    reference: float | None = None
    target: str = ""
    interval: Interval | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    def __str__(self) -> str:
        beside = f"{self.ratio:8.3f} × {self.against} ({self.reference:.4g} {self.unit})" if self.ratio else ""
        if self.interval:
            beside = f"{CONFIDENCE:.0%} interval {self.interval.low:.4g} to {self.interval.high:.4g}  {beside}"
        return f"{self.name:<44} {self.value:10.4g} {self.unit:<10} {beside:<60} {self.target}".rstrip()


def median_s(run: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


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

    def run(self, batch: PromptBatch) -> BatchDone:
        self.channel.send(self.identity, Run(batch))
        while not isinstance(done := receive(self.channel), BatchDone):
            pass
        return done


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
        yield Peer(channel, identity.encode(), ready.metadata)
        channel.send(identity.encode(), Shutdown("done"))
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
