"""The kernel gives a closed connection's number to the next one: who has ended is hung up, and nobody else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from protocol.channel import RouterChannel
from protocol.messages import Beat, Goodbye, Shutdown
from tests.process.launching import PATIENCE_S
from tests.process.wire_ends import PATIENCE_MS, REPO, STEP_MS, TOKEN, heard

pytestmark = pytest.mark.usefixtures("nothing_leaked")

TRIES = 5
#: In a process of its own, so that here only the router's connections take numbers. A line lets it do its next step.
DIALLERS = f"""
import sys
from protocol.channel import DealerChannel
from protocol.keys import Keys
from protocol.messages import Beat, Goodbye
endpoint, first, second, token, *keys = sys.argv[1:]
one = DealerChannel(endpoint, first, token, Keys(*keys[:2]))
one.send(Beat("busy", 1))
one.send(Beat("busy", 2))
sys.stdin.readline()
one.close()
sys.stdin.readline()
other = DealerChannel(endpoint, second, token, Keys(*keys[2:]))
other.send(Beat("busy", 3))
other.receive({PATIENCE_S})
other.send(Goodbye())
sys.stdin.readline()
other.close()
"""


@dataclass
class Pair:
    """The first speaks twice, and only once it is gone the second comes, which says farewell when it is spoken to."""

    router: RouterChannel
    number: int

    def start(self, stack: ExitStack) -> None:
        self.first, self.second = f"w{self.number}-first", f"w{self.number}-second"
        keys = [self.router.admit(name, TOKEN) for name in (self.first, self.second)]
        arguments = [self.router.endpoint, self.first, self.second, TOKEN]
        arguments += [text for one in keys for text in (one.server, one.secret)]
        self.process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", DIALLERS, *arguments], cwd=REPO, stdin=subprocess.PIPE, text=True)
        )
        stack.callback(self.process.kill)

    @property
    def fds(self) -> list[int]:
        return self.router._porter.connections.descriptors()

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < deadline, self.router.dropped
            self.router.socket.poll(STEP_MS)

    def change(self, *, unread: bool) -> bool:
        """Whether the second has the number that the first had. `unread`: the first's last word waits meanwhile."""
        assert heard(self.router) == (self.first, Beat("busy", 1))
        (fd,) = self.fds
        assert self.router.socket.poll(PATIENCE_MS)
        if not unread:
            assert heard(self.router) == (self.first, Beat("busy", 2))
        self.go_on()
        self.until(lambda: not self.fds)
        self.go_on()
        self.until(lambda: self.fds)
        if unread:
            assert heard(self.router) == (self.first, Beat("busy", 2))
        assert heard(self.router) == (self.second, Beat("busy", 3))
        return self.fds == [fd]

    def leave(self) -> None:
        self.router.send(self.second.encode(), Shutdown("leave"))
        assert heard(self.router) == (self.second, Goodbye())
        self.go_on()
        self.until(lambda: not self.fds)
        assert self.process.wait(PATIENCE_S) == 0


def changed(router: RouterChannel, stack: ExitStack, *, unread: bool = False) -> Pair:
    for number in range(TRIES):
        pair = Pair(router, number)
        pair.start(stack)
        if pair.change(unread=unread):
            return pair
        pair.leave()
    raise AssertionError("the kernel never gave the number again")


@pytest.mark.parametrize("unread", [False, True], ids=["all read", "last word unread"])
@pytest.mark.parametrize("how", [RouterChannel.hang_up, RouterChannel.dismiss])
def test_another_one_with_its_number_stays_connected(
    router: RouterChannel, how: Callable[[RouterChannel, str], None], *, unread: bool
) -> None:
    with ExitStack() as stack:
        pair = changed(router, stack, unread=unread)
        (fd,) = pair.fds
        connections = router._porter.connections.born(fd)
        how(router, pair.first)
        router.send(pair.second.encode(), Shutdown("still there?"))
        assert heard(router) == (pair.second, Goodbye())
        assert (pair.fds, router._porter.connections.born(fd)) == ([fd], connections), "it did not dial again"
        pair.go_on()


def test_its_own_number_is_still_hung_up(router: RouterChannel) -> None:
    """The second, which has the number now, can be ended by it."""
    with ExitStack() as stack:
        pair = changed(router, stack)
        router.dismiss(pair.second)
        pair.until(lambda: not pair.fds)
