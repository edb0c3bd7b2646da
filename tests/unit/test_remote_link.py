"""The wire between an outpost and its coordinator: what is told arrives once, in order, or it is known to be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import zmq

from orchestrator.clusters.allocations import Node
from orchestrator.config import Limits, Measurement, Policies, Repairs
from orchestrator.definition.sources import ModelRef
from orchestrator.remote import link as module
from orchestrator.remote import messages
from orchestrator.remote.link import Link
from orchestrator.remote.messages import Assign, Brief, Finished, Joined, Logged, Numbered, Pulse, Tick
from protocol.channel import DealerChannel, RouterChannel
from protocol.errors import Oversized, PeerGone
from protocol.keys import Keys
from protocol.parts import join
from tests.unit.rundirs import a_plan

pytestmark = pytest.mark.usefixtures("nothing_leaked")
NAME, TOKEN = "slurm0a1.0", "t0ken"
PATIENCE_S = 20
PLAN = a_plan()
BRIEF = Brief(
    run="r",
    model_ref=ModelRef("scripted", "scripted"),
    model=PLAN.model,
    prompts=[],
    limits=Limits(),
    policies=Policies(),
    repairs=Repairs(),
    warmup=0,
    measurement=Measurement(),
)


class Site:
    """The coordinator's end, by hand."""

    def __init__(self) -> None:
        self.channel = RouterChannel("tcp://127.0.0.1:*")
        self.keys: Keys = self.channel.admit("slurm0a1", TOKEN, [NAME])
        self.words: list[str] = []
        self.news = threading.Event()
        self.link: Link | None = None

    def begin(self, silence_s: float = PATIENCE_S) -> Link:
        joined = Joined(version=1, airlock="0", token=TOKEN, node=Node(host="n1"))
        self.link = Link(self._dial, joined, silence_s, self.news.set)
        return self.link

    def _dial(self) -> DealerChannel:
        return DealerChannel(self.channel.endpoint, NAME, TOKEN, self.keys)

    def hear(self, true: Callable[[messages.Up], bool]) -> messages.Up:
        """The next that is so."""
        while self.channel.socket.poll(PATIENCE_S * 1000):
            found = self.channel.receive()
            if found and true(message := messages.decode_up(join(found[1]))):
                return message
        raise AssertionError("nothing came")

    def hear_number(self, number: int) -> Numbered:
        found = self.hear(lambda one: getattr(one, "number", None) == number)
        assert isinstance(found, Logged | Finished)
        return found

    def say(self, message: messages.Down) -> None:
        self.channel.send_frame(NAME.encode(), messages.encode(message))

    def close(self) -> None:
        if self.link:
            self.link.close(0.0)
        self.channel.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def is_joined(message: messages.Up) -> bool:
    return isinstance(message, Joined)


def is_tick(message: messages.Up) -> bool:
    return isinstance(message, Tick)


def logged(text: bytes) -> Logged:
    return Logged(number=0, name="w1.log", text=text)


def assign(number: int) -> Assign:
    return Assign(assignment=number, start=PLAN.starts[0], fingerprint="f", done={}, bad={})


def test_it_says_who_it_is_until_it_is_briefed(site: Site) -> None:
    site.begin()
    site.hear(is_joined)
    site.hear(is_joined)
    site.say(BRIEF)
    site.hear(lambda one: isinstance(one, Tick) and one.briefed)


def test_an_assignment_is_taken_once_and_in_turn(site: Site) -> None:
    link = site.begin()
    site.hear(is_joined)
    site.say(assign(1))  # nothing is known of the run yet
    site.say(BRIEF)
    site.say(assign(2))
    site.say(assign(1))
    site.say(assign(1))
    assert site.news.wait(PATIENCE_S)
    brief, first = link.assigned.get(timeout=PATIENCE_S)
    assert (brief, first) == (BRIEF, assign(1))
    site.hear(lambda one: isinstance(one, Tick) and one.assignment == 1)
    assert link.assigned.empty()


