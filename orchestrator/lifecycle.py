"""The life of one incarnation as a pure function: `step(life, event, now, limits) → (life, actions)`.

    LAUNCHING → IMPORTING → STANDBY → LOADING → READY ⇄ BUSY → DRAINING → TERMINATING → KILLING → REAPED → RELEASED
                                                                                                         ↘ STUCK
Facts of the world are events, things to do are actions, and the supervisor
performs them. A pair that is not in the table (`run.transitions`) raises `Unlisted` with the last
steps as its story. Every state that waits for the worker has a deadline, so a
silent worker reaches RELEASED or STUCK from everywhere.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config import Limits
from orchestrator.run.life import Action, Event, Life, State
from orchestrator.run.transitions import LIMIT_OF, TABLE

HISTORY_STEPS = 50


class Unlisted(Exception):
    """An event came that the table does not allow: a fault of ours, told with its story."""

    def __init__(self, life: Life, event: Event) -> None:
        story = "\n  ".join(life.history)
        super().__init__(f"{event!r} is not allowed in {life.state}; what led there:\n  {story}")


def begin(now: float, limits: Limits, *, early: bool = False) -> Life:
    """`early`: its slot is still another's, so it may stand by without end until it is `Called`."""
    return Life(State.LAUNCHING, now, now + _allowed_s(State.LAUNCHING, limits), early=early)


def step(life: Life, event: Event, now: float, limits: Limits) -> tuple[Life, tuple[Action, ...]]:
    """The next life and what to do. Raises Unlisted."""
    handler = TABLE.get((life.state, type(event)))
    if handler is None:
        raise Unlisted(life, event)
    after, actions = handler(life, event)
    if after.state is not life.state:
        after = replace(after, since=now, deadline=_deadline(after, now, limits))
    elif life.state is State.STANDBY and life.early and not after.early:
        after = replace(after, deadline=_deadline(after, now, limits))
    line = f"{now:.3f} {life.state} + {type(event).__name__} -> {after.state}"
    return replace(after, history=(*life.history, line)[-HISTORY_STEPS:]), actions


def _deadline(life: Life, now: float, limits: Limits) -> float:
    if life.state is State.STANDBY and life.early:
        return float("inf")
    return now + _allowed_s(life.state, limits)


def _allowed_s(state: State, limits: Limits) -> float:
    key = LIMIT_OF.get(state)
    return getattr(limits, key) if key else float("inf")
