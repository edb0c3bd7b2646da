"""Which ports a tree listens on, as the kernel tells: of real processes, on both families of addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.proc import ProcessRef
from orchestrator.reaper import subtree
from tests.process.launching import Launching, to_the_end
from tests.process.ports import listening, still_open

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: Listens on port 0 of each address, in a child, and is connected to one of them; then says the ports.
LISTENER = """
import os, signal, socket, sys
if os.fork():
    signal.pause()
kept = []
for address in sys.argv[2:]:
    kept.append(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
    kept[-1].bind((address, 0))
    kept[-1].listen()
kept.append(socket.create_connection(kept[0].getsockname()[:2]))
kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
kept[-1].bind(("127.0.0.1", 0))
ports = " ".join(str(one.getsockname()[1]) for one in kept[: len(sys.argv) - 2])
os.write(os.open(sys.argv[1], os.O_WRONLY), (ports + "\\n").encode())
signal.pause()
"""


@pytest.fixture
def stranger() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def addresses() -> list[str]:
    return ["127.0.0.1", "0.0.0.0", *(["::1"] if has_ipv6() else [])]


def has_ipv6() -> bool:
    with closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_only_listeners_of_the_tree_are_told_and_gone_with_it(launching: Launching, stranger: int) -> None:
    handle = launching.launch(launching.python(LISTENER, launching.fifo.path, *addresses()))
    ports = [int(port) for port in launching.fifo.line().split()]
    found = listening(subtree(handle.warden_pid))
    assert {(one.address, one.port) for one in found} == set(zip(addresses(), ports, strict=True))
    assert {one.pid for one in found} == {subtree(handle.warden_pid)[-1].pid}
    assert set(still_open(found)) == set(found)
    assert stranger not in {one.port for one in found}
    handle.kill()
    to_the_end(handle)
    assert still_open(found) == []


def test_a_process_that_is_gone_listens_on_nothing() -> None:
    assert listening([ProcessRef(2**22 + 1, 1, "nobody")]) == []
