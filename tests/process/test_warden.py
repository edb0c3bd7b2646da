"""What the warden promises: whatever descends from it ends with it, and the truth about how the worker went."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import proc, warden
from orchestrator.launcher import Ended, Exited, Started
from orchestrator.reaper import ProcessRef, alive
from tests.process.launching import Launching, state_of, to_the_end, tree_argv, until, watched

pytestmark = pytest.mark.usefixtures("nothing_leaked")

KINDS = ("plain", "setsid", "setpgid", "daemon", "clean", "stubborn")
GONE_AFTER_KILL_S = 1.0
GONE_AFTER_COORDINATOR_S = 5.0


@pytest.mark.parametrize("kind", KINDS)
def test_kill_ends_each_kind_of_descendant(launching: Launching, kind: str) -> None:
    handle, pids = launching.tree("polite", kind)
    with watched(pids.values()) as running:
        handle.kill()
        assert not running(GONE_AFTER_KILL_S)
    assert to_the_end(handle) == [
        Started(pids["polite"], handle.started_ticks),
        Exited(None, "SIGKILL"),
        Ended((), killed=2),  # what dies together with the leader is no stray
    ]


def test_descendants_of_a_leader_that_ended_are_killed_and_named(launching: Launching) -> None:
    handle, pids = launching.tree("exit0", *KINDS)
    with watched(pids[kind] for kind in KINDS) as running:
        events = to_the_end(handle)
        assert not running(0)
    exited, ended = events[1:]
    assert exited == Exited(0, None)
    assert isinstance(ended, Ended)
    assert len(ended.strays) == ended.killed == len(KINDS)
    assert all(name.startswith("python") for name in ended.strays)


def test_children_that_leave_in_time_and_zombies_are_no_strays(launching: Launching) -> None:
    handle, _ = launching.tree("exit3", "zombie", "brief")
    assert to_the_end(handle)[1:] == [Exited(3, None), Ended((), 0)]


def test_the_signal_that_ended_the_leader_is_named(launching: Launching) -> None:
    handle, _ = launching.tree("segv", "clean")
    exited, ended = to_the_end(handle)[1:]
    assert exited == Exited(None, "SIGSEGV")
    assert isinstance(ended, Ended)
    assert ended.killed == 1


def test_terminate_reaches_the_engine_behind_a_wrapper(launching: Launching) -> None:
    wrapper = ("/bin/sh", "-c", '"$@"; exit 9', "sh")
    handle = launching.launch(launching.spec(*wrapper, *tree_argv(launching.fifo, "polite")))
    pid = launching.fifo.pids(1)["polite"]
    assert pid != handle.pid
    handle.terminate()
    assert launching.fifo.line() == f"term {pid}"
    to_the_end(handle)


def test_terminate_does_not_end_a_worker_that_ignores_it(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn")
    handle.terminate()
    assert launching.fifo.line() == f"term {pids['stubborn']}"
    assert handle.read_events()[1:] == []
    handle.kill()
    assert to_the_end(handle) == [Exited(None, "SIGKILL"), Ended((), 1)]


def test_a_stopped_worker_is_killed(launching: Launching) -> None:
    handle, pids = launching.tree("polite", "setsid")
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    handle.terminate()
    handle.kill()
    assert to_the_end(handle)[1:] == [Exited(None, "SIGKILL"), Ended((), 2)]


def test_a_process_whose_main_thread_ended_is_not_taken_for_dead(launching: Launching) -> None:
    handle = launching.launch(launching.spec(*tree_argv(launching.fifo, "headless")))
    (pid,) = launching.fifo.pids(1).values()
    while state_of(pid) != "Z":
        os.sched_yield()
    assert handle.read_events() == [Started(pid, handle.started_ticks)]
    assert alive(ProcessRef(pid, handle.started_ticks, ""))
    handle.kill()
    assert to_the_end(handle) == [Exited(None, "SIGKILL"), Ended((), 1)]


def test_a_fork_and_exit_loop_loses(launching: Launching) -> None:
    handle, _ = launching.tree("polite", "loop")
    asked = time.monotonic()
    handle.kill()
    ended = to_the_end(handle)[-1]
    assert time.monotonic() - asked < GONE_AFTER_KILL_S
    assert isinstance(ended, Ended)


def test_exit_is_told_while_a_grandchild_still_holds_the_log(launching: Launching) -> None:
    handle, pids = launching.tree("exit0", "daemon")
    until(handle, lambda event: isinstance(event, Exited))
    assert os.readlink(f"/proc/{pids['daemon']}/fd/1") == str(launching.folder / "log")
    to_the_end(handle)


OPEN_DESCRIPTORS = """
import json, os
found = {}
for fd in range(256):
    try:
        found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
