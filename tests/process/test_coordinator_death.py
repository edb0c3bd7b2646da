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
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.run.life import State
from tests.process.dying import Lives
from tests.process.launching import Fifo
from tests.process.sweeping import PATIENCE_S, QUICK_LIMITS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: The design's promises.
GONE_AFTER_KILL_S = 5.0
TEARDOWN_MARGIN_S = 1.0
PRESSED_EVERY_S = 0.05
STORM = 500
PROMPTS = ["a", "b", "c"]
SMALL: dict[str, Any] = {"prompts": PROMPTS, "matrix": {"batch_size": [1]}}

Outputs = set[tuple[Any, ...]]
End = Callable[[subprocess.Popen[str]], None]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    bench = Bench(tmp_path_factory.mktemp("unbroken"))
    bench.write(**SMALL)
    assert bench.run().returncode == 0
    return outputs(bench)


def outputs(bench: Bench) -> Outputs:
    return {(r["prompt_id"], tuple(r["token_ids"]), r["text"], r["finish_reason"], r["error"]) for r in bench.records}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    pipe = Fifo(tmp_path / "moment")
    yield pipe
    pipe.close()


def finish(bench: Bench, unbroken: Outputs) -> None:
    """What was committed is part of the unbroken run; the resumed run is all of it, each record once."""
    if (bench.run_dir / "generations.jsonl").exists():
        assert outputs(bench) <= unbroken
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert outputs(bench) == unbroken
    assert len(bench.records) == len(PROMPTS)
    bench.assert_clean()


# --- in every state -----------------------------------------------------------


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


def stuck(state: str, fifo: Fifo, folder: Path) -> dict[str, Any]:
    """A method that gets stuck in the state once, says so, heeds no SIGTERM, and passes in a later life."""
    once: dict[str, Any] = {"once": str(folder / "once"), "touch": fifo.path, "do": "hang_ignore_term"}
    match state:
        case "launching":
            return method("stuck", early=True, at="hello", **once)
        case "importing":
            return method("stuck", early=True, at="import", **once)
        case "loading":
            return method("stuck", at="load", **once)
        case "busy":
            return method("stuck", at="batch:2", **once)
        case "draining":
            return method("stuck", at="shutdown", **once)
    # SIGTERM ends the hanging batch and leads to the shutdown, which hangs as well.
    first = {"at": "batch:2", "do": "hang", "once": str(folder / "first")}
    return {"name": "stuck", "base": "scripted", "engine_args": {"faults": [first, {"at": "shutdown", **once}]}}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("state", ["launching", "importing", "loading", "busy", "draining", "terminating"])
def test_a_signal_in_every_state(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, state: str, how: str
) -> None:
    end, code = ENDS[how]
    patient = {"drain_s": 600, "terminate_s": 600} if how == "int_twice" else {}
    batch_s = 0.3 if state == "terminating" else 20
    limits = {**QUICK_LIMITS, "drain_s": 1, "import_s": 20, "load_s": 20, "batch_s": batch_s, **patient}
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
        grace_s = 0 if patient else limits["terminate_s"] + (limits["drain_s"] if state == "draining" else 0)
        (release,) = bench.releases()
        assert release.reclaim.teardown_s < grace_s + TEARDOWN_MARGIN_S
        bench.assert_clean()
    finish(bench, unbroken)


@pytest.mark.parametrize("signals", [[9], [15], [2, 2]], ids=str)
@pytest.mark.parametrize("state", [State.STANDBY, State.READY, State.KILLING, State.REAPED, State.RELEASED])
def test_a_signal_as_soon_as_a_state_is_reached(
    bench: Bench, unbroken: Outputs, state: State, signals: list[int]
) -> None:
    """Of a healthy worker: the states that last no time, and those that only the coordinator knows of."""
    bench.write(**SMALL)
    fate = {"event": "state_changed", "state": state, "signals": signals}
    with Lives(bench.env, bench.folder / "log") as lives:
        ended = lives.live(fate, *bench.command()[3:])
    assert ended.code == {9: -9, 15: 143, 2: 130}[signals[0]], ended.output
    assert ended.gone_s < GONE_AFTER_KILL_S
    finish(bench, unbroken)


# --- the terminal is closed -----------------------------------------------------

#: Makes the terminal on stdin its own, then becomes what follows; "nohup" as that program does it, output aside.
ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""


