"""What a faulty worker leaves behind: children of every kind, a shared segment, a flood of output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator import proc
from tests.process.launching import Fifo
from tests.process.worker_peer import Start, faulty

pytestmark = pytest.mark.usefixtures("nothing_leaked")


KINDS = ["child_plain", "child_ignore_term", "child_setsid", "child_double_fork", "child_clear_env"]


@pytest.mark.parametrize("do", KINDS)
def test_a_child_outlives_its_worker(start: Start, fifo: Fifo, run_tag: str, do: str) -> None:
    peer = start()
    peer.ready(faulty("load", do, touch=fifo.path))
    child = fifo.pids(1)["load"]
    seen = proc.stat(child)
    assert seen is not None
    assert (seen.session == peer.pid) == (do in ("child_plain", "child_ignore_term"))
    assert (seen.ppid == peer.pid) == (do not in ("child_double_fork", "child_clear_env"))
    assert (proc.environ_value(child, "AIRLOCK_RUN") == run_tag) == (do != "child_clear_env")
    peer.kill(signal.SIGKILL)
    assert peer.ended() == -9
    fd = os.pidfd_open(child)
    assert not select.select([fd], [], [], 0)[0]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(fd)


def test_a_child_may_hold_memory_and_is_counted(start: Start, fifo: Fifo) -> None:
    peer = start()
    metadata = peer.ready(faulty("load", "child_plain", touch=fifo.path, bytes=2**26))
    fifo.line()
    assert (metadata.memory.host_rss_bytes or 0) >= 2**26


def test_a_shared_segment(start: Start) -> None:
    peer = start()
    peer.ready(faulty("load", "shm", bytes=2**20))
    segment = Path(f"/dev/shm/airlock-scripted-{peer.pid}")
    assert segment.stat().st_size == 2**20
    assert str(segment).encode() in (proc.read_bytes(peer.pid, "maps") or b"")
    segment.unlink()


def test_a_flood_of_output_goes_to_the_log(start: Start) -> None:
    peer = start()
    peer.ready(faulty("load", "print_flood", bytes=2**22))
    assert peer.log.stat().st_size >= 2**22


def test_subprocesses_see_no_descriptor_of_ours(start: Start, fifo: Fifo) -> None:
    peer = start()
    peer.ready(faulty("load", "child_plain", touch=fifo.path))
    child = fifo.pids(1)["load"]
    open_there = subprocess.run(["ls", "-l", f"/proc/{child}/fd"], capture_output=True, text=True, check=True).stdout
    assert "socket:" not in open_there
    assert "eventfd" not in open_there
