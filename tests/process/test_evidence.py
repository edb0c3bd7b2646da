"""What a hung worker is doing, out of real processes that hang; and kills for memory, as the kernel counts them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from orchestrator import proc
from orchestrator.launcher import Launcher
from orchestrator.proc import ProcessRef
from orchestrator.reaper import alive, subtree
from orchestrator.run import evidence
from orchestrator.run.causes import NO_KILLS
from orchestrator.run.evidence import OomWatch, ask_for_stacks, inspect, listens, stacks_of, tree_state
from protocol.messages import Run
from protocol.signals import STACKS
from tests.process.launching import PATIENCE_S, Fifo, Launching, state_of
from tests.process.sweeping import QUICK_LIMITS, Bench, method
from tests.process.worker_peer import INCARNATION, Peer, Start, batch, faulty

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: A Python process that answers like one of a worker's tree, in a function of its own name; then it says so.
LISTENER = f"""
import faulthandler, os, signal, sys, threading
faulthandler.register({STACKS}, file=2, all_threads=True, chain=False)
def {{name}}():
    os.write(os.open(sys.argv[1], os.O_WRONLY), b"here %d\\n" % os.getpid())
    threading.Event().wait()
{{name}}()
"""


def hung(start: Start, fifo: Fifo, do: str) -> Peer:
    """A worker that hangs in its first batch, and has got there."""
    config = faulty("batch:1", do, touch=fifo.path)
    peer = start()
    peer.ready(config)
    peer.send(Run(batch(config, "b")))
    fifo.line()
    if do == "sigstop":
        until_stopped(peer.pid)
    return peer


def until_stopped(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state_of(pid) != "T":
        assert time.monotonic() < deadline
        select.select([], [], [], 0.005)


def look_at(peer: Peer, run_tag: str) -> str:
    return inspect(subtree(peer.pid), peer.log, Launcher(), run_tag=run_tag, incarnation=INCARNATION)


@pytest.mark.parametrize("do", ["hang", "hang_ignore_term", "spin"])
def test_a_worker_that_hangs_tells_where(start: Start, fifo: Fifo, run_tag: str, do: str) -> None:
    peer = hung(start, fifo, do)
    deadline = time.monotonic() + PATIENCE_S
    told = ""
    while f"in {'_spin' if do == 'spin' else '_hang'}\n" not in told:  # it says that it is about to
        assert time.monotonic() < deadline, told
        began = time.monotonic()
        told = look_at(peer, run_tag)
        assert time.monotonic() - began < 2 * evidence.STACKS_S
    assert ", line " in told
    assert "wire.py" in told, "its other thread"
    assert told.splitlines()[0].startswith(f"{peer.pid} ")
    assert state_of(peer.pid) in "SR"


def test_a_stopped_worker_can_t_answer_but_is_seen_to_be_stopped(start: Start, fifo: Fifo, run_tag: str) -> None:
    peer = hung(start, fifo, "sigstop")
    told = look_at(peer, run_tag)
    assert "stopped by a signal" in told
    assert state_of(peer.pid) == "T"


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not on the PATH")
def test_py_spy_tells_of_a_stopped_worker(
    start: Start, fifo: Fifo, run_tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "PY_SPY_S", 20.0)
    told = look_at(hung(start, fifo, "sigstop"), run_tag)
    assert "by py-spy" in told
    assert "scripted_faults.py" in told


def test_py_spy_is_never_waited_for_longer_than_allowed(
    start: Start, fifo: Fifo, run_tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    peer = hung(start, fifo, "sigstop")
    began = time.monotonic()
    told = look_at(peer, run_tag)
    assert "no answer in time" in told
    assert time.monotonic() - began < evidence.PY_SPY_S + 2.0


def test_a_process_without_a_handler_is_named_and_not_killed(start: Start, fifo: Fifo, run_tag: str) -> None:
    peer = start()
    peer.ready(faulty("load", "child_plain", touch=fifo.path))
    child = fifo.pids(1)["load"]
    assert not listens(child)
    assert f"{child} python" in look_at(peer, run_tag)
    assert state_of(child) == "S"


def listeners(launching: Launching, *names: str) -> list[ProcessRef]:
    found = []
    for name in names:
        launching.launch(launching.python(LISTENER.format(name=name), launching.fifo.path))
        one = proc.stat(launching.fifo.pids(1)["here"])
        assert one is not None
        found.append(proc.ref(one))
    return found


def test_stacks_of_several_processes_do_not_mix(launching: Launching) -> None:
    names = [f"waits_in_{letter}" for letter in "abcd"]
    tree = listeners(launching, *names)
    told = inspect(tree, launching.folder / "log", launching.launcher, run_tag=launching.run_tag, incarnation="x")
    parts = told.split("--- ")[1:]
    assert len(parts) == len(names)
    for part, ref, name in zip(parts, tree, names, strict=True):
        assert part.startswith(f"{ref.pid} ")
        assert [other for other in names if other in part] == [name]


def test_the_time_for_all_of_a_large_tree_is_bounded(launching: Launching, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = listeners(launching, *(f"waits_{i}" for i in range(4)))
    monkeypatch.setattr(evidence, "STACKS_S", 0.05)
    monkeypatch.setattr(evidence, "PY_SPY_S", 0.05)
    began = time.monotonic()
    inspect(tree * 4, launching.folder / "log", launching.launcher, run_tag=launching.run_tag, incarnation="x")
    assert time.monotonic() - began < 0.5


def test_asking_does_not_wait(launching: Launching) -> None:
    (ref,) = listeners(launching, "waits")
    began = time.monotonic()
    assert ask_for_stacks([ref]) == [ref]
    assert time.monotonic() - began < 0.1
    assert alive(ref)


def test_who_has_gone_is_asked_nothing_and_named(launching: Launching) -> None:
    (ref,) = listeners(launching, "waits")
    child = ProcessRef(ref.pid, ref.start_ticks + 1, "earlier")  # the pid was given away
    assert stacks_of(child, launching.folder / "log", 1.0) == ""
    assert tree_state([child]) == f"{ref.pid} earlier: gone"
    assert (
        tree_state([ref], known=[ref, child]).splitlines()[1] == f"{ref.pid} earlier: gone, though it was there before"
    )


# --- memory -------------------------------------------------------------------

MEMORY_GROUPS = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
EATER = """
import sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
held = bytearray(1 << 28)
for at in range(0, len(held), 4096):
    held[at] = 1
