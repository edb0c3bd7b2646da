"""The life-cycle table: every worker ends, the first cause wins, nothing unlisted is swallowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import lifecycle
from orchestrator.config import Limits
from orchestrator.outcomes import Cause
from orchestrator.run.life import (
    TERMINAL,
    WORKING,
    Accept,
    Action,
    Answered,
    Called,
    Connected,
    Dispatched,
    Event,
    Exited,
    Expired,
    Failed,
    Farewell,
    Free,
    Granted,
    ImportDone,
    Inspect,
    Kill,
    KillRequested,
    Life,
    LoadDone,
    MemoryBack,
    MemoryStuck,
    Postponed,
    Quarantine,
    SendInit,
    SendRun,
    SendShutdown,
    State,
    StopRequested,
    SubtreeGone,
    Sweep,
    Terminate,
    WardenLost,
)

LIMITS = Limits()
OOM = Cause(cls="oom", message="out of memory")

#: What leads from LAUNCHING to each working state.
PATH: dict[State, list[Event]] = {
    State.LAUNCHING: [],
    State.IMPORTING: [Connected()],
    State.STANDBY: [Connected(), ImportDone()],
    State.LOADING: [Connected(), ImportDone(), Granted()],
    State.READY: [Connected(), ImportDone(), Granted(), LoadDone()],
    State.BUSY: [Connected(), ImportDone(), Granted(), LoadDone(), Dispatched("b1")],
}


def live(events: list[Event], start: Life | None = None) -> tuple[Life, list[Action]]:
    life = start or lifecycle.begin(0.0, LIMITS)
    done: list[Action] = []
    for event in events:
        life, actions = lifecycle.step(life, event, life.since + 1, LIMITS)
        done += actions
    return life, done


def test_an_orderly_life() -> None:
    ending: list[Event] = [StopRequested("done"), Farewell(), Exited(0, None), SubtreeGone(()), MemoryBack()]
    life, actions = live([*PATH[State.BUSY], Answered("b1"), *ending])
    assert life.state is State.RELEASED
    assert life.cause is None
    assert life.batch is None
    assert actions == [SendInit(), SendRun("b1"), Accept("b1"), SendShutdown("done"), Sweep(), Free()]


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize(("status", "signal"), [(0, None), (1, None), (None, "SIGKILL"), (None, "SIGSEGV")])
def test_an_exit_without_farewell_is_a_crash_in_every_state(
    state: State, status: int | None, signal: str | None
) -> None:
    life, _ = live([*PATH[state], Exited(status, signal), SubtreeGone(())])
    assert life.state is State.REAPED
    assert life.cause is not None
    assert life.cause.cls == "engine_crash"
    assert life.cause.phase == state.value
    assert life.batch == ("b1" if state is State.BUSY else None)


@pytest.mark.parametrize("state", WORKING)
def test_a_silent_worker_ends_from_every_state(state: State) -> None:
    life, _ = live(PATH[state])
    seen = [life.state]
    while not life.over:
        life, _ = lifecycle.step(life, Expired(), life.deadline, LIMITS)
        seen.append(life.state)
        assert len(seen) < len(State)
    assert life.state is State.STUCK
    cls = life.cause.cls if life.cause else ""
    assert cls == {State.READY: "", State.STANDBY: "busy_device"}.get(state, "hang")


@pytest.mark.parametrize("state", [State.LAUNCHING, State.IMPORTING, State.LOADING, State.BUSY])
def test_a_worker_that_hangs_is_asked_what_it_does_before_it_is_ended(state: State) -> None:
    _, actions = live([*PATH[state], Expired()])
    assert actions[-2:] == [Inspect(), Terminate()]


def test_time_in_which_we_were_stopped_counts_for_nobody() -> None:
    for state in WORKING:
        life, _ = live(PATH[state])
        after, actions = lifecycle.step(life, Postponed(100.0), life.since, LIMITS)
        assert (after.state, after.deadline, actions) == (state, life.deadline + 100.0, ())


def test_the_ladder_is_climbed_in_order() -> None:
    life, actions = live([*PATH[State.READY], StopRequested("done"), Expired(), Expired(), Exited(None, "SIGKILL")])
    assert actions[1:] == [SendShutdown("done"), Terminate(), Kill()]
    assert life.rung == "kill"
    assert life.cause is None, "a slow farewell is no failure of the method"


@pytest.mark.parametrize("state", WORKING)
def test_the_first_cause_wins(state: State) -> None:
    life, _ = live([*PATH[state], Failed(OOM, leaving=True), Exited(70, None), SubtreeGone(("orphan",))])
    assert life.cause is not None
    assert life.cause.cls == "oom"
    assert life.cause.phase == state.value
    assert life.strays == ("orphan",)


def test_a_reason_that_comes_after_the_exit_still_counts() -> None:
    life, _ = live([*PATH[State.LOADING], Exited(70, None), Failed(OOM, leaving=True), SubtreeGone(())])
    assert life.cause is not None
    assert (life.cause.cls, life.cause.phase) == ("oom", "loading")


def test_an_answer_on_its_way_when_the_worker_died_counts() -> None:
    life, actions = live([*PATH[State.BUSY], Exited(1, None), Answered("b1"), SubtreeGone(())])
    assert Accept("b1") in actions
    assert life.batch is None
    assert life.cause is not None


def test_a_late_answer_after_a_deadline_does_not_count() -> None:
    life, actions = live([*PATH[State.BUSY], Expired(), Answered("b1"), Exited(None, "SIGTERM"), Answered("b1")])
    assert not [a for a in actions if isinstance(a, Accept)]
    assert life.batch == "b1"


@pytest.mark.parametrize("answer", ["b0", "b2", ""])
def test_an_answer_to_what_was_not_asked_is_a_protocol_fault(answer: str) -> None:
    life, actions = live([*PATH[State.BUSY], Answered(answer)])
    assert life.cause is not None
    assert life.cause.cls == "protocol"
    assert Terminate() in actions


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("message", [Connected(), ImportDone(), LoadDone(), Farewell()])
def test_a_message_out_of_turn_is_a_protocol_fault(state: State, message: Event) -> None:
    expected = {State.LAUNCHING: Connected(), State.IMPORTING: ImportDone(), State.LOADING: LoadDone()}
    life, _ = live([*PATH[state], message])
    if expected.get(state) == message:
        assert life.cause is None
    else:
        assert life.cause is not None
        assert life.cause.cls == "protocol"


@pytest.mark.parametrize("state", WORKING)
def test_a_lost_warden_leads_to_a_sweep(state: State) -> None:
    life, actions = live([*PATH[state], WardenLost()])
    assert life.state is State.REAPED
    assert actions[-1] == Sweep()


def test_memory_that_does_not_come_back_quarantines_the_slot() -> None:
    gone: list[Event] = [StopRequested("done"), Farewell(), Exited(0, None), SubtreeGone(())]
    life, actions = live([*PATH[State.READY], *gone, MemoryStuck("held by 42")])
    assert life.state is State.STUCK
    assert actions[-1] == Quarantine("held by 42")
    life, actions = live([*PATH[State.READY], *gone, Expired()])
    assert life.state is State.STUCK
    assert isinstance(actions[-1], Quarantine)


def test_what_is_not_listed_raises_with_its_story() -> None:
    with pytest.raises(lifecycle.Unlisted, match=r"MemoryBack.*not allowed in importing[\s\S]*launching \+ Connected"):
        live([Connected(), MemoryBack()])


WORLD: st.SearchStrategy[Event] = st.sampled_from(
    [
        Connected(),
        ImportDone(),
        LoadDone(),
        Answered("b1"),
        Answered("b2"),
        Failed(OOM),
        Failed(OOM, leaving=True),
        Farewell(),
        Exited(0, None),
        Exited(None, "SIGKILL"),
        Expired(),
        StopRequested("stop"),
        KillRequested("stop"),
        WardenLost(),
    ]
)


@given(st.lists(WORLD, max_size=30), st.sampled_from(list(PATH)))
def test_whatever_the_world_does_a_life_ends_and_its_cause_stays(events: list[Event], state: State) -> None:
    """Any mixture of frames, exits, deadlines and wishes, in any state, is listed; patience always ends it."""
    life, _ = live(PATH[state])
    first: Cause | None = None
    exited = False
    for event in events:
        if life.over or (isinstance(event, Exited) and exited):
            continue
        if isinstance(event, Exited | WardenLost) and life.state is State.REAPED:
            continue  # the warden is silent by then
        exited = exited or isinstance(event, Exited)
        life, _ = lifecycle.step(life, event, life.since + 1, LIMITS)
        first = first or life.cause
        assert life.cause == first
    for _ in range(len(State)):
        if not life.over:
            life, _ = lifecycle.step(life, Expired(), life.deadline, LIMITS)
    assert life.state in TERMINAL
    assert len(life.history) <= lifecycle.HISTORY_STEPS


def test_a_worker_whose_exit_nobody_saw_is_blamed_all_the_same() -> None:
    """Else its batch would be dropped without a word."""
    life, _ = live([*PATH[State.BUSY], SubtreeGone(())])
    assert life.cause is not None
    assert (life.cause.cls, life.cause.phase) == ("engine_crash", "busy")
    assert "nobody saw how" in life.cause.message


def test_told_twice_to_stop_we_do_not_wait_for_memory() -> None:
    ending: list[Event] = [StopRequested("^C"), Farewell(), Exited(0, None), SubtreeGone(()), KillRequested("^C again")]
    life, actions = live([*PATH[State.READY], *ending])
    assert life.state is State.STUCK
    assert isinstance(actions[-1], Quarantine)


def test_who_stands_by_waits_without_end_until_it_is_called() -> None:
    life = lifecycle.begin(0.0, LIMITS, early=True)
    for event in (Connected(), ImportDone()):
        life, _ = lifecycle.step(life, event, 1.0, LIMITS)
    assert (life.state, life.deadline) == (State.STANDBY, float("inf"))
    life, actions = lifecycle.step(life, Called(), 500.0, LIMITS)
    assert (life.early, life.deadline, actions) == (False, 500.0 + LIMITS.standby_s, ())
    life, actions = lifecycle.step(life, Granted(), 501.0, LIMITS)
    assert (life.state, actions) == (State.LOADING, (SendInit(),))


@pytest.mark.parametrize("state", [State.LAUNCHING, State.IMPORTING])
def test_a_call_before_it_stands_by_leaves_its_deadline(state: State) -> None:
    life = lifecycle.begin(0.0, LIMITS, early=True)
    for event in PATH[state]:
        life, _ = lifecycle.step(life, event, 1.0, LIMITS)
    called, _ = lifecycle.step(life, Called(), 5.0, LIMITS)
    assert (called.state, called.deadline, called.early) == (state, life.deadline, False)
