"""What a faulty worker leaves behind: children of every kind, a shared segment, a flood of output."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import IO

import psutil
import pytest

from orchestrator import proc
from tests.process.launching import Fifo, state_of
from tests.process.worker_peer import INCARNATION, Start, faulty, scripted

pytestmark = pytest.mark.usefixtures("nothing_leaked")


#: What each does to hide: a session, a process group, a parent, a tag that are not the worker's.
KINDS: dict[str, set[str]] = {
    "child_plain": set(),
    "child_ignore_term": set(),
    "child_hold_log": set(),
    "child_setpgid": {"group"},
    "child_setsid": {"session", "group"},
    "child_double_fork": {"session", "group", "parent"},
    "child_clear_env": {"session", "group", "parent", "tag"},
    "child_renamed": {"tag"},
}


@pytest.mark.parametrize("do", KINDS)
def test_a_child_outlives_its_worker(start: Start, fifo: Fifo, run_tag: str, do: str) -> None:
    peer = start()
    peer.ready(faulty("load", do, touch=fifo.path))
    child = fifo.pids(1)["load"]
    seen = proc.stat(child)
    assert seen is not None
    own = {
        "session": seen.session != peer.pid,
        "group": os.getpgid(child) != peer.pid,
        "parent": seen.ppid != peer.pid,
        "tag": proc.environ_value(child, "AIRLOCK_RUN") != run_tag,
    }
    assert {what for what, is_own in own.items() if is_own} == KINDS[do]
    peer.kill(signal.SIGKILL)
    assert peer.ended() == -9
    fd = os.pidfd_open(child)
    assert not select.select([fd], [], [], 0)[0]
    end_orphan(child)
    os.close(fd)


def end_orphan(pid: int) -> None:
    """The test is a subreaper, so it came to us."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_renamed_child_shows_another_name_and_command_line(start: Start, fifo: Fifo) -> None:
    peer = start()
    peer.ready(faulty("load", "child_renamed", touch=fifo.path))
    child = fifo.pids(1)["load"]
    seen = proc.stat(child)
    assert seen is not None
    assert seen.name == "innocent"
    assert proc.cmdline(child)[0] == "innocent"
    assert not any(proc.cmdline(child)[1:])


def test_a_child_dies_and_nobody_waits_for_it(start: Start, fifo: Fifo) -> None:
    peer = start()
    peer.ready(faulty("load", "child_dies", touch=fifo.path))
    assert state_of(fifo.pids(1)["load"]) == "Z"


def test_a_child_keeps_writing_to_the_log(start: Start, fifo: Fifo) -> None:
    peer = start()
    peer.ready(faulty("load", "child_hold_log", touch=fifo.path))
    child = fifo.pids(1)["load"]
    peer.kill(signal.SIGKILL)
    peer.ended()
    before = peer.log.stat().st_size
    with open(f"/proc/{child}/fd/1", "rb") as written:
        assert os.path.samestat(os.fstat(written.fileno()), peer.log.stat())
    while peer.log.stat().st_size == before:
        assert state_of(child) not in ("Z", "gone")
    end_orphan(child)


def test_a_child_waits_for_a_lock_and_gets_it(start: Start, fifo: Fifo, tmp_path: Path) -> None:
    peer = start()
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        peer.ready(faulty("load", "child_hold_lock", touch=fifo.path, path=str(path)))
        fifo.line()
    with path.open() as again:
        while is_free(again):
            assert peer.process.poll() is None


def is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def test_a_child_may_hold_memory_and_is_counted(start: Start, fifo: Fifo) -> None:
    peer = start()
    metadata = peer.ready(faulty("load", "child_plain", touch=fifo.path, bytes=2**26))
    fifo.line()
    assert (metadata.memory.host_rss_bytes or 0) >= 2**26


def test_a_shared_segment(start: Start) -> None:
    peer = start()
    peer.ready(faulty("load", "shm", bytes=2**20))
    segment = Path(f"/dev/shm/airlock-scripted-{INCARNATION}")
    assert segment.stat().st_size == 2**20
    assert str(segment).encode() in (proc.read_bytes(peer.pid, "maps") or b"")
    segment.unlink()


def test_a_port_and_a_file(start: Start, tmp_path: Path) -> None:
    """Left to be found by whoever looks after the worker."""
    peer = start(env={"TMPDIR": str(tmp_path)})
    faults = [{"at": "load", "do": "port", "path": "127.3.2.1"}, {"at": "load", "do": "file", "bytes": 7}]
    peer.ready(scripted({"faults": faults}))
    (port,) = [one.laddr for one in psutil.Process(peer.pid).net_connections("tcp") if one.status == "LISTEN"]
    assert port.ip == "127.3.2.1"
    (file,) = tmp_path.glob("airlock-scripted-*")
    assert file.stat().st_size == 7


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
