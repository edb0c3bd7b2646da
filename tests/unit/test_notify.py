"""What is told of a run and when, and how it looks on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import pytest

from orchestrator.definition.notifyuse import OCCASIONS, Format, NotifyUse, Occasion
from orchestrator.events import BatchCommitted, Event, PointEnded, RunEnded, SlotQuarantined, Waited, Waiting
from orchestrator.notify.message import MOST_FAILURES, FailedPoint, Leader, Message, Points, lines, request, title
from orchestrator.notify.occasions import SETTLE_S, WINDOW_S, Occasions, Stand
from orchestrator.outcomes import Cause
from orchestrator.record.output import FLAG_SUSPENDED
from tests.unit.rundirs import a_plan, started, stats
from tests.unit.test_console import Clock

COMMANDS = (("tell",),)
ALL = NotifyUse(commands=COMMANDS, on=OCCASIONS)


@dataclass
class Run:
    use: NotifyUse = ALL
    clock: Clock = field(default_factory=Clock)
    points: Points = field(default_factory=lambda: Points(done=1, total=8))

    def __post_init__(self) -> None:
        stand = Stand(lambda: self.points, lambda: 60.0)
        self.occasions = Occasions(self.use, a_plan(), "/runs/demo", "lab", stand, self.clock)

    def heed(self, event: Event) -> list[Message]:
        return self.occasions.heed(event)

    def fail(self, point: str = "hf_sdpa/2/1", message: str = "CUDA out of memory") -> list[Message]:
        return self.heed(PointEnded(at=1.0, point=point, outcome="failed", cause=Cause(cls="oom", message=message)))

    def later(self, seconds: float) -> list[Message]:
        self.clock.now_s += seconds
        return self.occasions.due()


def committed(point: str, wall_s: float, tokens: int, *flags: str) -> BatchCommitted:
    return BatchCommitted(
        at=1.0,
        point=point,
        batch="b",
        incarnation="w",
        prompts=["a"],
        offset=0,
        length=1,
        crc=0,
        stats=stats(wall_s=wall_s, tokens=tokens),
        flags=list(flags),
    )


def the_only(found: list[Message]) -> Message:
    (message,) = found
    return message


ROOM = Waiting(at=1.0, what="room", reason="TMPDIR has 3 MiB free", most_s=60.0)
NO_ROOM = Waited(at=1.0, what="room", reason="TMPDIR has 3 MiB free", wait_s=60.0, over=False)
ENDED = RunEnded(at=1.0, exit_code=1, wall_s=2.0, measured_s=1.0)
OUT = SlotQuarantined(at=1.0, slot="slot1", incarnation="w1", reason="its memory did not come back")


@pytest.mark.parametrize(
    ("event", "occasion"),
    [(started(), "start"), (ENDED, "end"), (OUT, "quarantine"), (ROOM, "low_disk"), (NO_ROOM, "low_disk")],
)
def test_each_occasion_is_told_if_that_is_wanted(event: Event, occasion: Occasion) -> None:
    message = the_only(Run().heed(event))
    assert message.event == occasion
    assert (message.run, message.run_dir, message.host) == ("demo", "/runs/demo", "lab")
    others = tuple(one for one in OCCASIONS if one != occasion)
    assert Run(NotifyUse(commands=COMMANDS, on=others)).heed(event) == []


def test_other_events_are_told_to_nobody() -> None:
    run = Run()
    waits: list[Event] = [
        Waiting(at=1.0, what="slot", reason="x", most_s=1.0),
        Waited(at=1.0, what="slot", reason="x", wait_s=1.0),
    ]
    events: list[Event] = [PointEnded(at=1.0, point="p", outcome="ok"), *waits, committed("p", 1.0, 5)]
    for event in events:
        assert run.heed(event) == []
    assert run.later(WINDOW_S) == []


def test_a_burst_of_failures_is_one_message_and_so_is_what_follows_soon() -> None:
    run = Run()
    assert [run.fail(f"hf_sdpa/{size}/{repeat}") for size in (1, 2) for repeat in (0, 1)] == [[]] * 4
    assert run.later(SETTLE_S / 2) == []
    first = the_only(run.later(SETTLE_S / 2))
    assert [one.label for one in first.failures][:2] == [
        "hf_sdpa batch_size=1 (repeat 1 of 2)",
        "hf_sdpa batch_size=1 (repeat 2 of 2)",
    ]
    assert first.failures[0].cause == "oom: CUDA out of memory"
    for _ in range(MOST_FAILURES + 3):
        assert run.fail() == []
        assert run.later(WINDOW_S / 20) == []
    second = the_only(run.later(WINDOW_S))
    assert len(second.failures) == MOST_FAILURES
    assert second.failures_not_told == 3
    assert run.later(10 * WINDOW_S) == []
    run.fail()
    assert len(the_only(run.later(SETTLE_S)).failures) == 1


def test_what_is_pending_at_the_end_is_told_with_it() -> None:
    run = Run()
    for number in range(MOST_FAILURES + 2):
        run.fail(message=f"number {number}")
    message = the_only(run.heed(ENDED))
    assert message.event == "end"
    assert [one.cause for one in message.failures][-1] == f"oom: number {MOST_FAILURES + 1}"
    assert message.failures_not_told == 2
    assert run.later(WINDOW_S) == []


def test_where_the_end_is_not_to_be_told_the_last_failures_are() -> None:
    run = Run(NotifyUse(commands=COMMANDS, on=("failure",)))
    run.fail()
    assert the_only(run.heed(ENDED)).event == "failure"


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (1, "finished"), (3, "stopped"), (143, "interrupted")])
def test_the_state_at_the_end(code: int, state: str) -> None:
    run = Run()
    run.clock.now_s = 75.0
    ended = msgspec.structs.replace(ENDED, exit_code=code, reason="why")
    message = the_only(run.heed(ended))
    assert (message.state, message.exit_code, message.what) == (state, code, "why")
    assert (message.eta_s, message.elapsed_s) == (None, 75.0)


def test_a_run_that_could_not_end_is_told_of_as_well() -> None:
    assert the_only(Run().occasions.crashed("OSError: x")).state == "crashed"


def test_a_reason_of_any_length_is_a_message_that_can_be_told() -> None:
    """It is handed over in the environment, of which the kernel takes no variable above 128 KiB."""
    found = the_only(Run().occasions.crashed("ValueError: " + "語\n" * 1_000_000))
    assert found.what.startswith("ValueError: 語 語")
    assert found.what.endswith("…")
    assert all(len(request(found, kind).body.encode()) < 8192 for kind in get_args(Format))


def test_room_that_ran_out_is_told_once() -> None:
    run = Run()
    assert len(run.heed(ROOM)) == 1
    assert run.heed(NO_ROOM) == []
    assert len(run.heed(ROOM)) == 1
    assert run.heed(msgspec.structs.replace(NO_ROOM, over=True)) == []
    assert len(run.heed(NO_ROOM)) == 1


def test_who_leads_by_what_was_measured() -> None:
    run = Run()
    assert the_only(run.heed(OUT)).leader is None
    for event in (
        committed("hf_sdpa/1/0", 1.0, 10),
        committed("hf_sdpa/1/1", 1.0, 30),
        committed("vllm_fa/1/0", 1.0, 25),
        committed("vllm_fa/2/0", 0.001, 1000, FLAG_SUSPENDED),
        committed("vllm_fa/2/0", 0.0, 1000),
    ):
        run.heed(event)
    assert the_only(run.heed(OUT)).leader == Leader(label="vllm_fa batch_size=1", tokens_per_s=25.0)


# --- words and formats ------------------------------------------------------------------


EVIL = "<!channel> @everyone\x1b[2J\n\u202e & {run}"
MESSAGE = Message(
    event="end",
    run="demo",
    run_dir="/runs/demo",
    host="lab",
    at=1000.0,
    state="finished",
    exit_code=1,
    points=Points(done=6, failed=2, skipped=1, total=9),
    failures=[FailedPoint(label="hf_sdpa batch_size=4", cause="oom: CUDA out of memory")],
    failures_not_told=1,
    elapsed_s=75.0,
    leader=Leader(label="vllm_fa batch_size=4", tokens_per_s=123.45),
)


def changed(**changes: Any) -> Message:
    return msgspec.structs.replace(MESSAGE, **changes)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (MESSAGE, "demo: finished, exit code 1"),
        (changed(event="start"), "demo: started on lab, 9 points"),
        (changed(event="failure"), "demo: 2 points did not end well"),
        (changed(event="quarantine"), "demo: a slot is out of use"),
        (changed(event="low_disk"), "demo: no room is left on a disk"),
        (changed(state="crashed", exit_code=None), "demo: crashed"),
    ],
)
def test_titles(message: Message, said: str) -> None:
    assert title(message) == said


def test_the_words_below() -> None:
    assert list(lines(changed(what="stop_after 8h"))) == [
        "stop_after 8h",
        "- hf_sdpa batch_size=4: oom: CUDA out of memory",
        "- and 1 more",
        "points 6/9 done, 2 failed, 1 not needed after 1 min 15 s",
        "fastest so far: vllm_fa batch_size=4, 123.5 tokens/s",
        "/runs/demo",
    ]
    assert "points 6/9 done, 2 failed, 1 not needed after 1 min 15 s, about 1 min 00 s left" in lines(changed(eta_s=60))


def test_the_json_is_the_summary() -> None:
    made = request(MESSAGE, "json")
    assert msgspec.json.decode(made.body, type=Message) == MESSAGE
    assert made.headers == {"Content-Type": "application/json"}


def evil() -> Message:
    """As it comes out of a run in which an engine said it."""
    run = Run()
    run.fail(message=EVIL)
    return the_only(run.heed(msgspec.structs.replace(ENDED, reason=EVIL)))


@pytest.mark.parametrize("take", [title, lambda m: "\n".join(lines(m)), lambda m: request(m, "json").body])
def test_what_an_engine_said_is_text(take: Callable[[Message], str]) -> None:
    text = take(evil())
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_slack_and_discord_call_nobody() -> None:
    text = json.loads(request(evil(), "slack").body)["text"]
    assert "<" not in text
    assert "&lt;!channel&gt;" in text
    discord = json.loads(request(evil(), "discord").body)
    assert discord["allowed_mentions"] == {"parse": []}
    assert len(json.loads(request(changed(what="x" * 5000), "discord").body)["content"]) == 2000


def test_ntfy_has_its_title_in_a_header_that_takes_ascii_only() -> None:
    made = request(changed(run="grüße\r\nX: y", event="failure"), "ntfy")
    assert made.headers["Title"].isascii()
    assert "\n" not in made.headers["Title"]
    assert "\r" not in made.headers["Title"]
    assert made.headers["Priority"] == "high"
    assert "points 6/9 done" in made.body


def test_only_what_can_do_no_harm_stands_in_the_words_of_a_command() -> None:
    assert MESSAGE.placeholders == {
        "event": "end",
        "run": "demo",
        "run_dir": "/runs/demo",
        "state": "finished",
        "exit_code": "1",
    }
