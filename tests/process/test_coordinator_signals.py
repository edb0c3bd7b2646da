"""Signals and terminals: what ends a coordinator, what doesn't, and what it does without a terminal."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.run import descriptors
from tests.process.ending import (
    PRESSED_EVERY_S,
    SMALL,
    STATES,
    Outputs,
    finish,
    gated_batch,
    held,
    limits_for,
    outputs,
    stuck,
)
from tests.process.launching import Fifo, tree_argv, watched
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, QUICK_LIMITS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

STORM = 500
#: A coordinator without a worker has nothing to wait for; most of it is the end of a Python interpreter.
IDLE_END_S = 2.0


# --- the terminal is closed -----------------------------------------------------

#: Makes the terminal on stdin its own, then becomes what follows; "nohup" as that program does it, output aside.
ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""


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


@pytest.mark.parametrize(
    ("state", "view"),
    [*((state, "live") for state in STATES), ("busy", "plain"), ("busy", "quiet")],
)
def test_a_closed_terminal_ends_the_run_in_order(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, state: str, view: str
) -> None:
    bench.write(**SMALL, methods=[stuck(state, fifo, tmp_path)], limits=limits_for(state))
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


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)
def test_a_caller_that_blocks_signals(
    bench: Bench, fifo: Fifo, tmp_path: Path, unbroken: Outputs, signum: signal.Signals, code: int
) -> None:
    """A thread of a server that starts programs does, and exec hands it on: nothing would ever arrive."""
    bench.write(**SMALL, methods=[stuck("busy", fifo, tmp_path)])
    blocking = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
        " os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", blocking, *bench.command()]
    running = subprocess.Popen(command, env=bench.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    fifo.line()
    running.send_signal(signum)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == code, out + err
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


def test_a_signal_that_comes_again_and_again_postpones_no_deadline(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    """Each one ends a poll early; how long is left is a matter of the clock."""
    hang = method("hang", at="batch:1", do="hang", once=str(tmp_path / "once"), touch=fifo.path)
    bench.write(**SMALL, methods=[hang], limits={**QUICK_LIMITS, "batch_s": 1}, policies={"hang": {"do": "give_up"}})
    running = bench.start()
    fifo.line()
    began = time.monotonic()
    ended = os.pidfd_open(running.pid)
    while not select.select([ended], [], [], PRESSED_EVERY_S)[0]:
        running.send_signal(signal.SIGQUIT)
        assert time.monotonic() - began < PATIENCE_S
    os.close(ended)
    running.communicate()
    assert running.returncode == 1
    (end,) = bench.outcomes()["hang"]
    assert end.cause
    assert end.cause.cls == "hang"


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_while_it_waits_for_room(bench: Bench, signum: str, code: int) -> None:
    wanting = {**QUICK_LIMITS, "tmp_free_mib": 10**9}
    bench.write(**SMALL, limits=wanting, policies={"disk": {"do": "wait", "wait_s": 600}})
    running = bench.start()
    assert running.stdout
    assert any("waiting for room" in line for line in running.stdout)
    asked = time.monotonic()
    running.send_signal(signal.Signals[signum])
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == code
    assert time.monotonic() - asked < IDLE_END_S
    bench.assert_clean()


# --- before the first worker ----------------------------------------------------


def tool_that_hangs(bench: Bench, fifo: Fifo) -> None:
    """A sweep whose environment's interpreter starts a daemon and never answers."""
    tree = " ".join(map(shlex.quote, tree_argv(fifo, "stubborn", "daemon")))
    python = bench.folder / "python"
    python.write_text(f"#!/bin/sh\nexec {tree}\n")
    python.chmod(0o755)
    home = Path(bench.env["AIRLOCK_HOME"], "envs", "mine")
    home.mkdir(parents=True)
    fingerprint = {"python": "3.11", "packages": {}, "recipe_digest": "", "digest": "d"}
    env = {"name": "mine", "engine": "hf", "python": str(python), "fingerprint": fingerprint, "source": "user"}
    (home / "env.json").write_text(json.dumps({"env": env}))
    bench.write(model="demo", methods=["hf_sdpa"], environments={"hf": "mine"})


@pytest.mark.parametrize(
    ("signum", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 143), ("SIGUSR1", 143), ("SIGKILL", -9)]
)
def test_while_a_tool_prepares_the_run(bench: Bench, fifo: Fifo, signum: str, code: int) -> None:
    """Nothing is written yet: the tool and all that it started go, and its folder, at the latest at the next start."""
    tool_that_hangs(bench, fifo)
    running = bench.start()
    with watched(fifo.pids(2).values()) as alive:
        running.send_signal(signal.Signals[signum])
        out, err = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == code, out + err
        assert not alive(GONE_AFTER_KILL_S if code < 0 else 0)
    assert not bench.run_dir.exists()
    if code < 0:
        (left,) = bench.tmp.iterdir()
        bench.write(prompts=["a"])
        assert bench.run().returncode == 0
        assert not left.exists()
    assert not list(bench.tmp.iterdir())
    reap_orphans()


def reap_orphans() -> None:
    """What a killed coordinator left comes to us."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


# --- limits of the caller's shell ---------------------------------------------------


@pytest.mark.parametrize("soft", [8, 20, 64])
def test_a_low_limit_on_open_files_is_raised(bench: Bench, unbroken: Outputs, soft: int) -> None:
    bench.write(**SMALL)
    command = ["/bin/sh", "-c", f'ulimit -Sn {soft}; exec "$@"', "sh", *bench.command()]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert outputs(bench) == unbroken


def test_one_that_can_not_be_raised_is_said(bench: Bench) -> None:
    bench.write(**SMALL)
    command = ["/bin/sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *bench.command()]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "ulimit -n: only 20 files may be open at a time, and at least 64 are needed" in done.stderr
    assert not bench.run_dir.exists()


def test_where_no_process_can_be_held_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old container runtimes forbid it, old kernels have nothing of the kind."""

    def forbidden(_pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    descriptors.ensure()
    monkeypatch.setattr(descriptors, "open_pidfd", forbidden)
    with pytest.raises(InputError, match=r"kernel: gives no descriptor of a process \(pidfd_open: Operation not perm"):
        descriptors.ensure()