"""


@pytest.fixture
def small_group(run_tag: str) -> object:
    """A memory cgroup that holds 32 MiB; the folder of it."""
    for base in MEMORY_GROUPS:
        folder = base / f"airlock-test-{run_tag}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for name in ("memory.limit_in_bytes", "memory.max"):
                if (folder / name).exists():
                    (folder / name).write_text(str(32 << 20))
                    yield folder
                    return
        finally:
            folder.rmdir()
    pytest.skip("no memory control group can be made here")


def test_a_kill_for_memory_is_counted(launching: Launching, small_group: Path) -> None:
    watch = OomWatch.now()
    assert watch.kills() == NO_KILLS
    done = launching.launcher.run(launching.python(EATER, str(small_group)), PATIENCE_S)
    assert done.signal == "SIGKILL"
    assert (watch.kills().anywhere or 0) >= 1


def test_any_other_kill_is_not(launching: Launching) -> None:
    watch = OomWatch.now()
    done = launching.launcher.run(launching.python("import os; os.kill(os.getpid(), 9)"), PATIENCE_S)
    assert done.signal == signal.SIGKILL.name
    assert watch.kills().anywhere in (0, None)


# --- in the record of a sweep -----------------------------------------------------


@pytest.mark.parametrize(
    ("do", "told"), [("hang", "in _hang"), ("spin", "in _spin"), ("sigstop", "stopped by a signal")]
)
def test_what_a_hung_worker_was_doing_is_in_the_record(tmp_path: Path, do: str, told: str) -> None:
    bench = Bench(tmp_path)
    limits = {**QUICK_LIMITS, "batch_s": 1}
    bench.write(methods=[method("hangs", at="batch:1", do=do)], limits=limits, policies={"hang": "give_up"})
    bench.run()
    cause = bench.releases()[0].cause
    assert cause is not None
    assert cause.cls == "hang"
    assert told in cause.stacks
    assert cause.stacks.splitlines()[0].split()[0].isdigit()
    bench.assert_clean()
