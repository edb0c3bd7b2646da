"""A worker's thread at its end of the wire, on a real socket."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from protocol.channel import RouterChannel, identity_of
from protocol.errors import Malformed, PeerGone
from protocol.messages import Shutdown
from tests.process.launching import PATIENCE_S
from tests.process.wire_floor import IPC, dial, open_channel
from workers.wire import MOST_UNREAD, Wire

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NAME, TOKEN = "w1-0badcafe", "c0ffee" * 4
MESSAGES = 10 * MOST_UNREAD
STEP_MS = 10


@pytest.fixture
def router(nothing_leaked: None) -> Iterator[RouterChannel]:  # noqa: ARG001
    with open_channel(IPC) as channel:
        yield channel


@pytest.fixture
def wire(router: RouterChannel) -> Iterator[Wire]:
    one = Wire(dial(router, NAME, TOKEN))
    yield one
    one.close(linger_s=0.0)


def beaten(router: RouterChannel) -> None:
    """Waits for a beat: so it is connected, and its thread runs."""
    deadline = time.monotonic() + PATIENCE_S
    while router.receive() is None:
        assert time.monotonic() < deadline
        router.socket.poll(STEP_MS)


def test_no_more_is_read_ahead_than_agreed_and_nothing_is_lost(router: RouterChannel, wire: Wire) -> None:
    """The main thread may sit in an engine for minutes."""
    beaten(router)
    sent = received = 0
    deadline = time.monotonic() + PATIENCE_S
    while received < MESSAGES:
        assert time.monotonic() < deadline, f"{received} of {sent} came"
        try:
            while sent < MESSAGES:
                router.send(NAME.encode(), Shutdown(f"{sent}"))
                sent += 1
        except PeerGone:
            pass  # as much as fits is under way
        beaten(router)  # a full inbox does not stop the thread
        assert wire.unread <= MOST_UNREAD
        while received < sent:
            assert wire.receive() == Shutdown(f"{received}")
            received += 1
    assert sent == MESSAGES


def test_nonsense_is_told_to_the_main_thread_and_the_thread_goes_on(router: RouterChannel, wire: Wire) -> None:
    beaten(router)
    router.socket.send_multipart([identity_of(NAME, TOKEN), b"\xc1"])
    router.send(NAME.encode(), Shutdown("x"))
    with pytest.raises(Malformed):
        wire.receive()
    assert wire.receive() == Shutdown("x")
