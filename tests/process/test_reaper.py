"""Sweeping by tag, and measuring: on real processes."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator import proc, reaper
from orchestrator.reaper import ProcessRef, Reaper, alive, send, shm_in_use, subtree, usage
from tests.process.launching import Fifo, Launching, state_of, to_the_end, tree_argv, watched
from tests.process.test_warden import coordinator

pytestmark = pytest.mark.usefixtures("nothing_leaked")


@contextmanager
def stranger(folder: Path, leader: str = "polite", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child of the test that no warden guards."""
    fifo = Fifo(folder / f"fifo-{secrets.token_hex(4)}")
    process = subprocess.Popen(tree_argv(fifo, leader), env=env)
    fifo.pids(1)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        fifo.close()


def tags(run_tag: str, incarnation: str = "w1-test") -> Mapping[str, str]:
    return {"AIRLOCK_RUN": run_tag, "AIRLOCK_INCARNATION": incarnation}


def ref_of(pid: int) -> ProcessRef:
    one = proc.stat(pid)
    assert one
    return proc.ref(one)


def test_survivors_are_those_with_exactly_this_tag(tmp_path: Path, run_tag: str) -> None:
    with (
        stranger(tmp_path, **tags(run_tag)) as ours,
        stranger(tmp_path, **tags(run_tag + "0")),
        stranger(tmp_path, **tags(run_tag[:-1])),
        stranger(tmp_path, OTHER=f"AIRLOCK_RUN={run_tag}"),
    ):
        assert [ref.pid for ref in Reaper(run_tag).survivors()] == [ours.pid]


def test_a_sweep_takes_one_incarnation_and_leaves_bystanders(tmp_path: Path, run_tag: str) -> None:
    with (
        stranger(tmp_path, "stubborn", **tags(run_tag, "w1-a")) as ours,
        stranger(tmp_path, **tags(run_tag, "w2-b")) as sibling,
        stranger(tmp_path, **tags(secrets.token_hex(8), "w1-a")) as other_run,
        stranger(tmp_path) as untagged,
    ):
        others = [ref_of(process.pid) for process in (sibling, other_run, untagged)]
        assert [ref.pid for ref in Reaper(run_tag).sweep("w1-a")] == [ours.pid]
        assert all(map(alive, others))
        assert [ref.pid for ref in Reaper(run_tag).alive_of("w2-b")] == [sibling.pid]
        assert [ref.pid for ref in Reaper(run_tag).sweep()] == [sibling.pid]
        assert all(map(alive, others[1:]))


def test_the_exit_status_of_the_callers_own_child_is_not_taken(tmp_path: Path, run_tag: str) -> None:
    fifo = Fifo(tmp_path / "child")
    child = subprocess.Popen(tree_argv(fifo, "exit7"), env={})
    with watched([child.pid]) as running:
        assert not running(20)
    with stranger(tmp_path, **tags(run_tag)):
        Reaper(run_tag).sweep()
    assert child.wait() == 7
    fifo.close()


def test_an_owned_wardens_status_is_left_to_its_owner(tmp_path: Path, run_tag: str) -> None:
    with stranger(tmp_path, **tags(run_tag)) as child:
        Reaper(run_tag, lambda: [child.pid]).sweep()
        assert child.wait() == -signal.SIGKILL


def test_descendants_without_a_tag_go_with_their_tagged_parent(launching: Launching) -> None:
    # "clean" under a living tagged warden: attributed by descent.
    handle, pids = launching.tree("stubborn", "clean", "setsid")
    os.kill(handle.warden_pid, signal.SIGSTOP)
    reaper_ = Reaper(launching.run_tag, launching.launcher.owned)
    patience, reaper.WARDENS_FINISH_S = reaper.WARDENS_FINISH_S, 0.2
    try:
        with watched(pids.values()) as running:
            found = reaper_.sweep("w1-test")
            assert not running(0)
    finally:
        reaper.WARDENS_FINISH_S = patience
    assert {ref.pid for ref in found} == {handle.warden_pid, *pids.values()}
    assert reaper_.survivors() == []


