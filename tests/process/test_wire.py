"""The wire on real sockets: who gets in, what a live key may not do, and what comes back after a break."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from protocol import burden
from protocol import channel as wire
from protocol.channel import MAX_PARTS, PART_BYTES, DealerChannel, Keys, RouterChannel, identity_of, join, split
from protocol.codec import MAX_MESSAGE_BYTES, decode_up, encode
from protocol.connections import MAX_CONNECTIONS
from protocol.errors import Malformed, Oversized, PeerGone
from protocol.messages import BatchDone, Beat, Goodbye, Hello, Shutdown, Up
from protocol.porter import REFUSED_KEY, REFUSED_PEER
from protocol.records import BatchStats
from tests.process.launching import PATIENCE_S
from tests.process.wire_floor import ENDPOINTS, IPC, TCP, TCP6, dial, open_channel
from tests.process.zmtp import command, connected, greeting, hung_up, tcp_connections
from tests.unit.frames import resident_bytes

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NAME, TOKEN = "w1-0badcafe", "c0ffee" * 4
HELLO = Hello(1, NAME, TOKEN, 1, "3")
REPO = Path(__file__).resolve().parents[2]
STEP_MS = 20
PATIENCE_MS = int(PATIENCE_S * 1000)
FLOODED_TCP = 200
ENDLESS_PARTS, ENDLESS_BYTES, ENDLESS_PEAK_BYTES = 160_000, 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
SELDOM = "0.05"
PARTITION_S = 60
PROBING = (
    1,
    wire.KEEPALIVE_IDLE_S,
    wire.KEEPALIVE_INTERVAL_S,
    wire.KEEPALIVE_PROBES,
    wire.UNACKNOWLEDGED_MS,
)
MAD_TURNS, MAD_TURNS_PER_ANSWER = 200, 20
MAX_TURN_S = 1.0
#: A part for each of four times as many connections as there may be: on a busy machine that many are
#: accepted before the first are hung up.
MAX_GROWTH_BYTES = 4 * MAX_CONNECTIONS * PART_BYTES
#: How long nothing must come before we say that nothing comes.
SILENCE_MS = 200

Dial = Callable[..., DealerChannel]


@pytest.fixture(params=ENDPOINTS)
def router(nothing_leaked: None, request: pytest.FixtureRequest) -> Iterator[RouterChannel]:  # noqa: ARG001
    with open_channel(request.param) as channel:
        yield channel


@pytest.fixture
def dialled(router: RouterChannel) -> Iterator[Dial]:
    """Dials as a worker; all is closed at the end."""
    with ExitStack() as stack:

        def begin(name: str = NAME, token: str = TOKEN, keys: Keys | None = None) -> DealerChannel:
            one = dial(router, name, token, keys)
            stack.callback(one.close)
            return one

        yield begin


def heard(router: RouterChannel) -> tuple[str, Up]:
    """The next message that is let in."""
    deadline = time.monotonic() + PATIENCE_S
    while (message := router.receive()) is None:
        assert time.monotonic() < deadline, f"nothing came; {router.dropped}"
        router.socket.poll(STEP_MS)
    return message[0].decode(), decode_up(join(message[1]))


def refused(router: RouterChannel, reason: str) -> int:
    """Waits until something was refused for this reason, and nothing came in meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not router.dropped.get(reason):
        assert router.receive() is None
        assert time.monotonic() < deadline, router.dropped
        router.socket.poll(STEP_MS)
    return router.dropped[reason]


def silent(router: RouterChannel) -> bool:
    """Whether nothing is let in for a while."""
    deadline = time.monotonic() + SILENCE_MS / 1000
    while time.monotonic() < deadline:
        if router.receive() is not None:
            return False
        router.socket.poll(STEP_MS)
    return True