print(json.dumps(found))
"""

COORDINATOR = """
import json, signal, sys
from orchestrator.launcher import Launcher, LaunchSpec
specs = json.loads(sys.argv[1])
launcher = Launcher()
handles = [launcher.launch(LaunchSpec(tuple(argv), {}, "/", log, tag, inc)) for argv, log, tag, inc in specs]
print(*[handle.warden_pid for handle in handles], flush=True)
signal.pause()
"""


def coordinator(launching: Launching, *trees: tuple[str, ...]) -> tuple[subprocess.Popen[str], list[int]]:
    """A coordinator of its own with a worker per tree; also the pids of wardens and all below."""
    specs = [
        (tree_argv(launching.fifo, *tree), str(launching.folder / "log"), launching.run_tag, f"w{at}")
        for at, tree in enumerate(trees)
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, json.dumps(specs)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(warden.__file__).parent.parent,
    )
    assert process.stdout
    with process.stdout:
        wardens = [int(pid) for pid in process.stdout.readline().split()]
    pids = [int(launching.fifo.line().split()[1]) for tree in trees for _ in tree]
    return process, wardens + pids


def reap_orphans(wardens: list[int]) -> None:
    for pid in wardens:
        assert os.waitpid(pid, 0) == (pid, 0)


def test_nothing_outlives_a_killed_coordinator(launching: Launching) -> None:
    process, pids = coordinator(launching, ("stubborn", *KINDS), ("polite", "daemon"))
    with watched(pids) as running:
        process.kill()
        process.wait()
        assert not running(GONE_AFTER_COORDINATOR_S)
    # Both were asked first: two workers, and a stubborn child shares its leader's name but ignores the signal.
    assert {launching.fifo.line().split()[0] for _ in range(2)} == {"term"}
    reap_orphans(pids[:2])


def test_a_stopped_worker_does_not_outlive_its_coordinator(launching: Launching) -> None:
    process, pids = coordinator(launching, ("polite", "clean"))
    with watched(pids) as running:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert not running(GONE_AFTER_COORDINATOR_S)
    reap_orphans(pids[:1])


def test_signals_aimed_at_the_warden_do_nothing(launching: Launching) -> None:
    handle, pids = launching.tree("polite")
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGPIPE):
        os.kill(handle.warden_pid, signum)
    os.kill(handle.warden_pid, signal.SIGRTMIN + 3)
    handle.terminate()
    assert launching.fifo.line() == f"term {pids['polite']}"
    assert to_the_end(handle)[1:] == [Exited(0, None), Ended((), 0)]


def test_a_worker_starts_with_default_signals_whatever_its_coordinator_has(launching: Launching) -> None:
    ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.signal(signum, signal.SIG_IGN) for signum in ignored]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        spec = launching.spec("/bin/cat", "/proc/self/status")
        assert launching.launcher.run(spec, 20).ok
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for signum, handler in zip(ignored, before, strict=True):
            signal.signal(signum, handler)
    masks = dict(re.findall(r"^(Sig(?:Ign|Blk)):\t(\w+)$", launching.log(), re.MULTILINE))
    assert masks == {"SigIgn": "0" * 16, "SigBlk": "0" * 16}


def test_a_worker_has_the_three_standard_descriptors_only(launching: Launching) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        assert launching.launcher.run(launching.python(OPEN_DESCRIPTORS), 20).ok
    finally:
        os.close(read)
        os.close(write)
    log = str(launching.folder / "log")
    assert json.loads(launching.log()) == {"0": "/dev/null", "1": log, "2": log}


def test_a_worker_leads_a_session_of_its_own_below_the_warden(launching: Launching) -> None:
    handle, pids = launching.tree("polite")
    worker, guard = proc.stat(pids["polite"]), proc.stat(handle.warden_pid)
    assert worker
    assert guard
    assert (worker.session, worker.ppid) == (worker.pid, guard.pid)
    assert guard.session == guard.pid


def test_output_never_blocks_the_worker(launching: Launching) -> None:
    code = "import os\nfor _ in range(256): os.write(1, b'x' * (1 << 18))"
    assert launching.launcher.run(launching.python(code), 60).ok
    assert (launching.folder / "log").stat().st_size == 64 << 20


SMALL_LOG_BYTES = 1 << 16
NOTE = re.compile(rb"\n\[airlock: this log grew too long; +(\d+) bytes are gone from here\]\n")


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "LOG_HEAD_BYTES", SMALL_LOG_BYTES)
    monkeypatch.setattr(warden, "LOG_TAIL_BYTES", SMALL_LOG_BYTES)
    monkeypatch.setattr(warden, "LOG_COPY_BYTES", SMALL_LOG_BYTES)
    monkeypatch.setattr(warden, "LOG_CHECK_S", 0.0)


def written(path: Path) -> int:
    """Three times too much, trimmed each time; how much in all."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        log = warden.Log(fd)
        for _ in range(3):
            os.write(fd, b"x" * (1 << 20))
            log.trim()
        os.write(fd, b"end")
    finally:
        os.close(fd)
    return (3 << 20) + 3