def test_a_sweep_is_not_outrun_by_what_makes_untagged_children(launching: Launching) -> None:
    handle, _ = launching.tree("stubborn", "spawner")
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    Reaper(launching.run_tag).sweep("w1-test")  # whoever was missed shows up as leaked


def test_everything_tagged_below_a_killed_warden_is_swept_and_reaped(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "plain", "setsid", "setpgid", "daemon", "stubborn")
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    found = Reaper(launching.run_tag).sweep("w1-test")
    assert len(found) == 6
    assert {state_of(ref.pid) for ref in found} == {"gone"}
    assert pids["daemon"] in {ref.pid for ref in found}
    assert Reaper(launching.run_tag).sweep("w1-test") == []


def test_zombies_of_a_known_session_are_reaped(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "plain")
    worker = ref_of(pids["stubborn"])
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    with watched(pids.values()) as running:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert not running(5)
    assert {state_of(pid) for pid in pids.values()} == {"Z"}
    assert Reaper(launching.run_tag).sweep("w1-test", known=[worker]) == []
    assert {state_of(pid) for pid in pids.values()} == {"gone"}


def test_a_warden_that_lost_its_coordinator_may_finish_its_own_work(launching: Launching) -> None:
    process, pids = coordinator(launching, ("polite", "clean", "daemon"))
    warden = pids[0]
    with watched(pids) as running:
        process.kill()
        process.wait()
        found = Reaper(launching.run_tag).sweep()
        assert not running(0)
    assert state_of(warden) == "gone"
    assert warden not in {ref.pid for ref in found}


def test_a_stopped_warden_of_a_dead_coordinator_is_swept_with_all_below(
    launching: Launching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "WARDENS_FINISH_S", 0.2)
    process, pids = coordinator(launching, ("stubborn", "clean", "daemon"))
    os.kill(pids[0], signal.SIGSTOP)
    with watched(pids) as running:
        process.kill()
        process.wait()
        assert {ref.pid for ref in Reaper(launching.run_tag).sweep()} == set(pids)
        assert not running(0)
    assert {state_of(pid) for pid in pids} == {"gone"}