def test_what_is_not_acknowledged_is_told_again_in_order(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_AGAIN_S", 0.0)
    link = site.begin()
    site.hear(is_joined)
    for text in (b"1", b"2", b"3"):
        link.tell(logged(text))
    assert [site.hear_number(n) for n in (1, 2, 3)] == [
        Logged(number=n, name="w1.log", text=b"%d" % n) for n in (1, 2, 3)
    ]
    site.say(Pulse(heard=1, assignment=0))
    site.hear(is_tick)
    assert [site.hear_number(n).number for n in (2, 3)] == [2, 3]
    site.say(Pulse(heard=3, assignment=0))
    assert link.close(PATIENCE_S)
    site.link = None


def test_what_is_too_much_to_tell_leaves_no_gap_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nothing that comes after would be taken."""
    link = site.begin()
    site.hear(is_joined)
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(Oversized):
        link.tell(logged(b"x" * 1001))
    link.tell(logged(b"y"))
    assert site.hear_number(1) == Logged(number=1, name="w1.log", text=b"y")


def test_a_broken_connection_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_AGAIN_S", 0.2)
    link = site.begin()
    site.hear(is_joined)
    for n in range(1, 6):
        site.channel.hang_up(NAME)
        link.tell(logged(b"%d" % n))
        assert site.hear_number(n) == Logged(number=n, name="w1.log", text=b"%d" % n)
        answered = False
        while not answered:
            try:
                site.say(Pulse(heard=n, assignment=0))
                answered = True
            except PeerGone:
                site.hear(is_tick)
    assert link.close(PATIENCE_S)
    site.link = None


def test_whoever_tells_too_much_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 10)
    link = site.begin()
    site.hear(is_joined)
    link.tell(logged(b"x" * 20))
    told = threading.Event()

    def more() -> None:
        link.tell(logged(b"y"))
        told.set()

    thread = threading.Thread(target=more)
    thread.start()
    site.hear_number(1)
    assert not told.is_set()
    site.say(Pulse(heard=1, assignment=0))
    assert told.wait(PATIENCE_S)
    thread.join()


def test_silence_is_loss_and_holds_nobody_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 0)
    link = site.begin(silence_s=0.3)
    link.tell(logged(b"x"))
    link.tell(logged(b"waits until it is lost"))
    assert link.lost
    assert site.news.wait(PATIENCE_S)
    assert not link.close(PATIENCE_S)
    site.link = None


def test_that_it_leaves_is_told_before_its_work_is_finished(site: Site) -> None:
    link = site.begin()
    site.hear(is_joined)
    site.hear(is_tick)
    link.leaving = lambda: "SIGTERM"
    link.tell(Finished(number=0, assignment=1))
    found = site.hear(lambda one: isinstance(one, Finished) or (isinstance(one, Tick) and one.leaving == "SIGTERM"))
    assert isinstance(found, Tick)
    site.hear_number(1)


def test_the_wish_that_it_leaves_is_heard_once(site: Site) -> None:
    link = site.begin()
    site.hear(is_joined)
    for kill in (False, True):
        site.news.clear()
        site.say(Pulse(heard=0, assignment=0, leave="interrupted by SIGTERM", kill=kill))
        assert site.news.wait(PATIENCE_S)
        assert (link.leave, link.kill) == ("interrupted by SIGTERM", kill)


def test_nobody_gets_in_with_another_key(site: Site) -> None:
    other = Site()
    try:
        stranger = DealerChannel(site.channel.endpoint, NAME, TOKEN, Keys(site.keys.server, other.keys.secret))
        stranger.offer(messages.encode(Tick(assignment=0, briefed=False)))
        site.begin()
        assert is_joined(site.hear(lambda _any: True))
        stranger.close()
    finally:
        other.close()
    assert zmq.has("curve")
