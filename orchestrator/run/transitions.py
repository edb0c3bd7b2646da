"""The table of an incarnation's life: what each event makes of it in each state, and what is then to be done. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec.structs

from orchestrator.outcomes import Cause, CauseClass
from orchestrator.run.life import (
    ENDING,
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

#: The limit of the sweep file that ends each state.
LIMIT_OF = {
    State.LAUNCHING: "launch_s",
    State.IMPORTING: "import_s",
    State.STANDBY: "standby_s",
    State.LOADING: "load_s",
    State.READY: "ready_s",
    State.BUSY: "batch_s",
    State.DRAINING: "drain_s",
    State.TERMINATING: "terminate_s",
    State.KILLING: "kill_s",
    State.REAPED: "release_s",
}

Result = tuple[Life, tuple[Action, ...]]
Handler = Callable[[Life, Any], Result]


def _to(state: State, *actions: Action) -> Handler:
    return lambda life, _event: (replace(life, state=state), actions)


def _stay(life: Life, _event: Event) -> Result:
    return life, ()


def _blame(life: Life, cls: CauseClass, message: str) -> Life:
    return life if life.cause else replace(life, cause=Cause(cls=cls, message=message, phase=life.state.value))


def _call(life: Life, _event: Called) -> Result:
    return replace(life, early=False), ()


def _dispatch(life: Life, event: Dispatched) -> Result:
    return replace(life, state=State.BUSY, batch=event.batch_id), (SendRun(event.batch_id),)


def _answer(life: Life, event: Answered) -> Result:
    if event.batch_id != life.batch:
        return _terminate(_blame(life, "protocol", f"answered {event.batch_id!r}, asked was {life.batch!r}"), event)
    state = State.READY if life.state is State.BUSY else life.state
    return replace(life, state=state, batch=None), (Accept(event.batch_id),)


def _late_answer(life: Life, event: Answered) -> Result:
    """An answer that was on its way when the worker ended by itself still counts;
    one that comes after a deadline or another fault does not."""
    if life.cause is None and event.batch_id == life.batch and not life.asked_to_stop:
        return _answer(life, event)
    return life, ()


def _unanswerable(life: Life, event: Answered) -> Result:
    return _terminate(_blame(life, "protocol", f"answered {event.batch_id!r} though nothing was asked"), event)


def _fail(life: Life, event: Failed) -> Result:
    blamed = life if life.cause else replace(life, cause=_in_phase(event.cause, life.state))
    if event.leaving:
        return replace(blamed, state=State.TERMINATING), ()
    return _terminate(blamed, event)


def _late_failure(life: Life, event: Failed) -> Result:
    """The reason a worker gave for leaving may reach us after its exit status."""
    if life.cause or life.asked_to_stop:
        return life, ()
    return replace(life, cause=_in_phase(event.cause, life.exited_in or life.state)), ()


def _in_phase(cause: Cause, state: State) -> Cause:
    return cause if cause.phase else msgspec.structs.replace(cause, phase=state.value)


def _drain(life: Life, event: StopRequested) -> Result:
    return replace(life, state=State.DRAINING, asked_to_stop=True, rung="shutdown"), (SendShutdown(event.reason),)


def _stop_hard(life: Life, event: StopRequested) -> Result:
    return _terminate(replace(life, asked_to_stop=True), event)


def _terminate(life: Life, _event: Event) -> Result:
    return replace(life, state=State.TERMINATING, rung="terminate"), (Terminate(),)


def _kill(life: Life, _event: Event) -> Result:
    return replace(life, state=State.KILLING, rung="kill"), (Kill(),)


def _kill_asked(life: Life, event: KillRequested) -> Result:
    return _kill(replace(life, asked_to_stop=True), event)


def _hang(life: Life, event: Expired) -> Result:
    waited_s, key = life.deadline - life.since, LIMIT_OF[life.state]
    after, actions = _terminate(_blame(life, "hang", f"no answer in {waited_s:g} s (limits.{key})"), event)
    return after, (Inspect(), *actions)


def _no_slot(life: Life, _event: Expired) -> Result:
    return _drain(_blame(life, "busy_device", "no slot in the time allowed"), StopRequested("no slot"))


def _postpone(life: Life, event: Postponed) -> Result:
    return replace(life, deadline=life.deadline + event.by_s), ()


def _bye(life: Life, _event: Farewell) -> Result:
    return replace(life, farewell=True), ()


def _early_bye(life: Life, event: Farewell) -> Result:
    return _terminate(_blame(life, "protocol", "said goodbye without having been asked to stop"), event)


def _exit(life: Life, event: Exited) -> Result:
    return replace(life, state=State.KILLING, exited=event, exited_in=life.state), ()


def _exit_noted(life: Life, event: Exited) -> Result:
    return replace(life, exited=event, exited_in=life.state), ()


def _gone(life: Life, event: SubtreeGone) -> Result:
    return replace(_conclude(life), state=State.REAPED, strays=event.strays), (Sweep(),)


def _warden_lost(life: Life, _event: WardenLost) -> Result:
    lost = _blame(life, "engine_crash", "the warden of this worker was killed from outside")
    return replace(lost, state=State.REAPED, rung="sweep"), (Sweep(),)


def _conclude(life: Life) -> Life:
    """An exit that we did not ask for and that no farewell announced is a crash, status 0 included."""
    if life.cause or life.asked_to_stop or life.farewell:
        return life
    how = "nobody saw how"
    if life.exited:
        how = f"signal {life.exited.signal}" if life.exited.signal else f"exit status {life.exited.status}"
    phase = (life.exited_in or life.state).value
    message = f"the worker ended without a farewell ({how})"
    return replace(life, cause=Cause(cls="engine_crash", message=message, phase=phase))


def _stuck(life: Life, event: MemoryStuck) -> Result:
    return replace(life, state=State.STUCK), (Quarantine(event.reason),)


def _unkillable(life: Life, _event: Expired) -> Result:
    return replace(life, state=State.STUCK), (Quarantine("processes of this worker could not be killed"),)


def _not_waited_for(life: Life, _event: KillRequested) -> Result:
    return replace(life, state=State.STUCK), (
        Quarantine("told to stop at once, before its memory was seen to be back"),
    )


def _never_back(life: Life, _event: Expired) -> Result:
    return replace(life, state=State.STUCK), (Quarantine("memory did not come back in the time allowed"),)


def _out_of_turn(life: Life, event: Event) -> Result:
    return _terminate(_blame(life, "protocol", f"{type(event).__name__} out of turn"), event)


def _rows() -> dict[tuple[State, type[Any]], Handler]:
    s = State
    rows: dict[tuple[State, type[Any]], Handler] = {
        (s.LAUNCHING, Connected): _to(s.IMPORTING),
        (s.IMPORTING, ImportDone): _to(s.STANDBY),
        (s.STANDBY, Granted): _to(s.LOADING, SendInit()),
        (s.LOADING, LoadDone): _to(s.READY),
        (s.READY, Dispatched): _dispatch,
        (s.BUSY, Answered): _answer,
        (s.READY, Answered): _unanswerable,
        (s.READY, StopRequested): _drain,
        (s.STANDBY, StopRequested): _drain,
        (s.READY, Expired): lambda life, _e: _drain(life, StopRequested("nothing to do")),
        (s.STANDBY, Expired): _no_slot,
        (s.DRAINING, Farewell): _bye,
        (s.DRAINING, Expired): _terminate,
        (s.TERMINATING, Expired): _kill,
        (s.KILLING, Expired): _unkillable,
        (s.REAPED, Expired): _never_back,
        (s.REAPED, MemoryBack): _to(s.RELEASED, Free()),
        (s.REAPED, MemoryStuck): _stuck,
        (s.KILLING, SubtreeGone): _gone,
        (s.KILLING, Answered): _late_answer,
        (s.KILLING, Failed): _late_failure,
        (s.KILLING, Exited): _exit_noted,
        (s.KILLING, Farewell): _bye,
        (s.TERMINATING, Farewell): _stay,
    }
    for state in (s.LAUNCHING, s.IMPORTING, s.LOADING, s.BUSY):
        rows[state, StopRequested] = _stop_hard
        rows[state, Expired] = _hang
    openings: tuple[type[Any], ...] = (Connected, ImportDone, LoadDone)
    others: tuple[type[Any], ...] = (*openings, Answered, Failed, Farewell)
    for state in WORKING:
        rows[state, Failed] = _fail
        rows[state, Farewell] = _early_bye
        rows[state, Exited] = _exit
        rows[state, WardenLost] = _warden_lost
        rows[state, KillRequested] = _kill_asked
        for message in openings:
            rows.setdefault((state, message), _out_of_turn)
    for state in (s.LAUNCHING, s.IMPORTING, s.STANDBY, s.LOADING):
        rows[state, Answered] = _unanswerable
    for state in (s.LAUNCHING, s.IMPORTING, s.STANDBY, *ENDING):  # what ends may have stood by
        rows[state, Called] = _call
    for state in (s.DRAINING, s.TERMINATING, s.KILLING):
        rows.setdefault((state, Exited), _exit)
        rows[state, WardenLost] = _warden_lost
        rows[state, KillRequested] = _kill_asked
    for state in (*WORKING, s.DRAINING, s.TERMINATING):
        rows[state, SubtreeGone] = _gone
    rows[s.KILLING, KillRequested] = _stay
    rows[s.REAPED, KillRequested] = _not_waited_for
    rows[s.REAPED, WardenLost] = _stay
    for state in set(s) - TERMINAL:
        rows[state, Postponed] = _postpone
    for state in ENDING:
        rows[state, StopRequested] = _stay
        for message in others:
            rows.setdefault((state, message), _stay)
    return rows


TABLE: Final[dict[tuple[State, type[Any]], Handler]] = _rows()
