"""A real worker as a process: how it ends, what it costs, what its environment asks of it."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

import pytest
import zmq

from orchestrator import proc
from protocol.channel import RouterChannel
from protocol.keys import Keys
from protocol.messages import (
    Beat,
    Goodbye,
    Init,
    Ready,
    Shutdown,
)
from protocol.signals import STACKS
from tests.process.worker_peer import (
    BOOTSTRAP,
    INCARNATION,
    PATIENCE_S,
    TOKEN,
    Start,
    batch,
    faulty,
    scripted,
    worker_env,
)

pytestmark = pytest.mark.usefixtures("nothing_leaked")

IDLE_EXIT_S = 1.0
BEATS_WATCHED = 2
DIAL_AGAIN_MS = 100
#: As the kernel numbers the I/O classes.
IDLE = 3
CAP_SYS_NICE = 23


# --- ends -----------------------------------------------------------------


def test_shutdown_in_standby(start: Start) -> None:
    peer = start()
    peer.imported()
    peer.send(Shutdown("not needed"))
    assert peer.goodbye() == Goodbye(None)
    assert peer.ended() == 0


@pytest.mark.parametrize("standby", [True, False])
def test_sigterm_ends_an_idle_worker_at_once(start: Start, standby: bool) -> None:
    peer = start()
    if standby:
        peer.imported()
    else:
        peer.ready()
    asked = time.monotonic()
    peer.kill(signal.SIGTERM)
    assert (peer.goodbye().metadata is None) == standby
    assert peer.ended() == 143
    assert time.monotonic() - asked < IDLE_EXIT_S


def test_sigterm_interrupts_a_load(start: Start) -> None:
    peer = start()
    peer.imported()
    peer.send(Init(scripted({"load_s": PATIENCE_S})))
    while peer.expect(Beat).phase != "loading":
        continue
    peer.kill(signal.SIGTERM)
    assert peer.goodbye() == Goodbye(None)
    assert peer.ended() == 143


def test_sigint_is_the_coordinators_affair(start: Start) -> None:
    peer = start()
    peer.ready()
    peer.kill(signal.SIGINT)
    peer.run(batch(scripted(), "b"))


def test_the_coordinators_end_vanishes(start: Start) -> None:
    """The lifeline is the warden's; but no unsent message may keep a worker that is told to go."""
    peer = start()
    peer.ready()
    peer.router.close()
    peer.kill(signal.SIGTERM)
    assert peer.process.wait(PATIENCE_S) == 143


def test_a_new_coordinator_at_the_old_endpoint_hears_nothing_of_an_old_worker(start: Start) -> None:
    """Its keys were those of the old one; a worker that outlived its coordinator has nobody left to talk to."""
    peer = start()
    peer.ready()
    peer.router.close()
    peer.router = RouterChannel(peer.endpoint)
    peer.router.admit(INCARNATION, TOKEN)
    while not peer.router.dropped:  # it dials again, and its keys do not fit
        assert not peer.router.socket.poll(DIAL_AGAIN_MS)
    assert peer.router.receive() is None


def test_a_worker_ends_with_its_warden(run_tag: str) -> None:
    code = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'AIRLOCK_WARDEN_PID': str(os.getpid())}\n"
        "print(subprocess.Popen(sys.argv[1:], env=env).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = worker_env("ipc:///nowhere/at/all", run_tag, Keys(*(key.decode() for key in zmq.curve_keypair())))
    command = [sys.executable, "-I", "-S", "-c", code, sys.executable, BOOTSTRAP, "worker"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as warden:
        assert warden.stdout is not None
        worker = int(warden.stdout.readline())
        fd = os.pidfd_open(worker)
        # Its second thread exists only once it is tied to the warden.
        while len(os.listdir(f"/proc/{worker}/task")) < 2:
            assert not select.select([fd], [], [], 0.01)[0], "ended too early"
        warden.kill()
    assert select.select([fd], [], [], PATIENCE_S)[0]
    assert os.WTERMSIG(os.waitpid(worker, 0)[1]) == signal.SIGKILL  # an orphan of ours now
    os.close(fd)


def test_a_worker_of_another_warden_refuses(start: Start) -> None:
    peer = start(env={"AIRLOCK_WARDEN_PID": str(2**22)})  # past the last pid there can be
    assert peer.ended() == 78
    assert f"the warden {2**22} is not above it" in peer.said()


# --- what is not said in messages -----------------------------------------


def test_blocked_modules_are_reported(start: Start) -> None:
    peer = start(env={"AIRLOCK_BLOCK_MODULES": "torchvision: RuntimeError: no nms\ncolorsys\n"})
    assert peer.ready().patches == ["blocked torchvision: RuntimeError: no nms", "blocked colorsys"]


def test_a_module_that_could_not_be_blocked_is_reported(start: Start) -> None:
    peer = start(env={"AIRLOCK_BLOCK_MODULES": "os"})
    metadata = peer.ready()
    assert metadata.patches == []
    assert "os was imported before it could be blocked" in metadata.notes


def test_standby_runs_at_low_priority_until_it_is_granted_the_slot(start: Start) -> None:
    peer = start(env={"AIRLOCK_NICE": "19"})
    peer.imported()
    assert os.getpriority(os.PRIO_PROCESS, peer.pid) == 19
    assert io_class(peer.pid) == IDLE
    peer.send(Init(scripted()))
    notes = peer.expect(Ready).metadata.notes
    left_low = os.getpriority(os.PRIO_PROCESS, peer.pid) == 19
    assert any("nice 19" in note for note in notes) == left_low
    assert left_low != may_raise_priorities()
    assert io_class(peer.pid) == (IDLE if left_low else 0)


def io_class(pid: int) -> int:
    """Of its main thread."""
    number = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
    return int(ctypes.CDLL(None).syscall(number, 1, pid)) >> 13


def may_raise_priorities() -> bool:
    status = (proc.read_bytes(os.getpid(), "status") or b"").decode()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_NICE & 1)


@pytest.mark.parametrize("signum", [STACKS, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_of_a_batch_system_dump_the_stacks_and_end_nobody(start: Start, signum: int) -> None:
    peer = start()
    peer.ready()
    signal.pidfd_send_signal(peer.pidfd, signum)
    peer.run(batch(scripted(), "b"))
    assert "session.py" in peer.said()
    assert "wire.py" in peer.said()


def test_a_log_that_takes_nothing_costs_lines_and_no_batch(start: Start) -> None:
    config = faulty("batch:1", "print_flood", bytes=1 << 20)
    peer = start(output="/dev/full")
    peer.ready(config)
    assert len(peer.run(batch(config, "b")).generations) == 2


def test_an_idle_worker_costs_nothing(start: Start) -> None:
    peer = start()
    peer.ready()
    peer.expect(Beat)
    before = cpu_s(peer.pid)
    for _ in range(BEATS_WATCHED):
        peer.expect(Beat)
    assert cpu_s(peer.pid) - before < 0.05 * BEATS_WATCHED


def cpu_s(pid: int) -> float:
    line = proc.read_bytes(pid, "stat") or b""
    user, system = line[line.rindex(b")") :].split()[12:14]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
