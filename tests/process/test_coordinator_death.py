"""The coordinator's own end, by every signal, in every state of its worker. What was committed
stays, nothing of the run lives on, the exit code is as designed, and a resumed run has the same
records as an unbroken one.

The moment comes from the worker where it can tell (it says so through a FIFO), and
else from the coordinator itself, which signals itself as soon as the state is in its journal.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.run.life import State
from tests.process.dying import Lives
from tests.process.ending import (
    PRESSED_EVERY_S,
    SMALL,
    STATES,
    Outputs,
    finish,
    limits_for,
    stuck,
)
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, Bench, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: The design's promise: what teardown may cost beyond the time that the worker was given.
TEARDOWN_MARGIN_S = 1.0
#: Until a key was pressed twice and each press seen, on a busy machine.
PRESSING_S = 1.0

End = Callable[[subprocess.Popen[str]], None]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with Lives(tmp_path_factory.mktemp("lives") / "log") as made:
        yield made


def by_kill(running: subprocess.Popen[str]) -> None:
    running.kill()


def by(signum: signal.Signals) -> End:
    return lambda running: running.send_signal(signum)


def by_pressing_again_and_again(running: subprocess.Popen[str]) -> None:
    """Two of a kind that come together are one to the kernel, so: until it ends."""
    ended = os.pidfd_open(running.pid)
    while not select.select([ended], [], [], PRESSED_EVERY_S)[0]:
        running.send_signal(signal.SIGINT)
    os.close(ended)


ENDS: dict[str, tuple[End, int]] = {
    "kill": (by_kill, -signal.SIGKILL),
    "term": (by(signal.SIGTERM), 143),
    "int": (by(signal.SIGINT), 130),
    "int_twice": (by_pressing_again_and_again, 130),
    "hup": (by(signal.SIGHUP), 143),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("state", STATES)
def test_a_signal_in_every_state(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, state: str, how: str
) -> None:
    end, code = ENDS[how]
    patient = {"drain_s": 600, "terminate_s": 600} if how == "int_twice" else {}
    limits = {**limits_for(state), **patient}
    bench.write(**SMALL, methods=[stuck(state, fifo, tmp_path)], limits=limits)
    running = bench.start()
    fifo.line()
    left = bench.processes()
    asked = time.monotonic()
    end(running)
    out, err = running.communicate(timeout=PATIENCE_S)
    took_s = time.monotonic() - asked
    assert running.returncode == code, out + err
    if how == "kill":
        wait_gone(left, GONE_AFTER_KILL_S - took_s)
    else:
        grace_s = PRESSING_S if patient else limits["terminate_s"] + (limits["drain_s"] if state == "draining" else 0)
        (release,) = bench.releases()
        assert release.reclaim.teardown_s < grace_s + TEARDOWN_MARGIN_S
        bench.assert_clean()
    finish(bench, unbroken)


@pytest.mark.parametrize("signals", [[9], [15], [2, 2]], ids=str)
@pytest.mark.parametrize("state", [State.STANDBY, State.READY, State.KILLING, State.REAPED, State.RELEASED])
def test_a_signal_as_soon_as_a_state_is_reached(
    bench: Bench, lives: Lives, unbroken: Outputs, state: State, signals: list[int]
) -> None:
    """Of a healthy worker: the states that last no time, and those that only the coordinator knows of."""
    bench.write(**SMALL)
    fate = {"event": "state_changed", "state": state, "signals": signals}
    ended = lives.live(fate, *bench.command()[3:], env=bench.env)
    assert ended.code == {9: -9, 15: 143, 2: 130}[signals[0]], ended.output
    assert ended.gone_s < GONE_AFTER_KILL_S
    finish(bench, unbroken)


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT], ids=str)
def test_a_crash_of_the_coordinator_is_as_good_as_a_kill(
    bench: Bench, lives: Lives, unbroken: Outputs, signum: signal.Signals
) -> None:
    bench.write(**SMALL)
    fate = {"event": "batch_committed", "signals": [signum]}
    ended = lives.live(fate, *bench.command()[3:], env=bench.env)
    assert ended.code == -signum
    assert ended.gone_s < GONE_AFTER_KILL_S
    finish(bench, unbroken)
