from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.launcher import Launcher
from protocol.channel import DealerChannel, RouterChannel
from protocol.keys import Keys
from tests.process.ending import Outputs, unbroken_outputs
from tests.process.launching import Fifo, Launching
from tests.process.sweeping import Bench
from tests.process.wire_ends import NAME, TOKEN, Dial
from tests.process.wire_floor import ENDPOINTS, dial, open_channel
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


@pytest.fixture
def bench(nothing_leaked: None, tmp_path: Path) -> Bench:  # noqa: ARG001
    """Sweeps of the scripted engine through the command line."""
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What a small run gives that nobody disturbs."""
    return unbroken_outputs(tmp_path_factory.mktemp("unbroken"))


@pytest.fixture(params=ENDPOINTS)
def router(nothing_leaked: None, request: pytest.FixtureRequest) -> Iterator[RouterChannel]:  # noqa: ARG001
    """The coordinator's end, over each transport in turn."""
    with open_channel(request.param) as channel:
        yield channel


@pytest.fixture
def dialled(router: RouterChannel) -> Iterator[Dial]:
    """Dials `router` as a worker; all is closed at the end."""
    with ExitStack() as stack:

        def begin(name: str = NAME, token: str = TOKEN, keys: Keys | None = None) -> DealerChannel:
            one = dial(router, name, token, keys)
            stack.callback(one.close)
            return one

        yield begin