def test_a_sweep_never_takes_us_or_what_we_descend_from(tmp_path: Path, run_tag: str) -> None:
    code = """
import os, sys
from orchestrator.reaper import Reaper
print([ref.pid for ref in Reaper(os.environ["AIRLOCK_RUN"]).sweep()], flush=True)
"""
    repository = Path(reaper.__file__).parent.parent
    script = tmp_path / "inner.py"
    script.write_text(code)
    outer = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(script)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", outer],
        env={**tags(run_tag), "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize("pid", [0, 1, os.getpid(), os.getppid(), -5], ids=["0", "1", "us", "our parent", "-5"])
def test_signalling_refuses_the_pids_that_no_mistake_may_hit(pid: int) -> None:
    with pytest.raises(ValueError, match="refusing"):
        send(ProcessRef(pid, proc.table()[max(1, pid)].start_ticks, "x"), signal.SIGCONT)


def test_signalling_refuses_a_pid_with_another_start_time(tmp_path: Path) -> None:
    with stranger(tmp_path) as child:
        ref = ref_of(child.pid)
        assert not send(ProcessRef(ref.pid, ref.start_ticks + 1, ref.name), signal.SIGKILL)
        assert alive(ref)
        assert send(ref, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not send(ref, signal.SIGKILL)


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    with stranger(tmp_path) as child:
        ref = ref_of(child.pid)
        assert alive(ref)
        with watched([child.pid]) as running:
            child.kill()
            assert not running(5)
        assert state_of(child.pid) == "Z"
        assert not alive(ref)
        assert subtree(child.pid) == []
        assert not send(ref, signal.SIGKILL)


def test_subtree_and_usage_measure_what_a_tree_holds(launching: Launching) -> None:
    name = f"/dev/shm/airlock-test-{launching.run_tag}"
    left = [f"{name}-mapped", f"{name}-open", f"/dev/shm/sem.{os.path.basename(name)}-sem"]
    size = 32 << 20
    code = """
import ctypes, mmap, os, signal, sys
fifo, name, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
def open_(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
fd = open_(name + "-mapped"); os.ftruncate(fd, 4096); shared = mmap.mmap(fd, 4096); os.close(fd)
kept = open_(name + "-open")
gone = open_(name + "-gone"); os.unlink(name + "-gone")
ctypes.CDLL(None).sem_open(os.path.basename(name + "-sem").encode(), os.O_CREAT, 0o600, 1)
if os.fork():
    os.wait()
held = b"x" * size
with open(fifo, "w") as file: file.write("ready %d\\n" % os.getpid())
while True: signal.pause()
"""
    handle = launching.launch(launching.python(code, launching.fifo.path, name, str(size)))
    child = launching.fifo.pids(1)["ready"]
    try:
        tree = subtree(handle.warden_pid)
        assert [ref.pid for ref in tree] == [handle.warden_pid, handle.pid, child]
        seen = usage(tree)
        assert seen.shm == set(left)
        assert size < seen.pss_bytes < size + (64 << 20)
        assert seen.pss_bytes <= seen.rss_bytes
        assert shm_in_use([*left, f"{name}-gone"]) == seen.shm
    finally:
        handle.close()
        assert shm_in_use(left) == frozenset()
        for path in left:
            os.unlink(path)
    assert usage(tree) == reaper.Usage(0, 0, frozenset())


def test_names_with_brackets_and_spaces_do_not_confuse_the_table() -> None:
    line = b"42 (a) R 1 (b\n) S 7 8 9 0 -1 0 0 0 0 0 1 20 300 4000 20 0 3 0 5555 0 0\n"
    assert proc.parse_stat(line) == proc.Stat(42, "a) R 1 (b\n", "S", 7, 9, 3, 5555, 4321)


def test_what_cleared_its_environment_is_known_by_its_mark(launching: Launching) -> None:
    """Forked twice, in a session of its own, its warden and all others dead: nothing else is left to go by."""
    handle, pids = launching.tree("stubborn", "clean", incarnation="w1-a")
    bystander, _ = launching.tree("polite", incarnation="w2-b")
    clean = ref_of(pids["clean"])
    for pid in (handle.warden_pid, pids["stubborn"]):
        os.kill(pid, signal.SIGKILL)
    to_the_end(handle)
    assert proc.environ_value(clean.pid, "AIRLOCK_RUN") is None
    assert Reaper("another run").survivors() == []
    assert clean in Reaper(launching.run_tag).alive_of("w1-a")
    assert clean not in Reaper(launching.run_tag).alive_of("w2-b")
    with watched([clean.pid, bystander.warden_pid]) as running:
        assert clean in Reaper(launching.run_tag).sweep("w1-a")
        assert running(0) == {bystander.warden_pid}


def test_a_zombie_is_reaped_by_its_mark(launching: Launching) -> None:
    """It came to us and ended before anybody looked: its environment went with its memory."""
    handle, pids = launching.tree("stubborn", "clean")
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    with watched(pids.values()) as running:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert not running(5)
    assert state_of(pids["clean"]) == "Z"
    Reaper(launching.run_tag).sweep("w1-test")
    assert state_of(pids["clean"]) == "gone"


def test_a_known_process_with_another_start_time_is_a_bystander_and_so_is_its_session(
    tmp_path: Path, run_tag: str
) -> None:
    """Its pid was given away, and whoever has it now leads a session with members."""
    fifo = Fifo(tmp_path / "fifo")
    with subprocess.Popen(tree_argv(fifo, "polite", "plain"), env={}, start_new_session=True) as leader:
        members = [ref_of(pid) for pid in fifo.pids(2).values()]
        ref = ref_of(leader.pid)
        known = ProcessRef(ref.pid, ref.start_ticks - 1, ref.name)
        assert Reaper(run_tag).sweep("w1-test", known=[known]) == []
        assert all(map(alive, members))
        os.killpg(leader.pid, signal.SIGKILL)
    for member in members:
        with suppress(ChildProcessError):
            os.waitpid(member.pid, 0)
    fifo.close()


def test_being_out_of_descriptors_is_not_taken_for_a_process_being_gone(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with stranger(tmp_path) as child:
        ref = ref_of(child.pid)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                alive(ref)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert alive(ref)
