"""Floods: by strangers at the door, by a worker gone mad, by a message that does not end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count

import pytest

from protocol import burden
from protocol import channel as wire
from protocol.channel import RouterChannel
from protocol.connections import MAX_CONNECTIONS
from protocol.messages import Beat, Goodbye, Shutdown
from protocol.parts import PART_BYTES
from tests.process.launching import PATIENCE_S
from tests.process.wire_ends import HELLO, NAME, PATIENCE_MS, STEP_MS, Dial, heard, speaker
from tests.process.wire_floor import IPC, open_channel
from tests.process.zmtp import asked_of, command, connected, greeting, hung_up
from tests.unit.frames import resident_bytes

pytestmark = pytest.mark.usefixtures("nothing_leaked")

FLOODED_TCP = 200
ENDLESS_PARTS, ENDLESS_BYTES, ENDLESS_PEAK_BYTES = 40_000, 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
LOOK_AGAIN_S = 0.1
MAD_TURNS, MAD_TURNS_PER_ANSWER = 200, 20
MAX_TURN_S = 1.0
TOO_LARGE = wire.MAX_FRAME_BYTES + 1
#: 64 kB for each of four times as many connections as there may be, none of which sends a whole part: on a busy
#: machine that many are accepted before the first are hung up.
MAX_GROWTH_BYTES = 4 * MAX_CONNECTIONS * 64 * 1024


# --- ZMTP that no library would speak -------------------------------------------------


Said = Callable[[bytes, bytes], bytes]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            lambda way, _: greeting(way) + command(b"", claimed_bytes=wire.MAX_FRAME_BYTES + 1), id="too large"
        ),
        pytest.param(lambda way, _: greeting(way) + command(b"", claimed_bytes=2**63), id="an absurd part"),
        pytest.param(lambda way, _: greeting(way) + command(b"\x08INITIATE" + bytes(300)), id="the second step first"),
        pytest.param(lambda _, hello: greeting(b"GSSAPI") + command(hello), id="another mechanism"),
        pytest.param(lambda _way, _: b"\xff" * 64, id="no greeting"),
    ],
)
def test_who_breaks_the_protocol_is_hung_up_at_once(router: RouterChannel, said: Said) -> None:
    with connected(router.endpoint) as peer:
        peer.sendall(said(*asked_of(router.endpoint)))
        assert hung_up(peer, wire.HANDSHAKE_MS / 1000 / 2)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(greeting(b"PLAIN")[:40], id="half a greeting"),
        pytest.param(greeting(b"PLAIN") + command(b"", claimed_bytes=PART_BYTES), id="a part that never comes"),
    ],
)
def test_who_takes_too_long_is_hung_up(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_MS", 100)
    with open_channel(IPC) as router, connected(router.endpoint) as peer:
        peer.sendall(said)
        assert hung_up(peer, PATIENCE_S)


# --- floods ------------------------------------------------------------------------------


def test_a_worker_gone_mad_does_not_stop_the_loop(router: RouterChannel, dialled: Dial) -> None:
    other = dialled("w2-other")
    other.send(HELLO)
    heard(router)
    with speaker(router):
        heard(router)
        before, answered, give_up_at = resident_bytes(), 0, time.monotonic() + PATIENCE_S
        for turns in count():
            if turns % MAD_TURNS_PER_ANSWER == 0:
                other.send(Beat("ready", turns))
            router.socket.poll(PATIENCE_MS)
            began = time.monotonic()
            messages = list(router.turn())
            assert time.monotonic() - began < MAX_TURN_S
            assert len(messages) <= wire.MESSAGES_PER_TURN
            answered += sum(name == b"w2-other" for name, _ in messages)
            if turns >= MAD_TURNS and answered >= MAD_TURNS // MAD_TURNS_PER_ANSWER:
                break
            assert time.monotonic() < give_up_at, f"after {turns} turns the other was heard {answered} times"
        assert resident_bytes() - before < MAX_GROWTH_BYTES


ENDLESS = """
import sys, time
import zmq
from protocol.channel import DealerChannel
from protocol.keys import Keys
from protocol.messages import Goodbye
from protocol.parts import PART_BYTES
channel = DealerChannel(*sys.argv[1:4], Keys(*sys.argv[4:6]))
if sys.argv[7] == "known":
    channel.send(Goodbye())
