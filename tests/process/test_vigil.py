"""How long a coordinator was stopped: by SIGCONT, which comes to it wherever in its loop it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.run.signals import StopFlag
from orchestrator.run.vigil import Vigil

STOPPED_S = 4.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vigil(clock: Clock) -> Iterator[Vigil]:
    channel: Any = None  # never slept on here
    with StopFlag(clock) as stop:
        made = Vigil(channel, stop, clock)
        yield made
        made.close()


def go_on(clock: Clock, after_s: float) -> None:
    clock.now += after_s
    os.kill(os.getpid(), signal.SIGCONT)


def test_a_stop_between_two_sleeps_is_counted_once(vigil: Vigil, clock: Clock) -> None:
    assert vigil.pop_suspension() == 0
    go_on(clock, STOPPED_S)
    assert vigil.pop_suspension() == STOPPED_S
    clock.now += 1
    assert vigil.pop_suspension() == 0


def test_stops_add_up(vigil: Vigil, clock: Clock) -> None:
    go_on(clock, STOPPED_S)
    go_on(clock, 2 * STOPPED_S)
    assert vigil.pop_suspension() == 3 * STOPPED_S


def test_what_was_awake_before_counts_for_nothing_once_it_was_asked(vigil: Vigil, clock: Clock) -> None:
    clock.now += 60
    vigil.pop_suspension()
    go_on(clock, STOPPED_S)
    assert vigil.pop_suspension() == STOPPED_S


def test_who_stops_a_job_for_good_suspends_nothing(vigil: Vigil, clock: Clock) -> None:
    go_on(clock, STOPPED_S)
    os.kill(os.getpid(), signal.SIGTERM)
    assert vigil.pop_suspension() == 0
