"""The slots of a cluster as their coordinator keeps them: whose words count, and what follows when nobody speaks.

The wire, the journal and the course of a job are real; the back end, the outposts and the clock are scripted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import zmq

from orchestrator.clusters.allocations import Node, SlotAsked, SlotJoined, SlotLeft
from orchestrator.clusters.base import Errand, JobState, Sighting
from orchestrator.config import ClusterUse, Limits, Policies
from orchestrator.console import Console
from orchestrator.definition.inputs import Prompt, PromptSet
from orchestrator.definition.places import Places
from orchestrator.definition.sources import ModelRef
from orchestrator.envs import EngineEnv
from orchestrator.errors import ClusterError, InputError
from orchestrator.events import PointEnded, PointStarted, SlotQuarantined
from orchestrator.journal import encode_event, encode_record
from orchestrator.outcomes import Cause
from orchestrator.record.replay import replay
from orchestrator.remote import berth, leases, messages, yard
from orchestrator.remote.allegiance import alias
from orchestrator.remote.berth import Berth
from orchestrator.remote.leases import Leases
from orchestrator.remote.messages import REMOTE_VERSION, Assign, Brief, Finished, Joined, Pulse, Tick, Told, Wrote
from orchestrator.remote.muster import abandoned, check_brief, lacking, left_over
from orchestrator.remote.orders import Writer
from orchestrator.remote.remotestint import RemoteStint
from orchestrator.remote.yard import Yard
from orchestrator.run.course import Course
from orchestrator.run.docket import Job
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.slots import Slot, Slots
from protocol.channel import DealerChannel, RouterChannel
from protocol.keys import Keys
from protocol.specs import MethodSpec
from tests.unit.rundirs import HF, PROMPTS, a_plan, new_run, record, stats
from tests.unit.test_remote_link import BRIEF

pytestmark = pytest.mark.usefixtures("nothing_leaked")
T = TypeVar("T")
PATIENCE_MS = 5_000
SILENCE_S = 30.0
KEYS = Keys("server", "secret")
PLAN = a_plan([HF], [1], repeats=1)
POINT = PLAN.points[0].id


@dataclass
class Scripted:
    """down: it can't be reached; against: what it has against every errand."""

    name: str = "scripted"
    down: bool = False
    against: str = ""
    jobs: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    hastened: list[str] = field(default_factory=list)
    sightings: dict[str, Sighting] = field(default_factory=dict)

    def check(self) -> list[str]:
        return ["down"] if self.down else []

    def objections(self, _errand: Errand) -> list[str]:
        return []

    def submit(self, _errand: Errand) -> str:
        if self.down or self.against:
            raise ClusterError(self.against or "no answer")
        self.jobs.append(str(len(self.jobs) + 1))
        return self.jobs[-1]

    def state(self, job: str) -> Sighting:
        return self.sightings.get(job, Sighting("running"))

    def stop(self, job: str) -> None:
        if self.down:
            raise ClusterError("no answer")
        self.stopped.append(job)

    def hasten(self, job: str) -> None:
        self.hastened.append(job)

    def close(self) -> None: ...