# --- both ways ------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 40, PART_BYTES, 10 * PART_BYTES, 5_000_000])
def test_messages_of_every_size(router: RouterChannel, dialled: Dial, size: int) -> None:
    worker = dialled()
    up = BatchDone("b" * size, [], BatchStats(wall_s=0.0, generated_tokens=0))
    worker.send(up)
    assert heard(router) == (NAME, up)
    router.send(NAME.encode(), Shutdown("s" * size))
    assert worker.receive(PATIENCE_S) == Shutdown("s" * size)


def test_nobody_there(router: RouterChannel) -> None:
    router.admit(NAME, TOKEN)
    for name in (NAME, "w2-nobody"):
        with pytest.raises(PeerGone):
            router.send(name.encode(), Shutdown("x"))


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_what_is_split_can_be_joined(size: int) -> None:
    data = bytes(size)
    assert join([bytes(part) for part in split(data)]) == data


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="none"),
        pytest.param([b"x", b"y"], id="too small"),
        pytest.param([bytes(PART_BYTES), b""], id="an empty last one"),
        pytest.param([bytes(PART_BYTES)] * (MAX_PARTS + 1), id="too many"),
    ],
)
def test_what_was_not_split_so_is_malformed(parts: list[bytes]) -> None:
    with pytest.raises(Malformed):
        join(parts)


# --- who does not get in -----------------------------------------------------------


def test_a_plain_peer(router: RouterChannel) -> None:
    """The worker's own identity, and no CURVE."""
    router.admit(NAME, TOKEN)
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.ipv6 = True
        plain.setsockopt(zmq.IDENTITY, identity_of(NAME, TOKEN))
        plain.connect(router.endpoint)
        plain.send(encode(HELLO))
        assert refused(router, REFUSED_PEER)
        assert silent(router)


def test_a_wrong_server_key(router: RouterChannel, dialled: Dial) -> None:
    """Who does not know whom to talk to does not get as far as showing a key."""
    keys = router.admit(NAME, TOKEN)
    dialled(keys=Keys(stranger().server, keys.secret)).send(HELLO)
    assert refused(router, REFUSED_PEER)
    assert silent(router)


def test_an_unknown_key(router: RouterChannel, dialled: Dial) -> None:
    keys = router.admit(NAME, TOKEN)
    dialled(keys=Keys(keys.server, stranger().secret)).send(HELLO)
    assert refused(router, REFUSED_KEY)
    assert silent(router)


def stranger() -> Keys:
    return Keys(*(key.decode() for key in zmq.curve_keypair()))


def test_a_worker_takes_no_other_coordinator(router: RouterChannel, dialled: Dial) -> None:
    """Who sits down at the socket's place learns nothing from a worker that dials."""
    worker = dialled(keys=Keys(stranger().server, router.admit(NAME, TOKEN).secret))
    worker.offer(encode(HELLO))
    assert refused(router, REFUSED_PEER)
    assert worker.receive(SILENCE_MS / 1000) is None


def test_the_key_of_one_that_has_ended(router: RouterChannel, dialled: Dial) -> None:
    """A recorded Hello, with all that belongs to it, said again after the end."""
    keys = router.admit(NAME, TOKEN)
    dialled(keys=keys).send(HELLO)
    assert heard(router) == (NAME, HELLO)
    router.dismiss(NAME)
    dialled(keys=keys).send(HELLO)
    assert refused(router, REFUSED_KEY)
    assert silent(router)


def test_one_that_has_ended_is_hung_up(router: RouterChannel, dialled: Dial) -> None:
    """And finds the door closed when it dials again."""
    old = dialled()
    old.send(HELLO)
    heard(router)
    router.dismiss(NAME)
    assert refused(router, REFUSED_KEY)
    old.offer(encode(Goodbye()))
    assert silent(router)
    with pytest.raises(PeerGone):
        router.send(NAME.encode(), Shutdown("x"))


# --- what a live key may not do ------------------------------------------------------


