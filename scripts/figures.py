"""What every figure of scripts/bench is made with: its form, a median, a worker without a coordinator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from protocol.channel import RouterChannel, join
from protocol.codec import decode_up
from protocol.messages import BatchFailed, Fatal, Init, Ready, Shutdown
from protocol.specs import BackendConfig

REPO = Path(__file__).resolve().parent.parent
BOOTSTRAP = REPO / "workers" / "bootstrap.py"
TAG = "be9c4be9c4be9c40"
START_S = 30.0


@dataclass(frozen=True)
class Figure:
    """`ratio` is value over `against`, both in `unit`; `target` is what the project holds itself to."""

    name: str
    value: float
    unit: str
    against: str = ""
    reference: float | None = None
    target: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    def __str__(self) -> str:
        ratio = f"{self.ratio:8.2f} × {self.against} ({self.reference:.4g} {self.unit})" if self.ratio else ""
        return f"{self.name:<44} {self.value:10.4g} {self.unit:<10} {ratio:<60} {self.target}".rstrip()


def median_s(run: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


@contextmanager
def worker(
    folder: Path, python: str, config: BackendConfig, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[RouterChannel, bytes]]:
    """One that is ready."""
    channel = RouterChannel(f"ipc://{folder}/s")
    env = base_environment() | {
        "AIRLOCK_ENDPOINT": channel.endpoint,
        "AIRLOCK_TOKEN": "t",
        **channel.admit("w1", "t").variables,
        "AIRLOCK_ENGINE": config.method.engine,
        "TMPDIR": str(folder),
        **variables,
    }
    argv = (python, str(BOOTSTRAP), "worker")
    handle = Launcher().launch(LaunchSpec(argv, env, str(folder), str(folder / "log"), TAG, "w1"))
    try:
        receive(channel)  # Hello
        receive(channel)  # Imported
        channel.send(b"w1", Init(config))
        while not isinstance(receive(channel), Ready):
            pass
        yield channel, b"w1"
        channel.send(b"w1", Shutdown("done"))
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