class Outpost:
    """Its end of the wire, by hand."""

    def __init__(self, site: Site, restarts: int = 0) -> None:
        self.site, self.number = site, 0
        name, self.token, keys = site.errands[-1]
        self.channel = DealerChannel(site.channel.endpoint, alias(name, restarts), self.token, keys)
        site.outposts.append(self)

    def tell(self, message: messages.Up) -> None:
        assert self.channel.offer(messages.encode(message))

    def join(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "version": REMOTE_VERSION,
            "airlock": "0",
            "token": self.token,
            "node": Node(host="n1"),
        }
        self.tell(Joined(**(values | changes)))

    def tick(self, assignment: int = 0, leaving: str = "") -> None:
        self.tell(Tick(assignment=assignment, briefed=True, leaving=leaving))

    def told(self, event: Any) -> None:
        self.number += 1
        self.tell(Told(number=self.number, event=encode_event(event)))

    def wrote(self, *prompts: str, number: int | None = None) -> None:
        self.number += 1
        self.tell(
            Wrote(
                number=number or self.number,
                point=POINT,
                batch=f"b{prompts[0]}",
                incarnation="w1",
                records=[encode_record(record(prompt, point=POINT, batch=f"b{prompts[0]}")) for prompt in prompts],
                stats=stats(),
                flags=[],
            )
        )

    def finish(self, assignment: int = 1, trouble: str = "", cause: Cause | None = None) -> None:
        self.number += 1
        self.tell(Finished(number=self.number, assignment=assignment, trouble=trouble, cause=cause))

    def hears(self, kind: type[T], true: Callable[[T], bool] = lambda _any: True) -> T:
        """The next of that kind that is so, while the coordinator goes on."""

        def heard() -> T | None:
            while (frame := self.channel.receive_frame(0)) is not None:
                message = messages.decode_down(frame)
                if isinstance(message, kind) and true(message):
                    return message
            return None

        return cast(T, self.site.until(heard, self.channel.socket))


@dataclass
class Site:
    folder: Path
    attempts: int = 3
    gpus_missing: str = ""
    no_orders: str = ""
    left: list[SlotAsked] = field(default_factory=list)
    cluster: Scripted = field(default_factory=Scripted)
    now: float = 1000.0
    said: list[str] = field(default_factory=list)
    errands: list[tuple[str, str, Keys]] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    outposts: list[Outpost] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)

    def begin(self) -> None:
        self.journal = new_run(self.folder)
        self.console = Console(mode="quiet")
        self.ledger = Ledger(self.journal, self.console, None, PLAN)
        self.channel = RouterChannel("tcp://127.0.0.1:*")
        self.slot = Slot("slurm0")
        self.slots = Slots((self.slot,), 1)
        gate = Gate(self.slots, None, Limits(), Policies(), self.ledger.emit, lambda: self.now)
        leases = Leases(
            cluster=self.cluster,
            channel=self.channel,
            gate=gate,
            errand=self._errand,
            withdraw=self.withdrawn.append,
            emit=self.ledger.emit,
            say=self.said.append,
            attempts=self.attempts,
            left=self.left,
            clock=lambda: self.now,
        )
        self.yard = Yard(
            leases=leases,
            berths=[Berth(self.slot)],
            channel=self.channel,
            gate=gate,
            brief=BRIEF,
            ledger=self.ledger,
            keep_log=self.logs.__setitem__,
            left_s=lambda: None,
            silence_s=SILENCE_S,
            lacking=lambda _node: self.gpus_missing,
            clock=lambda: self.now,
        )

    def _errand(self, name: str, token: str, keys: Keys) -> Errand:
        self.errands.append((name, token, keys))
        if self.no_orders:
            raise OSError(errno.ENOSPC, self.no_orders)
        return Errand(name, ("true",), {}, Path("/"), Path("/log"))

    def until(self, true: Callable[[], Any], *more: Any) -> Any:
        """Turns of the coordinator, each when there is something new."""
        poller = zmq.Poller()
        for one in (self.channel.socket, self.yard.fileno(), *more):
            poller.register(one, zmq.POLLIN)
        while not (found := true()):
            assert poller.poll(PATIENCE_MS), f"nothing happens\n{self.events()}\n{self.said}"
            self.turn()
        return found

    def turn(self) -> None:
        for name, parts in self.channel.turn():
            self.yard.take(name.decode(), parts)
        self.yard.turn()

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.yard.turn()

    def events(self, kind: type[T] = object) -> list[T]:  # type: ignore[assignment]
        return [event for event in replay(self.folder).events() if isinstance(event, kind)]

    def asked(self, times: int = 1) -> None:
        self.until(lambda: len(self.events(SlotAsked)) == times)

    def joined(self) -> Outpost:
        found = Outpost(self)
        found.join()
        found.hears(Brief)
        return found

    def job(self) -> Job:
        start = PLAN.starts[0]
        prompts = {name: Prompt(name, b"\0\0\0\0", name, {}, "") for name in PROMPTS}

        def course() -> Course:
            book = self.ledger
            return Course(start, prompts, 0, Policies(), book, book.earlier, book.ended, book.skipped)

        env = cast(EngineEnv, SimpleNamespace(fingerprint=SimpleNamespace(digest="f1")))
        return Job(0, start, env, course(), 1, anew=course)

    def working(self) -> tuple[Outpost, RemoteStint]:
        outpost = self.joined()
        stint = self.yard.begin(self.job(), self.slot)
        outpost.hears(Assign)
        outpost.told(PointStarted(at=1.0, point=POINT, incarnation="w1", prompts=3))
        outpost.hears(Pulse, lambda pulse: pulse.heard == 1)
        return outpost, stint

    def close(self) -> None:
        self.yard.close()
        for outpost in self.outposts:
            outpost.channel.close()
        self.channel.close()
        self.journal.close()
        self.console.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "run")
    made.begin()
    yield made
    made.close()


