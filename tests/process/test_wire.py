"""Who gets in at the wire, on real sockets, and what a live key may not do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from protocol import channel as wire
from protocol.channel import RouterChannel, show
from protocol.codec import MAX_MESSAGE_BYTES, encode
from protocol.connections import is_local
from protocol.errors import Malformed, Oversized, PeerGone
from protocol.keys import Keys, identity_of
from protocol.messages import BatchDone, Goodbye, Shutdown
from protocol.parts import MAX_PARTS, PART_BYTES, join, split
from protocol.porter import REFUSED_KEY, REFUSED_PEER, REFUSED_USER
from protocol.records import BatchStats
from tests.process.launching import PATIENCE_S
from tests.process.wire_ends import (
    HELLO,
    NAME,
    PATIENCE_MS,
    SELDOM,
    SILENCE_MS,
    SPEAKER,
    TOKEN,
    Dial,
    heard,
    refused,
    silent,
    speaker,
)
from tests.process.wire_floor import IPC, open_channel

pytestmark = pytest.mark.usefixtures("nothing_leaked")


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
    """The worker's own identity, and no key."""
    router.admit(NAME, TOKEN)
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.ipv6 = True
        plain.setsockopt(zmq.IDENTITY, identity_of(NAME, TOKEN))
        plain.connect(router.endpoint)
        plain.send(encode(HELLO))
        assert refused(router, REFUSED_PEER)
        assert silent(router)


def test_a_wrong_server_key(encrypted: RouterChannel, dialled: Dial) -> None:
    """Who does not know whom to talk to does not get as far as showing a key."""
    keys = encrypted.admit(NAME, TOKEN)
    dialled(keys=Keys(stranger().server, keys.secret)).send(HELLO)
    assert refused(encrypted, REFUSED_PEER)
    assert silent(encrypted)


def test_an_unknown_key(router: RouterChannel, dialled: Dial) -> None:
    keys = router.admit(NAME, TOKEN)
    dialled(keys=Keys(keys.server, stranger().secret)).send(HELLO)
    assert refused(router, REFUSED_KEY)
    assert silent(router)


@pytest.fixture
def encrypted(router: RouterChannel) -> RouterChannel:
    if is_local(router.endpoint):
        pytest.skip("at a local socket nobody shows a key to the other but the worker its password")
    return router


AS_NOBODY = SPEAKER.replace("channel = ", "import os; os.setuid(65534); channel = ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_hung_up_before_it_says_a_word() -> None:
    """Though it has a live password, and the folder were open."""
    with open_channel(IPC) as router:
        path = Path(router.endpoint.removeprefix("ipc://"))
        path.parent.chmod(0o711)
        path.chmod(0o666)
        with speaker(router, SELDOM, script=AS_NOBODY):
            assert refused(router, REFUSED_USER)
            assert silent(router)


def stranger() -> Keys:
    return Keys(*(key.decode() for key in zmq.curve_keypair()))


def test_a_worker_takes_no_other_coordinator(encrypted: RouterChannel, dialled: Dial) -> None:
    """Who sits down at the socket's place learns nothing from a worker that dials."""
    worker = dialled(keys=Keys(stranger().server, encrypted.admit(NAME, TOKEN).secret))
    worker.offer(encode(HELLO))
    assert refused(encrypted, REFUSED_PEER)
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
        show(socket, router.endpoint, "whoever", keys)
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
