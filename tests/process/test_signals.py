"""The wish to stop: what counts as one, what counts as two, and what is put back afterwards."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.errors import Interrupted
from orchestrator.run.signals import HANDLED, LAST_NOTICES, REPEAT_S, StopFlag

pytestmark = pytest.mark.usefixtures("nothing_leaked")


@contextmanager
def disposition(signum: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", [s for s in HANDLED if s != signal.SIGQUIT], ids=str)
def test_one_is_a_wish_and_wakes_a_poll(signum: signal.Signals) -> None:
    with StopFlag() as stop:
        assert not select.select([stop], [], [], 0)[0]
        send(signum)
        assert select.select([stop], [], [], 0)[0]
        stop.drain()
        assert not select.select([stop], [], [], 0)[0]
        assert (stop.requested, stop.count, stop.signum) == (True, 1, signum)
        assert stop.exit_code == (130 if signum == signal.SIGINT else 143)


def test_sigquit_is_survived() -> None:
    with StopFlag() as stop:
        send(signal.SIGQUIT)
        assert not stop.requested


def test_each_press_of_a_key_counts() -> None:
    with StopFlag(Clock()) as stop:
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert stop.count == 2


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=str)
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP], ids=str)
def test_other_signals_come_doubled_by_themselves(first: signal.Signals, second: signal.Signals) -> None:
    clock = Clock()
    with StopFlag(clock) as stop:
        send(first)
        clock.now += REPEAT_S / 2
        send(second)
        assert (stop.count, stop.signum) == (1, first)
        clock.now += REPEAT_S
        send(second)
        assert (stop.count, stop.signum) == (2, first)


@pytest.mark.parametrize("signum", LAST_NOTICES, ids=str)
def test_what_was_inherited_as_ignored_stays_ignored(signum: signal.Signals) -> None:
    with disposition(signum, signal.SIG_IGN), StopFlag() as stop:
        send(signum)
        assert not stop.requested
        assert signal.getsignal(signum) == signal.SIG_IGN


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_these_two_are_heeded_even_so(signum: signal.Signals) -> None:
    """A shell starts what runs in the background of a script with SIGINT ignored."""
    with disposition(signum, signal.SIG_IGN):
        with StopFlag() as stop:
            send(signum)
            assert stop.requested
        assert signal.getsignal(signum) == signal.SIG_IGN


def test_it_can_end_a_blocking_call() -> None:
    reading, writing = os.pipe()
    signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGTERM))
    with StopFlag() as stop:
        stop.raises = True
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted) as caught:
            os.read(reading, 1)
        assert caught.value.signum == signal.SIGTERM
        assert not isinstance(caught.value, Exception), "nobody on the way takes it for an error of its own"
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.close(reading)
    os.close(writing)


def test_all_is_put_back() -> None:
    before = [signal.getsignal(signum) for signum in HANDLED]
    reading, writing = os.pipe2(os.O_NONBLOCK)
    earlier = signal.set_wakeup_fd(writing)
    with StopFlag():
        assert signal.getsignal(signal.SIGTERM) != before[HANDLED.index(signal.SIGTERM)]
    assert [signal.getsignal(signum) for signum in HANDLED] == before
    assert signal.set_wakeup_fd(earlier) == writing
    os.close(reading)
    os.close(writing)
