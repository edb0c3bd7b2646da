from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.launcher import Launcher
from tests.process.launching import Fifo, Launching
from tests.process.worker_peer import Peer, Start


@pytest.fixture
def launching(nothing_leaked: None, tmp_path: Path, run_tag: str) -> Iterator[Launching]:  # noqa: ARG001
    with ExitStack() as stack:
        fifo = Fifo(tmp_path / "fifo")
        stack.callback(fifo.close)
        yield Launching(Launcher(), tmp_path, run_tag, fifo, stack)


@pytest.fixture
def start(nothing_leaked: None, run_tag: str) -> Iterator[Start]:  # noqa: ARG001
    """Starts workers, each with a coordinator's end of its own; see `worker_peer.Peer`."""
    with ExitStack() as stack:

        def begin(engine: str = "scripted", env: Mapping[str, str] | None = None, output: str = "") -> Peer:
            peer = Peer(run_tag, engine, env, output)
            stack.callback(peer.close)
            return peer

        yield begin


@pytest.fixture
def fifo(nothing_leaked: None, tmp_path: Path) -> Iterator[Fifo]:  # noqa: ARG001
    made = Fifo(tmp_path / "fifo")
    yield made
    made.close()
