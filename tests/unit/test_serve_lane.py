"""What many ask for is made once, not too often, and never on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from orchestrator.serve.lane import LEAST_S, MOST_SHARE, Lane, Shared

LANE = Lane("test")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Making:
    """Counts how often it is asked, waits where it is told to, and says that each time takes `cpu_s`."""

    def __init__(self, cpu_s: float = 0.0) -> None:
        self.count = 0
        self.cpu_s = cpu_s
        self.spent_s = 0.0
        self.may_go = threading.Event()
        self.may_go.set()
        self.threads: set[str] = set()

    def cpu_clock(self) -> float:
        return self.spent_s

    def __call__(self, last: int | None) -> int:
        self.may_go.wait()
        self.threads.add(threading.current_thread().name)
        self.spent_s += self.cpu_s
        self.count += 1
        return (last or 0) + 1


def run(
    scene: Callable[[Shared[int], Clock], Awaitable[None]],
    making: Callable[[int | None], int],
    cpu_clock: Callable[[], float] = time.thread_time,
) -> None:
    async def whole() -> None:
        clock = Clock()
        await scene(Shared(LANE, making, clock=clock, cpu_clock=cpu_clock), clock)

    asyncio.run(whole())


def test_a_hundred_who_ask_at_once_have_it_made_once() -> None:
    making = Making()

    async def scene(shared: Shared[int], _clock: Clock) -> None:
        assert await asyncio.gather(*(shared.get() for _ in range(100))) == [1] * 100

    run(scene, making)
    assert making.count == 1
    assert making.threads == {"test"}


def test_it_is_made_again_when_its_time_has_come_and_somebody_asks() -> None:
    making = Making()

    async def scene(shared: Shared[int], clock: Clock) -> None:
        assert await shared.get() == 1
        clock.now += LEAST_S - 0.01
        assert await shared.get() == 1
        clock.now += 0.02
        assert await shared.get() == 2

    run(scene, making)


def test_what_costs_more_is_made_more_seldom() -> None:
    making = Making(cpu_s=2 * LEAST_S * MOST_SHARE)

    async def scene(shared: Shared[int], clock: Clock) -> None:
        await shared.get()
        clock.now += 1.9 * LEAST_S
        assert await shared.get() == 1
        clock.now += 2 * LEAST_S
        assert await shared.get() == 2

    run(scene, making, making.cpu_clock)


def test_what_grows_is_judged_by_what_it_costs_later() -> None:
    making = Making(cpu_s=2 * LEAST_S * MOST_SHARE)

    async def whole() -> None:
        clock = Clock()
        shared = Shared(LANE, making, grows=True, clock=clock, cpu_clock=making.cpu_clock)
        await shared.get()
        clock.now += LEAST_S
        assert await shared.get() == 2
        clock.now += 1.9 * LEAST_S
        assert await shared.get() == 2

    asyncio.run(whole())


def test_nobody_waits_long_for_a_newer_value() -> None:
    making = Making()

    async def scene(shared: Shared[int], clock: Clock) -> None:
        await shared.get()
        making.may_go.clear()
        clock.now += LEAST_S
        assert await shared.glance(0) == 1
        making.may_go.set()
        while await shared.get() == 1:
            pass

    run(scene, making)
    assert making.count == 2


def test_a_first_value_that_takes_long_is_none_to_who_has_no_patience() -> None:
    making = Making()
    making.may_go.clear()

    async def scene(shared: Shared[int], _clock: Clock) -> None:
        assert await shared.glance(0) is None
        making.may_go.set()
        assert await shared.get() == 1

    run(scene, making)


def test_who_asks_hears_of_a_failure_and_the_next_one_may_have_it() -> None:
    outcomes: Iterator[Exception | int] = iter([ValueError("no"), 7])

    def make(_last: int | None) -> int:
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return found

    async def scene(shared: Shared[int], clock: Clock) -> None:
        with pytest.raises(ValueError, match="no"):
            await shared.get()
        clock.now += LEAST_S
        assert await shared.get() == 7

    run(scene, make)


def test_what_was_forgotten_is_made_anew() -> None:
    making = Making()

    async def scene(shared: Shared[int], _clock: Clock) -> None:
        assert await shared.get() == 1
        shared.forget()
        assert await shared.get() == 1

    run(scene, making)
    assert making.count == 2


def test_the_urgent_goes_first() -> None:
    done: list[str] = []
    gate, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        gate.wait()

    async def scene() -> None:
        first = asyncio.create_task(LANE.run(block))
        await asyncio.to_thread(begun.wait)
        others = [
            asyncio.create_task(LANE.run(partial(done.append, name), urgency)) for name, urgency in (("b", 1), ("a", 0))
        ]
        await asyncio.sleep(0)  # both are asked for
        gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(scene())
    assert done == ["a", "b"]
