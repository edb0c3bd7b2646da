"""What a wait for room on the disks costs, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Limits, Policies
from orchestrator.definition.limits import Policy
from orchestrator.events import Event, Waited, Waiting
from orchestrator.run.room import Places
from orchestrator.run.roomwait import LOOK_AGAIN_S, RoomWait

PATIENCE_S = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def room(tmp_path: Path, clock: Clock, told: list[Event]) -> RoomWait:
    """No folder has the room that is wanted."""
    places = Places(tmp_path, tmp_path, tmp_path)
    policies = Policies(disk=Policy(do="wait", wait_s=PATIENCE_S))
    return RoomWait(places, Limits(run_dir_free_mib=1 << 40), policies, told.append, clock)


def enough(room: RoomWait) -> None:
    room.limits = Limits(run_dir_free_mib=0, tmp_free_mib=0, shm_free_mib=0)


def test_room_is_waited_for_as_long_as_the_policy_says(room: RoomWait, clock: Clock, told: list[Event]) -> None:
    assert room.ask() == "wait"
    clock.now = PATIENCE_S
    assert room.ask() == "no"
    assert not room.waiting
    assert "are wanted" in room.short
    begun, waited = told
    assert isinstance(begun, Waiting)
    assert isinstance(waited, Waited)
    assert begun.most_s == PATIENCE_S
    assert (waited.what, waited.over, waited.wait_s) == ("room", False, PATIENCE_S)


def test_room_that_comes_ends_the_wait(room: RoomWait, clock: Clock, told: list[Event]) -> None:
    assert room.ask() == "wait"
    enough(room)
    clock.now = LOOK_AGAIN_S / 2
    assert room.ask() == "wait", "the disks are not looked at all the time"
    clock.now = LOOK_AGAIN_S
    assert room.ask() == "yes"
    waited = told[-1]
    assert isinstance(waited, Waited)
    assert (waited.over, waited.wait_s) == (True, LOOK_AGAIN_S)


def test_room_that_is_there_is_no_wait(room: RoomWait, told: list[Event]) -> None:
    enough(room)
    assert room.ask() == "yes"
    assert not told


def test_who_does_not_wait_is_told_at_once(room: RoomWait, told: list[Event]) -> None:
    room.policies = Policies(disk=Policy(do="give_up"))
    assert room.ask() == "no"
    assert [type(event) for event in told] == [Waited]


def test_time_in_which_we_were_stopped_is_no_part_of_a_wait(room: RoomWait, clock: Clock) -> None:
    assert room.ask() == "wait"
    clock.now = 3600.0
    room.postpone(3599.0)
    assert room.ask() == "wait"
    clock.now += PATIENCE_S
    assert room.ask() == "no"


def test_a_wait_that_nobody_needs_any_more_is_told(room: RoomWait, told: list[Event]) -> None:
    room.ask()
    room.leave()
    room.leave()
    assert [type(event) for event in told] == [Waiting, Waited]