@pytest.mark.usefixtures("small_logs")
def test_the_middle_of_an_endless_log_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    length = written(path)
    text = path.read_bytes()
    assert len(text) == length
    note = NOTE.search(text)
    assert note
    assert text[: note.start()] == b"x" * SMALL_LOG_BYTES
    assert text[note.end() :].lstrip(b"\0") == b"x" * SMALL_LOG_BYTES + b"end"
    assert int(note[1]) == text.count(b"\0") + len(note[0])
    assert path.stat().st_blocks * 512 < 4 * SMALL_LOG_BYTES


@pytest.fixture
def without_holes(tmp_path: Path) -> Iterator[Path]:
    """A file system that can punch none."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "airlock-test", folder], capture_output=True, check=False).returncode:
        pytest.skip("mounting a ramfs is not permitted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.usefixtures("small_logs")
def test_where_no_holes_can_be_punched_the_log_is_cut_and_says_how_much_is_gone(without_holes: Path) -> None:
    path = without_holes / "log"
    length = written(path)
    text = path.read_bytes()
    note = NOTE.search(text)
    assert note
    assert text[: note.start()] == b"x" * SMALL_LOG_BYTES
    assert text[note.end() :] == b"x" * SMALL_LOG_BYTES + b"end"
    assert int(note[1]) == length - (len(text) - len(note[0]))


@pytest.mark.usefixtures("small_logs")
def test_a_log_that_is_cut_while_somebody_writes_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "punch", lambda *_: False)
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    code = "import os\nfor n in range(200_000): os.write(1, b'%09d\\n' % n)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=fd) as writer:
        log = warden.Log(fd)
        while writer.poll() is None:
            log.trim()
    os.write(fd, b"000200000\n")  # what came in the instant of the last cut is gone
    os.close(fd)
    note = NOTE.search(path.read_bytes())
    assert note
    assert path.stat().st_size < 4 * SMALL_LOG_BYTES + (1 << 20)
    lines = path.read_bytes()[note.end() :].split(b"\n")
    assert lines[-2:] == [b"000200000", b""]
    numbers = [int(line) for line in lines[1:-1]]
    assert numbers == sorted(numbers)
    assert int(note[1]) > 1 << 20


def test_all_that_descends_from_a_warden_carries_its_mark(launching: Launching) -> None:
    handle, pids = launching.tree("polite", "clean", "daemon")
    expected = proc.mark(launching.run_tag, "w1-test")
    assert {proc.mark_of(pid) for pid in (handle.warden_pid, *pids.values())} == {expected}
    assert proc.mark_of(os.getpid()) != expected
    with watched([pids["clean"]]) as running:
        os.kill(pids["clean"], signal.SIGKILL)
        assert not running(5)


def test_a_limit_on_file_locks_costs_the_mark_and_nothing_else(launching: Launching) -> None:
    """Somebody set one: then the limit is not ours to raise, and a worker starts all the same."""
    code = """
import resource, sys
from orchestrator.launcher import Launcher, LaunchSpec
resource.setrlimit(10, (5, 5))
log, tag = sys.argv[1:]
Launcher().run(LaunchSpec(("/bin/cat", "/proc/self/limits"), {}, "/", log, tag, "w1-test"), 20)
"""
    command = [sys.executable, "-c", code, str(launching.folder / "log"), launching.run_tag]
    subprocess.run(command, check=True, cwd=Path(warden.__file__).parents[1])
    assert re.search(r"Max file locks +5 +5 ", launching.log())
