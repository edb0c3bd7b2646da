"""Who gets a slot next: in the order of the plan, and only with devices, room, memory and time for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LaunchFailed
from orchestrator.run.life import State, StopRequested
from orchestrator.run.roomwait import LOOK_AGAIN_S
from orchestrator.run.stint import Stint
from tests.unit.house import LARGE, PATIENCE_S, SMALL, House, a_house, a_start


def two_at_work_and_one_standing_by(folder: Path) -> House:
    """One and two, three for the place of one; four waits."""
    house = House(folder, *map(a_start, ("one", "two", "three", "four")), sizes=(LARGE, LARGE), wish="on")
    assert house.allot() == [("one", "slot0"), ("two", "slot1"), ("three", "slot0")]
    assert not house.called("three")
    return house


# --- the order of the plan ----------------------------------------------------------------


def test_each_in_turn_as_slots_become_free(tmp_path: Path) -> None:
    house = a_house(tmp_path, "abc", sizes=(LARGE, LARGE))
    assert house.allot() == [("a", "slot0"), ("b", "slot1")]
    house.end("b")
    assert house.allot() == [("c", "slot1")]


def test_who_needs_two_devices_is_not_overtaken_by_who_needs_one(tmp_path: Path) -> None:
    house = House(tmp_path, a_start("one"), a_start("wide", width=2), a_start("next"), sizes=(LARGE, LARGE))
    assert house.allot() == [("one", "slot0")]
    assert house.allot() == []
    house.end("one")
    assert house.allot() == [("wide", "slot0+1")]
    house.end("wide")
    assert house.allot() == [("next", "slot0")]


def test_who_needs_more_devices_than_are_left_falls_away(tmp_path: Path) -> None:
    house = House(tmp_path, a_start("wide", width=2), a_start("next"), sizes=(LARGE, LARGE))
    house.gate.quarantine(house.gate.slots.all[0], "device_lost", "fell off the bus")
    assert house.allot() == [("next", "slot1")]
    cause = house.causes()["wide/0"]
    assert cause is not None
    assert "1 device left of the 2 needed" in cause.message


@pytest.mark.parametrize("wish", ["off", "on"])
def test_what_drift_is_told_by_comes_after_everything_else(tmp_path: Path, wish: str) -> None:
    house = House(tmp_path, a_start("one"), a_start("drift", role="drift"), sizes=(LARGE, LARGE), wish=wish)
    assert house.allot() == [("one", "slot0")]
    house.end("one")
    assert house.allot() == [("drift", "slot0")]


@given(
    widths=st.lists(st.integers(1, 2), max_size=7),
    ends=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=20),
)
def test_nobody_starts_before_those_ahead_of_it(widths: list[int], ends: list[tuple[int, bool]]) -> None:
    starts = [a_start(f"{n}", width=width) for n, width in enumerate(widths)]
    house = House(Path("/"), *starts, sizes=(LARGE, LARGE), wish="on")
    house.allot()
    for at, done in ends:
        if house.stints:
            house.end(house.stints[at % len(house.stints)].name, done=done)
        house.allot()
    first = list(dict.fromkeys(name for name, _ in house.launched))
    assert first == [start.key for start in starts[: len(first)]]
    held = [unit for one in house.stints if one.called for unit in one.slot.units]
    assert len(held) == len(set(held))


def test_no_more_at_once_than_may_be(tmp_path: Path) -> None:
    house = a_house(tmp_path, "abc", sizes=(LARGE, LARGE), most=1, wish="on")
    assert house.allot() == [("a", "slot0"), ("b", "slot0")]
    assert house.allot() == []
    assert not house["b"].sent_away, "the other slot is free, but not for it"
    house.end("a")
    assert house.allot() == [("c", "slot0")]
    assert house.called("b")


# --- one that stands by -------------------------------------------------------------------


def test_one_that_stood_by_is_called_in_the_turn_in_which_its_slot_is_free(tmp_path: Path) -> None:
    house = two_at_work_and_one_standing_by(tmp_path)
    assert house.allot() == []
    house.end("one")
    assert house.allot() == [("four", "slot1")], "standing by beside two, which has as few batches left"
    assert house.called("three")
    assert not house.called("four")


def test_where_another_slot_is_free_it_goes_and_comes_back_there_before_all_others(tmp_path: Path) -> None:
    house = two_at_work_and_one_standing_by(tmp_path)
    house.end("two")
    assert house.allot() == []
    assert house["three"].sent_away
    assert house.allot() == [], "nobody overtakes it on its way out"
    house.end("three", done=False)
    assert house.allot()[0] == ("three", "slot1")
    assert house.called("three")


def test_a_job_that_comes_back_is_served_before_one_that_stands_by(tmp_path: Path) -> None:
    house = a_house(tmp_path, "ab", wish="on")
    house.allot()
    house.end("a", done=False)
    assert house.allot() == [("a", "slot0")]
    assert not house.called("b")
    house.end("a")
    house.allot()
    assert house.called("b")


def test_who_comes_later_takes_nothing_of_what_it_waits_for(tmp_path: Path) -> None:
    starts = a_start("wide", width=2), a_start("one"), a_start("early", width=2), a_start("late")
    house = House(tmp_path, *starts, sizes=(LARGE, LARGE, LARGE), wish="on")
    assert house.allot() == [("wide", "slot0+1"), ("one", "slot2"), ("early", "slot0+1")]
    house.end("wide")
    house.end("one", done=False)
    assert house.allot() == [("one", "slot0"), ("late", "slot2")]
    house.end("one")
    house.allot()
    assert house.called("early")


def test_it_is_called_only_where_there_is_room(tmp_path: Path) -> None:
    house = a_house(tmp_path, "ab", wish="on")
    house.allot()
    house.end("a")
    house.fill_disk()
    house.allot()
    assert not house.called("b")
    assert house.allotment.waiting
    house.make_room()
    house.clock.now += LOOK_AGAIN_S
    house.allot()
    assert house.called("b")
    assert house.gate.slots.held == {"slot0"}
    assert house.waits() == [True]


def test_it_is_called_only_where_there_is_memory(tmp_path: Path) -> None:
    house = House(tmp_path, a_start("one"), a_start("big", engine="hf"), wish="on")
    house.allot()
    house.end("one")
    house.memory["slot0"] = SMALL
    house.allot()
    assert not house.called("big")
    cause = house.causes()["big/0"]
    assert cause is not None
    assert (cause.cls, "would need at least" in cause.message) == ("oom", True)


def a_stint(house: House, closed: str = "") -> tuple[Stint, list[StopRequested]]:
    """Of the one that stands by, as it is in a run but for its worker; and what that is fed."""
    fed: list[StopRequested] = []
    stop = SimpleNamespace(count=0, requested=False)
    around = SimpleNamespace(gate=house.gate, stop=stop, time_up=lambda: "", closed=lambda: closed)
    early = next(one for one in house.stints if not one.called)
    stint = Stint(early.job, early.slot, cast("Any", around), "standby", called=False)
    stint.worker = cast("Any", SimpleNamespace(life=SimpleNamespace(state=State.STANDBY, over=False), feed=fed.append))
    return stint, fed


def test_without_room_for_the_one_before_nobody_stands_by_for_ever(tmp_path: Path) -> None:
    house = a_house(tmp_path, "ab", wish="on")
    house.allot()
    house.fill_disk()
    house.end("a", done=False)
    assert house.allot() == []
    house.clock.now += PATIENCE_S
    assert house.allot() == []
    assert not house.called("b")
    assert "are wanted" in house.allotment.no_room
    assert not house.allotment.has_more
    stint, fed = a_stint(house, house.allotment.no_room)
    stint.advance()
    assert fed == [StopRequested(house.allotment.no_room)]


def test_one_that_could_not_be_started_early_waits_for_its_slot(tmp_path: Path) -> None:
    house = a_house(tmp_path, "abc", wish="on")
    house.allot()
    said: list[str] = []
    early = house["b"]
    here = SimpleNamespace(dismiss=lambda _name: None, clear=lambda _name: None)
    services = SimpleNamespace(channel=here, workplace=here)
    around = SimpleNamespace(ledger=SimpleNamespace(console=SimpleNamespace(say=said.append)), services=services)
    stint = Stint(early.job, early.slot, cast("Any", around), "standby", called=False)
    stint.worker = cast("Any", SimpleNamespace(name="w1"))
    stint._not_launched(LaunchFailed("[Errno 11] Resource temporarily unavailable"))
    house.stints.remove(early)
    house.allotment.take_back(early.job)
    assert house.allot() == [], "it is next, and does not stand by"
    assert "waits for its slot: [Errno 11]" in said[0]
    house.end("a")
    assert house.allot() == [("b", "slot0"), ("c", "slot0")]
    assert house.called("b")
    assert not house.causes()


def test_one_that_is_sent_away_goes_and_others_wait(tmp_path: Path) -> None:
    stint, fed = a_stint(two_at_work_and_one_standing_by(tmp_path))
    stint.advance()
    assert fed == []
    stint.send_away("another slot is free for it")
    stint.advance()
    assert fed == [StopRequested("another slot is free for it")]


# --- room, memory, time -------------------------------------------------------------------


def test_a_wait_for_room_ends_when_nobody_needs_it_any_more(tmp_path: Path) -> None:
    house = a_house(tmp_path, "a")
    house.fill_disk()
    assert house.allot() == []
    assert house.allotment.waiting
    house.skip("a")
    house.allot()
    assert house.waits() == [False]


def test_of_unequal_devices_it_gets_the_one_it_fits_or_waits_for_it(tmp_path: Path) -> None:
    house = House(tmp_path, *(a_start(name, engine="hf") for name in ("one", "two")), sizes=(SMALL, LARGE))
    assert house.allot() == [("one", "slot1")]
    assert house.allot() == []
    assert not house.causes()
    house.end("one")
    assert house.allot() == [("two", "slot1")]


def test_what_fits_no_device_fails_and_the_next_is_served(tmp_path: Path) -> None:
    house = House(tmp_path, a_start("big", engine="hf"), a_start("next"), sizes=(SMALL, SMALL))
    assert house.allot() == [("next", "slot0")]
    cause = house.causes()["big/0"]
    assert cause is not None
    assert cause.cls == "oom"


def test_the_time_is_up_when_nothing_fits_and_only_one_that_stands_by_is_left(tmp_path: Path) -> None:
    house = a_house(tmp_path, "ab", wish="on")
    house.allot()
    house.outlook.too_long = {"a"}
    house.end("a", done=False)
    assert house.allot() == []
    assert house.budget.over()


def test_while_somebody_is_at_work_it_may_turn_out_that_more_fits(tmp_path: Path) -> None:
    house = a_house(tmp_path, "ab", sizes=(LARGE, LARGE))
    house.outlook.too_long = {"b"}
    assert house.allot() == [("a", "slot0")]
    assert not house.budget.over()
    house.outlook.too_long.clear()
    assert house.allot() == [("b", "slot1")]
