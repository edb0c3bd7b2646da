"""The wish to stop wakes a poll, and counts."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from orchestrator.run.signals import StopFlag


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_a_poll_and_sets_the_exit_code(signum: signal.Signals, code: int) -> None:
    with StopFlag() as stop:
        os.kill(os.getpid(), signum)
        assert select.select([stop], [], [], 10)[0]
        stop.drain()
        assert not select.select([stop], [], [], 0)[0]
        assert (stop.requested, stop.count, stop.exit_code) == (True, 1, code)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.count, stop.exit_code) == (2, code)


def test_sigquit_is_survived() -> None:
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGQUIT)
        assert not stop.requested


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_sighup_inherited_as_ignored_stays_ignored() -> None:
    code = (
        "import os, signal, sys; from orchestrator.run.signals import StopFlag\n"
        "with StopFlag() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGHUP); sys.exit(7 if not stop.requested else 1)"
    )
    nohup = f'trap "" HUP; exec "{sys.executable}" -c \'{code}\''
    assert subprocess.run(["bash", "-c", nohup], check=False, timeout=60).returncode == 7