def gated_batch(bench: Bench, folder: Path) -> str:
    """A sweep whose second batch waits for the gate."""
    gate = str(folder / "gate")
    os.mkfifo(gate)
    bench.write(**SMALL, methods=[method("gated", at="batch:2", do="mark", gate=gate)])
    return gate


@contextmanager
def held(gate: str) -> Iterator[None]:
    """From when the worker stands before the gate until it may pass."""
    fd = os.open(gate, os.O_WRONLY)
    try:
        yield
    finally:
        os.close(fd)


class Terminal:
    """A program on a terminal of its own, leading its session."""

    def __init__(self, bench: Bench, mode: str, *args: str) -> None:
        self.master, slave = os.openpty()
        argv = [sys.executable, "-c", ON_A_TERMINAL, mode, *bench.command(*args)]
        self.process = subprocess.Popen(
            argv, env=bench.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def close(self) -> None:
        os.close(self.master)


@pytest.mark.parametrize("view", ["live", "plain"])
def test_a_closed_terminal_ends_the_run_in_order(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, view: str
) -> None:
    bench.write(**SMALL, methods=[stuck("busy", fifo, tmp_path)])
    terminal = Terminal(bench, "plainly", "--view", view)
    fifo.line()
    terminal.close()
    assert terminal.process.wait(PATIENCE_S) == 143
    bench.assert_clean()
    finish(bench, unbroken)


@pytest.mark.parametrize("view", ["live", "plain"])
def test_with_nohup_a_run_outlives_its_terminal(bench: Bench, tmp_path: Path, unbroken: Outputs, view: str) -> None:
    """Every write to the terminal fails from now on (EIO); SIGHUP stays ignored."""
    gate = gated_batch(bench, tmp_path)
    terminal = Terminal(bench, "nohup", "--view", view)
    with held(gate):
        terminal.close()
        os.kill(terminal.process.pid, signal.SIGHUP)
    assert terminal.process.wait(PATIENCE_S) == 0
    assert outputs(bench) == unbroken
    bench.assert_clean()


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_standard_descriptors_that_are_closed_from_the_start(
    bench: Bench, tmp_path: Path, unbroken: Outputs, closed: tuple[int, ...]
) -> None:
    """No file of the run may get their numbers: what a C library prints would land in it."""
    gate = gated_batch(bench, tmp_path)
    redirections = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    command = ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *bench.command()]
    with subprocess.Popen(command, env=bench.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        with held(gate):
            assert {os.readlink(f"/proc/{running.pid}/fd/{fd}") for fd in closed} == {"/dev/null"}
        assert running.wait(PATIENCE_S) == 0
    assert outputs(bench) == unbroken
    bench.assert_clean()


# --- signals that are no wish to stop ----------------------------------------------


def test_a_storm_of_signals_and_sigquit_aimed_at_us_change_nothing(
    bench: Bench, tmp_path: Path, unbroken: Outputs
) -> None:
    """Engines send SIGQUIT to whoever they take for their parent; a wake-up pipe may be full."""
    gate = gated_batch(bench, tmp_path)
    running = bench.start()
    with held(gate):
        for _ in range(STORM):
            for signum in (signal.SIGQUIT, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT):
                running.send_signal(signum)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out + err
    assert outputs(bench) == unbroken
    bench.assert_clean()


def test_a_storm_of_sigterm_is_one_wish(bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs) -> None:
    bench.write(**SMALL, methods=[stuck("busy", fifo, tmp_path)])
    running = bench.start()
    fifo.line()
    for _ in range(STORM):
        running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 143, out + err
    (release,) = bench.releases()
    assert release.reclaim.rung == "kill", "by the ladder: the worker ignores SIGTERM"
    assert out.count("stopping") == 1
    bench.assert_clean()
    finish(bench, unbroken)


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU], ids=str)
def test_a_batch_systems_last_notice_ends_in_order(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, signum: signal.Signals
) -> None:
    bench.write(**SMALL, methods=[stuck("busy", fifo, tmp_path)])
    running = bench.start()
    fifo.line()
    running.send_signal(signum)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 143, out + err
    bench.assert_clean()
    finish(bench, unbroken)


def test_a_caller_that_ignores_the_ends_of_its_children(bench: Bench, unbroken: Outputs) -> None:
    """Ray starts its workers with SIGCHLD ignored: then the kernel reaps, and there is no status to wait for."""
    bench.write(**SMALL)
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignoring, *bench.command()]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(bench) == unbroken
    bench.assert_clean()
