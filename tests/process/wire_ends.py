"""A worker's end and the coordinator's end of a real socket, and what the tests of the wire ask of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.channel import DealerChannel, RouterChannel
from protocol.codec import decode_up
from protocol.errors import PeerGone
from protocol.keys import Keys
from protocol.messages import Hello, Shutdown, Up
from protocol.parts import join
from tests.process.launching import PATIENCE_S

NAME, TOKEN = "w1-0badcafe", "c0ffee" * 4
HELLO = Hello(1, NAME, TOKEN, 1, "3")
REPO = Path(__file__).resolve().parents[2]
STEP_MS = 20
PATIENCE_MS = int(PATIENCE_S * 1000)
#: How long nothing must come before we say that nothing comes.
SILENCE_MS = 200
#: Seconds between the beats of a `speaker`.
SELDOM = "0.05"

Dial = Callable[..., DealerChannel]


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


SPEAKER = """
import sys
from protocol.channel import DealerChannel
from protocol.keys import Keys
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


def wait_for_the_break(router: RouterChannel) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with suppress(PeerGone):
        while True:
            router.send(NAME.encode(), Shutdown("lost"))
            assert time.monotonic() < deadline
            router.socket.poll(STEP_MS)
            list(router.turn())