def test_a_slot_can_be_had_once_its_outpost_has_joined(site: Site) -> None:
    site.asked()
    assert site.slots.free() == []
    site.joined()
    assert site.slots.free() == [site.slot]
    assert [(e.slot, e.attempt, e.restarts) for e in site.events(SlotJoined)] == [("slurm0", 1, 0)]


def test_a_brief_that_is_on_its_way_is_not_told_again_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of some hundred MiB, and each copy would go before all that is told later."""
    outpost = site.joined()

    def briefs() -> int:
        """Of those that came before the answer to what is told now."""
        outpost.wrote("a", number=outpost.number + 1)
        heard: list[messages.Down] = []

        def answered() -> bool:
            while (frame := outpost.channel.receive_frame(0)) is not None:
                heard.append(messages.decode_down(frame))
            return any(isinstance(one, Pulse) and one.heard == outpost.number for one in heard)

        site.until(answered, outpost.channel.socket)
        return sum(isinstance(one, Brief) for one in heard)

    for _ in range(3):
        outpost.join()
        outpost.tell(Tick(assignment=0, briefed=False))
    assert briefs() == 0
    monkeypatch.setattr(yard, "BRIEF_BYTES_PER_S", len(messages.encode(BRIEF)) / 3)
    for seconds, copies in ((yard.BRIEF_AGAIN_S, 0), (2, 0), (2, 1)):
        site.now += seconds
        outpost.tell(Tick(assignment=0, briefed=False))
        assert briefs() == copies, "it may have gone astray, once there was the time for as much"


def test_nobody_joins_without_the_token(site: Site) -> None:
    outpost = Outpost(site)
    outpost.join(token="another")
    outpost.tick()
    outpost.join()
    outpost.hears(Brief)
    assert len(site.events(SlotJoined)) == 1


def test_another_version_is_given_up(site: Site) -> None:
    site.asked()
    Outpost(site).join(version=REMOTE_VERSION + 1)
    site.until(lambda: site.events(SlotLeft))
    assert f"speaks version {REMOTE_VERSION + 1}, we {REMOTE_VERSION}" in site.events(SlotLeft)[0].reason


def test_records_are_taken_once_and_in_order(site: Site) -> None:
    outpost, _stint = site.working()
    outpost.wrote("b", number=3)  # the one before it is missing
    outpost.wrote("a", number=2)
    outpost.wrote("a", number=2)
    outpost.wrote("b", number=3)
    outpost.hears(Pulse, lambda pulse: pulse.heard == 3)
    assert list(replay(site.folder).committed.values()) == [{"a", "b"}]
    assert len(replay(site.folder).ranges) == 2


def test_what_is_left_of_a_lost_start_is_for_the_next(site: Site) -> None:
    outpost, stint = site.working()
    outpost.wrote("a")
    outpost.hears(Pulse, lambda pulse: pulse.heard == 2)
    site.pass_s(SILENCE_S + 1)
    assert stint.over
    assert "not heard of for 30 s" in stint.trouble
    stint.end()
    assert site.slots.free() == []
    site.asked(2)
    site.joined()
    site.yard.begin(stint.job, site.slot)
    assert site.outposts[-1].hears(Assign).done == {POINT: ["a"]}
    assert site.cluster.stopped == ["1"]
    assert site.withdrawn == ["slurm0a1"]
    outpost.wrote("b")
    outpost.tick()
    site.outposts[-1].wrote("b", number=1)
    site.outposts[-1].hears(Pulse, lambda pulse: pulse.heard == 1)
    assert len(replay(site.folder).ranges) == 2, "nobody hears the first any more"


def test_a_later_start_of_the_job_ends_the_earlier(site: Site) -> None:
    first, stint = site.working()
    second = Outpost(site, restarts=1)
    second.join()
    second.hears(Brief)
    assert stint.over
    stint.end()
    first.wrote("a")
    first.join()
    second.tick()
    second.hears(Pulse)
    assert len(replay(site.folder).ranges) == 0
    assert [event.restarts for event in site.events(SlotJoined)] == [0, 1]
    assert site.slots.free() == [site.slot]
    assert site.events(SlotLeft) == []


def test_a_job_that_is_requeued_is_hastened_and_keeps_its_place(site: Site) -> None:
    outpost, stint = site.working()
    site.cluster.sightings["1"] = Sighting("pending", restarts=1, reason="BeginTime")
    outpost.tick(1, leaving="SIGTERM")
    site.until(lambda: not site.slots.free() and site.yard.berths[0].leaving)
    site.pass_s(berth.SIGHT_S)
    site.until(lambda: site.cluster.hastened)
    assert stint.over
    site.pass_s(SILENCE_S * 10)
    assert site.events(SlotLeft) == []
    second = Outpost(site, restarts=1)
    second.join()
    second.hears(Brief)
    assert site.cluster.jobs == ["1"]


def test_what_its_back_end_says_of_an_outpost_that_speaks_is_not_heeded(site: Site) -> None:
    outpost, stint = site.working()
    site.cluster.sightings["1"] = Sighting("ended", reason="NODE_FAIL")
    for _ in range(5):
        site.now += berth.QUIET_S - 1
        outpost.wrote("a", number=2)
        outpost.hears(Pulse, lambda pulse: pulse.heard == 2)
    assert not stint.over
    site.pass_s(berth.SIGHT_S)
    site.until(lambda: site.events(SlotLeft))
    assert site.events(SlotLeft)[0].reason == "1 ended: NODE_FAIL"


def test_a_slot_is_out_when_its_attempts_are_used_up(site: Site) -> None:
    for n in range(1, site.attempts + 1):
        site.asked(n)
        site.cluster.sightings[str(n)] = Sighting("ended", reason="FAILED")
        site.pass_s(berth.SIGHT_S)
        site.until(lambda n=n: len(site.events(SlotLeft)) == n)  # type: ignore[misc]
        site.pass_s(0)
    (out,) = site.events(SlotQuarantined)
    assert out.reason == "given up after 3 attempts: 3 ended: FAILED"
    assert site.slots.usable == []


def test_a_refusal_is_an_attempt_and_is_not_repeated_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path / "run", attempts=2, cluster=Scripted(against="no such partition"))
    site.begin()
    site.until(lambda: site.yard.berths[0].ask_at < float("inf"))
    site.turn()
    assert len(site.errands) == 1
    site.pass_s(leases.ASK_AGAIN_S)
    site.until(lambda: site.events(SlotQuarantined))
    assert "no such partition" in site.events(SlotQuarantined)[0].reason
    assert len(site.errands) == 2
    site.close()


def test_a_back_end_that_is_away_costs_no_attempt(tmp_path: Path) -> None:
    site = Site(tmp_path / "run", attempts=1, cluster=Scripted(down=True))
    site.begin()
    for n in range(4):
        site.until(lambda: site.yard.berths[0].ask_at < float("inf"))
        site.cluster.down = n < 3
        site.pass_s(leases.ASK_AGAIN_S)
    site.asked()
    assert len({name for name, _token, _keys in site.errands}) == len(site.errands), "none can be taken for another"
    assert site.events(SlotQuarantined) == []
    site.close()


def test_orders_that_can_not_be_written_are_an_attempt_and_no_crash(tmp_path: Path) -> None:
    site = Site(tmp_path / "run", attempts=2, no_orders="No space left on device")
    site.begin()
    assert site.withdrawn == ["slurm0a1"], "of what was written nothing is left"
    site.no_orders = ""
    site.pass_s(leases.ASK_AGAIN_S)
    site.asked()
    assert site.events(SlotQuarantined) == []
    site.close()


def sighted(site: Site, after_s: float, found: Sighting) -> None:
    """The back end says so, and is heard."""
    site.cluster.sightings[site.cluster.jobs[-1]] = found
    site.pass_s(after_s)
    assert site.yard.leases._steward._clerk.settle(PATIENCE_MS / 1000)


def test_why_a_job_waits_is_told_each_reason_once(site: Site) -> None:
    site.asked()
    sighted(site, 0, Sighting("pending", reason="Priority"))
    assert site.said == [], "most begin within seconds"
    for reason in ("Priority", "Priority", "ReqNodeNotAvail, UnavailableNodes:n1", "ReqNodeNotAvail, May be reserved"):
        sighted(site, leases.WAITS_S, Sighting("pending", reason=reason))
    assert site.said == ["slurm0: job 1 waits: Priority", "slurm0: job 1 waits: ReqNodeNotAvail, UnavailableNodes:n1"]
    assert site.events(SlotLeft) == []
    assert leases.gist("needs GPU 1; free in the cluster: CPU 3") == leases.gist("needs GPU 1; free in the cluster: n")


def test_a_job_that_will_not_begin_by_itself_is_given_up(site: Site) -> None:
    site.asked()
    held = Sighting("pending", restarts=1, reason="launch failed requeued held", stuck=True)
    sighted(site, berth.SIGHT_S, held)
    site.until(lambda: site.events(SlotLeft))
    assert site.events(SlotLeft)[0].reason == "1 waits, and will not begin by itself: launch failed requeued held"
    assert (site.cluster.stopped, site.cluster.hastened) == (["1"], [])
    site.pass_s(0)
    site.asked(2)


@pytest.mark.parametrize("state", ["running", "unknown"])
def test_a_job_from_which_nobody_ever_comes_is_given_up(site: Site, state: JobState) -> None:
    site.asked()
    sighted(site, berth.SIGHT_S, Sighting("pending"))
    sighted(site, leases.JOIN_S, Sighting(state))
    sighted(site, leases.JOIN_S - 1, Sighting(state))
    sighted(site, berth.SIGHT_MOST_S, Sighting("pending", reason="BeginTime"))
    sighted(site, berth.SIGHT_MOST_S, Sighting(state))
    sighted(site, leases.JOIN_S - 1, Sighting(state))
    assert site.events(SlotLeft) == [], "it waited meanwhile"
    sighted(site, berth.SIGHT_MOST_S, Sighting(state, reason="its warden was killed"))
    site.until(lambda: site.events(SlotLeft))
    said = site.events(SlotLeft)[0].reason
    assert said == "1 has begun, and for 30 min nobody has come from it: its warden was killed"


def test_one_that_has_come_is_waited_for_by_its_silence_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "JOIN_S", berth.QUIET_S)
    outpost, _stint = site.working()
    for _ in range(4):
        outpost.wrote("a", number=2)
        outpost.hears(Pulse, lambda pulse: pulse.heard == 2)
        sighted(site, berth.SIGHT_S + 1, Sighting("running"))
    assert site.events(SlotLeft) == []


def test_a_back_end_that_is_away_for_long_is_asked_ever_more_seldom_and_for_an_hour(tmp_path: Path) -> None:
    """An upgrade of its controller takes longer than some minutes."""
    site = Site(tmp_path / "run", attempts=1, cluster=Scripted(down=True))
    site.begin()
    (place,) = site.yard.berths
    began, waits = site.now, list[float]()
    while not site.events(SlotQuarantined):
        site.until(lambda: place.ask_at < float("inf") or site.events(SlotQuarantined))
        waits.append(place.ask_at - site.now)
        site.pass_s(waits[-1] if waits[-1] < float("inf") else 0)
    assert (waits[0], waits[-2]) == (leases.ASK_AGAIN_S, leases.ASK_MOST_S)
    assert 3600 < site.now - began < 5400
    site.close()


def test_what_is_no_message_or_no_event_ends_the_allocation(site: Site) -> None:
    outpost, stint = site.working()
    outpost.tell(Told(number=2, event=b'{"type": "nonsense"}'))
    site.until(lambda: site.events(SlotLeft))
    assert "none of a run's events" in site.events(SlotLeft)[0].reason
    assert stint.over
    site.pass_s(0)
    site.asked(2)
    other = site.joined()
    other.channel.offer(b"\xc1noise")
    site.until(lambda: len(site.events(SlotLeft)) == 2)
    assert "malformed message" in site.events(SlotLeft)[1].reason


def test_a_job_that_this_node_can_not_do_fails_with_its_cause(site: Site) -> None:
    outpost, stint = site.working()
    cause = Cause(cls="model", message="model m is d1 here, and d2 in this run", phase="preparing")
    outpost.finish(cause=cause)
    site.until(lambda: stint.over)
    stint.end()
    (ended,) = site.events(PointEnded)
    assert (ended.outcome, ended.cause and ended.cause.message) == ("failed", cause.message)
    assert site.events(SlotLeft) == []


def test_a_place_of_which_no_more_is_to_be_had_is_given_up(site: Site) -> None:
    outpost, stint = site.working()
    outpost.finish(trouble="no slot is left: slot0: lost")
    site.until(lambda: stint.over)
    site.asked(2)
    assert site.events(SlotLeft)[0].reason == "no slot is left: slot0: lost"


def test_all_leave_when_the_run_is_to_stop_and_none_is_asked_for_anew(site: Site) -> None:
    outpost, stint = site.working()
    site.yard.leave("interrupted by SIGTERM")
    assert outpost.hears(Pulse, lambda pulse: bool(pulse.leave)).leave == "interrupted by SIGTERM"
    site.yard.leave("interrupted by SIGTERM", kill=True)
    outpost.hears(Pulse, lambda pulse: pulse.kill)
    site.pass_s(yard.LEAVE_S + 1)
    assert stint.over
    site.pass_s(leases.ASK_AGAIN_S)
    assert len(site.errands) == 1


def test_a_close_leaves_no_job_even_one_that_is_being_asked_for(tmp_path: Path) -> None:
    site = Site(tmp_path / "run", left=[SlotAsked(at=1.0, slot="slurm0", job="old", attempt=2)])
    site.begin()
    site.close()
    assert site.cluster.stopped == ["old", *site.cluster.jobs]
    assert [event.job for event in site.events(SlotLeft)] == ["old", "1"]
    assert left_over(site.events()) == []


def test_a_job_that_can_not_be_stopped_is_left_to_the_next_life(tmp_path: Path) -> None:
    site = Site(tmp_path / "run")
    site.begin()
    site.asked()
    site.cluster.down = True
    site.close()
    assert [event.job for event in left_over(site.events())] == ["1"]
    assert "1 of scripted may be there still; it ends by itself" in site.said


def test_what_a_start_with_another_launcher_left_is_told_and_finds_no_orders(tmp_path: Path) -> None:
    """A run that went on here, after its coordinator on a cluster was killed: nobody ends those jobs for it."""
    asked = [SlotAsked(at=1.0, slot=slot, job=job, attempt=1) for slot, job in (("slurm0", "7"), ("ray0", "one-1"))]
    assert [one.job for one in left_over(asked, "slurm")] == ["7"], "Ray's can't be ended by Slurm"
    assert abandoned(asked, "local", tmp_path) == [], "their orders are gone, so they were seen to"
    writer = Writer(tmp_path, ClusterUse(), "tcp://127.0.0.1:1")
    writer.errand("slurm0a1", "token", KEYS)
    (said,) = abandoned(asked, "local", tmp_path)
    assert said == (
        "an earlier start of this run asked for 2 jobs elsewhere, which may be there still: 7, one-1; "
        "one that waits ends once it begins"
    )
    assert not writer.folder.exists()


def test_a_node_without_its_gpus_is_given_up(tmp_path: Path) -> None:
    site = Site(tmp_path / "run", gpus_missing="1 GPU asked for, and NVML sees none on n1")
    site.begin()
    site.asked()
    Outpost(site).join()
    site.until(lambda: site.events(SlotLeft))
    assert site.events(SlotLeft)[0].reason == site.gpus_missing
    assert site.events(SlotJoined) == []
    site.close()


def test_an_allocation_without_gpus_sees_none(tmp_path: Path) -> None:
    """A site that holds nobody to what was granted shows a job all GPUs of its node, and what is planned for the CPU
    would find itself on a machine for CUDA. Which a job with GPUs has is its back end's to say."""

    def env(gpus: int) -> Mapping[str, str]:
        return Writer(tmp_path, ClusterUse(gpus=gpus), "tcp://127.0.0.1:1").errand("slurm0a1", "token", KEYS).env

    assert env(0)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in env(1)