channel.socket.copy_threshold = 0
part = zmq.Frame(bytes(PART_BYTES))  # over and over, so that it costs the sender nothing
for _ in range(int(sys.argv[6])):
    channel.socket.send(part, zmq.SNDMORE, copy=False)
channel.socket.send(b"")
time.sleep(600)
"""


@pytest.mark.parametrize("who", ["known", "who has said nothing yet"])
def test_a_message_that_does_not_end(
    router: RouterChannel, dialled: Dial, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Ten gigabytes of it; libzmq would gather all the parts."""
    monkeypatch.setattr(burden, "MAX_HELD_BYTES", ENDLESS_BYTES)
    # A fast machine sends gigabytes between two looks.
    monkeypatch.setattr(burden, "LOOK_AGAIN_S", LOOK_AGAIN_S)
    other = dialled("w2-other")
    other.send(HELLO)
    heard(router)
    before = resident_bytes()
    with speaker(router, str(ENDLESS_PARTS), who, script=ENDLESS):
        if who == "known":
            assert heard(router) == (NAME, Goodbye())
        told: list[tuple[bytes, list[bytes]]] = [(NAME.encode(), [])] if who == "known" else []
        assert cut_off(router, before + ENDLESS_PEAK_BYTES) == told
        other.send(HELLO)
        assert heard(router) == ("w2-other", HELLO)
        while resident_bytes() - before > ENDLESS_BYTES:  # it is given back
            assert list(router.turn()) == []
            router.socket.poll(STEP_MS)


def cut_off(router: RouterChannel, most_bytes: int) -> list[tuple[bytes, list[bytes]]]:
    """What is told of it once that has happened."""
    deadline = time.monotonic() + PATIENCE_S
    told: list[tuple[bytes, list[bytes]]] = []
    while "messages without an end" not in router.dropped:
        assert time.monotonic() < deadline
        assert resident_bytes() < most_bytes
        router.socket.poll(STEP_MS)
        told += list(router.turn())
    return told


FLOOD = """
import select, socket, sys
scheme, _, address = sys.argv[1].partition("://")
held, made = [], 0
while True:
    one = socket.socket(socket.AF_UNIX if scheme == "ipc" else socket.AF_INET6 if "[" in address else socket.AF_INET)
    host, _, port = address.rpartition(":")
    try:
        one.connect(address if scheme == "ipc" else (host.strip("[]"), int(port)))
        one.send(bytes.fromhex(sys.argv[2]))
    except OSError:
        continue
    held.append(one)
    made += 1
    if made % 50 == 0:
        select.select([], [], [], 0.002)  # else the kernel's own queue of connections is full at all times
    if made == int(sys.argv[3]):
        print(flush=True)
    if len(held) > 900:
        held.pop(0).close()
"""


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(lambda _way, _: b"", id="nothing"),
        pytest.param(lambda _way, _: b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(lambda _way, _: greeting(b"NULL"), id="plain greetings"),
        pytest.param(lambda way, hello: greeting(way) + command(hello), id="handshakes that are none"),
        pytest.param(lambda way, _: greeting(way) + command(b"", claimed_bytes=PART_BYTES), id="parts that never come"),
    ],
)
def test_a_flood_of_connections(router: RouterChannel, dialled: Dial, said: Said) -> None:
    """At a local socket libzmq aborts the process that has no descriptor left."""
    before = resident_bytes()
    many = MAX_CONNECTIONS + 10 if router.endpoint.startswith("ipc") else FLOODED_TCP
    flooding = [sys.executable, "-c", FLOOD, router.endpoint, said(*asked_of(router.endpoint)).hex(), str(many)]
    with subprocess.Popen(flooding, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            assert flood.stdout.readline()
            worker = dialled()
            worker.send(HELLO)
            assert heard(router) == (NAME, HELLO)
            router.send(NAME.encode(), Shutdown("x"))
            assert worker.receive(PATIENCE_S) == Shutdown("x")
            assert resident_bytes() - before < MAX_GROWTH_BYTES
        finally:
            flood.kill()
