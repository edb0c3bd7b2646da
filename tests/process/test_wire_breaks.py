"""What comes back after a break, and how a break that nobody tells of is found."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from protocol import channel as wire
from protocol.channel import RouterChannel
from protocol.messages import Beat, Goodbye, Shutdown
from tests.process.launching import PATIENCE_S
from tests.process.wire_ends import HELLO, NAME, REPO, SELDOM, TOKEN, Dial, heard, speaker, wait_for_the_break
from tests.process.wire_floor import IPC, TCP, TCP6, dial, open_channel
from tests.process.zmtp import tcp_connections

pytestmark = pytest.mark.usefixtures("nothing_leaked")

PARTITION_S = 60
PROBING = (
    1,
    wire.KEEPALIVE_IDLE_S,
    wire.KEEPALIVE_INTERVAL_S,
    wire.KEEPALIVE_PROBES,
    wire.UNACKNOWLEDGED_MS,
)


def test_a_cut_connection_is_dialled_again(router: RouterChannel, dialled: Dial) -> None:
    worker = dialled()
    worker.send(HELLO)
    heard(router)
    router.hang_up(NAME)
    wait_for_the_break(router)
    worker.send(Goodbye())
    assert heard(router) == (NAME, Goodbye())
    router.send(NAME.encode(), Shutdown("found"))
    while (message := worker.receive(PATIENCE_S)) == Shutdown("lost"):
        pass
    assert message == Shutdown("found")


def test_whoever_comes_second_to_a_local_socket_stays_outside() -> None:
    with open_channel(IPC) as router, speaker(router, SELDOM) as (_, keys):
        heard(router)
        second = dial(router, NAME, TOKEN, keys)
        second.send(Goodbye())
        assert all(isinstance(heard(router)[1], Beat) for _ in range(5))
        second.close()


@pytest.mark.parametrize("endpoint", [TCP, TCP6])
def test_over_a_network_the_newest_connection_counts(endpoint: str) -> None:
    """The older one may be dead and not known to be, as that of a machine behind a broken link."""
    with open_channel(endpoint) as router, speaker(router, SELDOM) as (process, keys):
        heard(router)
        process.send_signal(signal.SIGSTOP)
        second = dial(router, NAME, TOKEN, keys)
        second.send(Goodbye())
        while isinstance(message := heard(router)[1], Beat):
            pass
        assert message == Goodbye()
        router.send(NAME.encode(), Shutdown("to the second"))
        assert second.receive(PATIENCE_S) == Shutdown("to the second")
        second.close()


PARTITION = """
import subprocess, sys, time
import zmq
from protocol import burden
from protocol import channel as wire
from protocol.errors import PeerGone
from protocol.messages import Goodbye, Shutdown

def link(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)

def hear():
    while (message := router.receive()) is None:
        assert router.socket.poll(20000), router.dropped
    return message

wire.KEEPALIVE_IDLE_S = wire.KEEPALIVE_INTERVAL_S = wire.KEEPALIVE_PROBES = 1
wire.UNACKNOWLEDGED_MS = 1000
link("up")
router = wire.RouterChannel("tcp://127.0.0.1:*")
keys = router.admit("w1", "t")
worker = wire.DealerChannel(router.endpoint, "w1", "t", keys)
worker.send(Goodbye())
hear()
link("down")
deadline = time.monotonic() + 20
try:
    while time.monotonic() < deadline:
        router.send(b"w1", Shutdown("lost"))
        router.socket.poll(50)
    sys.exit("the broken link was never noticed")
except PeerGone:
    pass
link("up")
while router.receive() is None:
    worker.send(Goodbye())
    router.socket.poll(50)
router.send(b"w1", Shutdown("found"))
while worker.receive(20).reason != "found":
    pass
print("mended")
worker.close()
router.close()
"""
OWN_NETWORK = ["unshare", "--map-root-user", "--net"]


def test_a_partition_is_found_and_mended() -> None:
    """In a network of its own, whose only link is taken down and up again."""
    if subprocess.run([*OWN_NETWORK, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("this user can't have a network of its own")
    command = [*OWN_NETWORK, sys.executable, "-c", PARTITION]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=PARTITION_S, check=False)
    assert (done.returncode, done.stdout) == (0, "mended\n"), done.stderr


@pytest.mark.parametrize("endpoint", [TCP, TCP6])
def test_both_ends_of_a_connection_are_probed(endpoint: str) -> None:
    with open_channel(endpoint) as router:
        worker = dial(router, NAME, TOKEN)
        worker.send(HELLO)
        heard(router)
        port = router.endpoint.rpartition(":")[2]
        ends = [one for one in tcp_connections() if port in one.ports]
        assert len(ends) == 2
        assert {one.probing for one in ends} == {PROBING}
        worker.close()