@pytest.mark.parametrize("identity", [b"", b"w1", NAME.encode(), bytes(255), encode(HELLO)], ids=len)
def test_another_identity(router: RouterChannel, identity: bytes) -> None:
    with raw_worker(router, identity) as worker:
        worker.send(encode(HELLO))
        assert refused(router, "messages under an identity of no live worker")
        assert silent(router)


def test_the_identity_of_another_worker(router: RouterChannel, dialled: Dial) -> None:
    """Even who knows it can't speak for the other; what it can do is keep the seat on a local socket."""
    router.admit("w2-other", TOKEN)
    with raw_worker(router, identity_of("w2-other", TOKEN)) as worker:
        worker.send(encode(HELLO))
        assert refused(router, "messages under an identity that belongs to another key")
        dialled().send(HELLO)
        assert heard(router) == (NAME, HELLO)


def test_an_identity_can_be_known_by_its_token_only() -> None:
    assert identity_of(NAME, "a") != identity_of(NAME, "b")
    assert identity_of(NAME, "a") != identity_of("w2", "a")


@contextmanager
def raw_worker(router: RouterChannel, identity: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A socket with a live key, and whatever identity."""
    keys = router.admit(NAME, TOKEN)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        if identity:
            socket.setsockopt(zmq.IDENTITY, identity)
        socket.ipv6 = True
        socket.curve_serverkey = keys.server.encode()
        socket.curve_secretkey = keys.secret.encode()
        socket.curve_publickey = zmq.curve_public(keys.secret.encode())
        socket.connect(router.endpoint)
        yield socket
    finally:
        context.destroy(linger=0)


def test_many_parts_are_read_and_not_kept(router: RouterChannel, dialled: Dial) -> None:
    worker = dialled()
    worker.socket.send_multipart([b"x"] * (3 * MAX_PARTS))
    worker.send(HELLO)
    router.socket.poll(PATIENCE_MS)
    message = router.receive()
    assert message is not None
    assert len(message[1]) == MAX_PARTS + 1
    assert heard(router) == (NAME, HELLO)


def test_a_part_beyond_the_limit_ends_the_connection(router: RouterChannel, dialled: Dial) -> None:
    worker = dialled()
    worker.send(HELLO)
    heard(router)
    worker.socket.send(bytes(wire.MAX_FRAME_BYTES + 1))
    assert silent(router)
    worker.send(HELLO)  # it is back by itself
    assert heard(router) == (NAME, HELLO)


def test_messages_beyond_the_limit_are_not_sent(router: RouterChannel) -> None:
    with pytest.raises(Oversized):
        router.send(NAME.encode(), Shutdown("x" * MAX_MESSAGE_BYTES))


# --- breaks ----------------------------------------------------------------------------


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


def wait_for_the_break(router: RouterChannel) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with suppress(PeerGone):
        while True:
            router.send(NAME.encode(), Shutdown("lost"))
            assert time.monotonic() < deadline
            router.socket.poll(STEP_MS)
            list(router.turn())


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


SPEAKER = """
import sys
from protocol.channel import DealerChannel, Keys
from protocol.messages import Beat
channel = DealerChannel(*sys.argv[1:4], Keys(*sys.argv[4:6]))
beats = 0
while True:
    channel.send(Beat("busy", beats))
    beats += 1
    if len(sys.argv) > 6:
        channel.receive(float(sys.argv[6]))
"""


@contextmanager
def speaker(router: RouterChannel, *more: str, script: str = SPEAKER) -> Iterator[tuple[subprocess.Popen[bytes], Keys]]:
    """A process with a live key; by default it beats without end, every so many seconds or as fast as it can."""
    keys = router.admit(NAME, TOKEN)
    arguments = [router.endpoint, NAME, TOKEN, keys.server, keys.secret, *more]
    with subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=REPO) as process:
        try:
            yield process, keys
        finally:
            process.kill()


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


# --- ZMTP that no library would speak -------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(greeting() + command(b"", claimed_bytes=wire.MAX_FRAME_BYTES + 1), id="a part beyond the limit"),
        pytest.param(greeting() + command(b"", claimed_bytes=2**63), id="an absurd part"),
        pytest.param(greeting() + command(b"\x08INITIATE" + bytes(300)), id="the second step first"),
        pytest.param(greeting(b"PLAIN") + command(b"\x05HELLO\x01a\x01b"), id="a password"),
        pytest.param(b"\xff" * 64, id="no greeting"),
    ],
)
def test_who_breaks_the_protocol_is_hung_up_at_once(router: RouterChannel, said: bytes) -> None:
    with connected(router.endpoint) as peer:
        peer.sendall(said)
        assert hung_up(peer, wire.HANDSHAKE_MS / 1000 / 2)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(greeting()[:40], id="half a greeting"),
        pytest.param(greeting() + command(b"", claimed_bytes=PART_BYTES), id="a part that never comes"),
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
        before, turns, answered = resident_bytes(), 0, 0
        for turns in range(MAD_TURNS):
            if turns % MAD_TURNS_PER_ANSWER == 0:
                other.send(Beat("ready", turns))
            router.socket.poll(PATIENCE_MS)
            began = time.monotonic()
            messages = list(router.turn())
            assert time.monotonic() - began < MAX_TURN_S
            assert len(messages) <= wire.MESSAGES_PER_TURN
            answered += sum(name == b"w2-other" for name, _ in messages)
        assert answered >= MAD_TURNS // MAD_TURNS_PER_ANSWER - 1
        assert resident_bytes() - before < MAX_GROWTH_BYTES


ENDLESS = """
import sys, time
import zmq
from protocol.channel import PART_BYTES, DealerChannel, Keys
from protocol.messages import Goodbye
channel = DealerChannel(*sys.argv[1:4], Keys(*sys.argv[4:6]))
channel.send(Goodbye())
channel.socket.copy_threshold = 0
part = zmq.Frame(bytes(PART_BYTES))  # over and over, so that it costs the sender nothing
for _ in range(int(sys.argv[6])):
    channel.socket.send(part, zmq.SNDMORE, copy=False)
channel.socket.send(b"")
time.sleep(600)
"""


def test_a_message_that_does_not_end(router: RouterChannel, dialled: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten gigabytes of it; libzmq would gather all the parts."""
    monkeypatch.setattr(burden, "MAX_HELD_BYTES", ENDLESS_BYTES)
    other = dialled("w2-other")
    other.send(HELLO)
    heard(router)
    with speaker(router, str(ENDLESS_PARTS), script=ENDLESS):
        assert heard(router) == (NAME, Goodbye())
        before = resident_bytes()
        assert cut_off(router, before + ENDLESS_PEAK_BYTES) == [(NAME.encode(), [])]
        other.send(HELLO)
        assert heard(router) == ("w2-other", HELLO)
        while resident_bytes() - before > ENDLESS_BYTES:  # it is given back
            assert list(router.turn()) == []
            router.socket.poll(STEP_MS)


def cut_off(router: RouterChannel, most_bytes: int) -> list[tuple[bytes, list[bytes]]]:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := list(router.turn())):
        assert time.monotonic() < deadline
        assert resident_bytes() < most_bytes
        router.socket.poll(STEP_MS)
    return found


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
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(greeting(b"NULL"), id="plain greetings"),
        pytest.param(greeting() + command(b"\x05HELLO" + bytes(194)), id="handshakes that are none"),
        pytest.param(greeting() + command(b"", claimed_bytes=PART_BYTES), id="parts that never come"),
    ],
)
def test_a_flood_of_connections(router: RouterChannel, dialled: Dial, said: bytes) -> None:
    """At a local socket libzmq aborts the process that has no descriptor left."""
    before = resident_bytes()
    many = MAX_CONNECTIONS + 10 if router.endpoint.startswith("ipc") else FLOODED_TCP
    flooding = [sys.executable, "-c", FLOOD, router.endpoint, said.hex(), str(many)]
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
