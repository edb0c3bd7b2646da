"""A worker's thread at its end of the wire, on a real socket."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from protocol.channel import SEND_MARK, RouterChannel
from protocol.errors import Malformed, PeerGone
from protocol.keys import identity_of
from protocol.messages import Beat, Goodbye, Imported, Shutdown
from protocol.parts import PART_BYTES
from tests.process.launching import PATIENCE_S
from tests.process.wire_ends import heard, silent
from tests.process.wire_floor import IPC, dial, open_channel
from workers.wire import Wire

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NAME, TOKEN = "w1-0badcafe", "c0ffee" * 4
MESSAGES = 160
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


def test_what_nobody_takes_waits_and_is_not_lost(router: RouterChannel, wire: Wire) -> None:
    """The main thread may sit in an engine for minutes; it goes on beating meanwhile."""
    beaten(router)
    sent = [Shutdown(f"{number}") for number in range(SEND_MARK)]
    for one in sent:
        router.send(NAME.encode(), one)
    beaten(router)
    assert [wire.receive() for _ in sent] == sent


def test_nonsense_is_told_to_the_main_thread_and_the_thread_goes_on(router: RouterChannel, wire: Wire) -> None:
    beaten(router)
    router.socket.send_multipart([identity_of(NAME, TOKEN), b"\xc1"])
    router.send(NAME.encode(), Shutdown("x"))
    with pytest.raises(Malformed):
        wire.receive()
    assert wire.receive() == Shutdown("x")


def test_whoever_waits_hears_though_another_thread_speaks(router: RouterChannel, wire: Wire) -> None:
    """Whichever of them uses the socket, the one that waits beside it must not miss what comes meanwhile."""
    beaten(router)

    def chatter() -> None:
        for number in range(10 * MESSAGES):
            wire.send(Beat("busy", number))

    def answer() -> None:
        for _ in range(MESSAGES):
            wire.receive()
            wire.send(Goodbye())

    threads = [threading.Thread(target=one) for one in (chatter, answer)]
    for one in threads:
        one.start()
    for number in range(MESSAGES):
        router.send(NAME.encode(), Shutdown(f"{number}"))
        while heard(router)[1] != Goodbye():
            pass
    for one in threads:
        one.join()


def test_what_many_threads_say_comes_whole(router: RouterChannel, wire: Wire) -> None:
    beaten(router)
    texts = ["a" * 10, "b" * 3 * PART_BYTES]

    def say(text: str) -> None:
        for _ in range(MESSAGES // 4):
            wire.send(Imported(0.0, text))

    threads = [threading.Thread(target=say, args=(text,)) for text in texts]
    for one in threads:
        one.start()
    told = Counter(one.engine_version for one in _imported(router, MESSAGES // 2))
    assert told == dict.fromkeys(texts, MESSAGES // 4)
    for one in threads:
        one.join()


def _imported(router: RouterChannel, count: int) -> Iterator[Imported]:
    while count:
        _, message = heard(router)
        if isinstance(message, Imported):
            count -= 1
            yield message


def test_one_that_is_closed_sends_and_hears_nothing(router: RouterChannel, wire: Wire) -> None:
    beaten(router)
    wire.send(Goodbye())
    wire.close()
    wire.send(Goodbye())
    with pytest.raises(PeerGone):
        wire.receive()
    found = [heard(router)[1]]
    while found[-1] != Goodbye():
        found.append(heard(router)[1])
    assert silent(router)