def test_orders_that_can_not_be_taken_away_end_no_run(tmp_path: Path) -> None:
    """A file system of the nodes that fails for a moment; who comes with them is not let in any more."""
    writer = Writer(tmp_path, ClusterUse(), "tcp://127.0.0.1:1")
    writer.errand("slurm0a1", "token", KEYS)
    (writer.folder / "slurm0a1-odd.json").mkdir()
    writer.withdraw("slurm0a1")
    assert [path.name for path in writer.folder.iterdir()] == ["slurm0a1-odd.json"]


def test_prompts_that_no_outpost_can_be_told_are_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred photographs, say: else the run would end when its first allocation comes, after hours in a queue."""
    images = tuple(bytes([n]) * 1000 for n in range(3))
    prompts = PromptSet("", (Prompt("a", b"", "", {}, images=images),), templated=False)
    ref, places = ModelRef("scripted", "scripted"), Places("s.yaml", {"prompts": "s.yaml:3"})
    check_brief(PLAN, ref, Path(), prompts, places)
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 3000)
    with pytest.raises(InputError) as caught:
        check_brief(PLAN, ref, Path(), prompts, places)
    (problem,) = caught.value.problems
    assert (problem.where, problem.key) == ("s.yaml:3", "prompts")
    assert problem.message.startswith("with their images and other fields come to ")
    assert "at most 2.9 KiB of them travel to an allocation" in problem.message


def test_what_a_node_lacks() -> None:
    def lacks(method: MethodSpec, gpus: int, devices: int) -> str:
        plan = a_plan([method], [1])
        cluster = SimpleNamespace(gpus=gpus)
        found = partial(lacking, cast(Any, SimpleNamespace(starts=plan.starts, cluster=cluster)))
        return found(Node(host="n1", devices=[f"GPU-{n}" for n in range(devices)]))

    assert lacks(HF, 2, 0) == "2 GPUs asked for, and NVML sees none on n1"
    assert lacks(HF, 2, 1) == "2 GPUs asked for, and NVML sees 1 on n1"
    assert lacks(HF, 2, 2) == lacks(HF, 1, 8) == lacks(HF, 0, 0) == ""
    assert lacks(MethodSpec(name="s", engine="scripted"), 1, 0) == ""
