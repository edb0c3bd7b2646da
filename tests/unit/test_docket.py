"""Who is next: the plan's order, whoever comes back, and nobody twice."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan import WorkerStart
from orchestrator.run.docket import Docket, Job


def job(place: int) -> Job:
    nothing = cast("Any", None)
    return Job(place, nothing, nothing, nothing, 1, anew=nothing)


def docket(count: int, over: set[int] = frozenset()) -> Docket:  # type: ignore[assignment]
    starts = cast("list[WorkerStart]", [None] * count)
    return Docket(starts, lambda place, _start: None if place in over else job(place))


def taken(found: Docket) -> list[int]:
    places = []
    while found.head():
        places.append(found.take().place)
    return places


def test_those_that_have_nothing_left_to_do_are_passed_over() -> None:
    assert taken(docket(5, {0, 3, 4})) == [1, 2]
    assert docket(0).head() is None


def test_the_head_stays_until_it_is_taken() -> None:
    found = docket(2)
    assert found.head() is found.head()
    assert found.take().place == 0


def test_who_comes_back_unfinished_is_before_those_behind_it() -> None:
    found = docket(4)
    first, second = (found.head() and found.take() for _ in range(2))
    assert first
    assert second
    found.put_back(second)
    found.put_back(first)
    assert taken(found) == [0, 1, 2, 3]


@given(count=st.integers(0, 8), moves=st.lists(st.booleans(), max_size=40))
def test_every_start_comes_in_order_however_often_some_come_back(count: int, moves: list[bool]) -> None:
    found = docket(count)
    out: list[Job] = []
    for back in moves:
        if back and out:
            found.put_back(out.pop(0))
        elif head := found.head():
            assert all(one.place != head.place for one in out)
            out.append(found.take())
    waiting = taken(found)
    assert waiting == sorted(waiting)
    assert sorted([*waiting, *(one.place for one in out)]) == list(range(count))
