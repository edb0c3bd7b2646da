"""Handles and runs, on real wardens."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import handle as handle_module
from orchestrator import launcher as launcher_module
from orchestrator.errors import LaunchFailed
from orchestrator.handle import Timing
from orchestrator.launcher import (
    Completed,
    Ended,
    Exited,
    Handle,
    LaunchSpec,
    Started,
    WardenDied,
    base_environment,
    of_a_job,
)
from orchestrator.reaper import alive, subtree
from tests.process.launching import Fifo, Launching, state_of, to_the_end, tree_argv, watched

pytestmark = pytest.mark.usefixtures("nothing_leaked")

REPOSITORY = Path(__file__).resolve().parents[2]


def test_started_is_there_after_the_launch_and_only_once(launching: Launching) -> None:
    handle, pids = launching.tree("polite")
    assert handle.pid == pids["polite"]
    assert handle.read_events() == [Started(handle.pid, handle.started_ticks)]
    assert handle.read_events() == []
    assert [ref.pid for ref in subtree(handle.warden_pid)] == [handle.warden_pid, handle.pid]


def test_both_descriptors_wake_a_poll(launching: Launching) -> None:
    handle, _ = launching.tree("polite")
    assert not select.select([handle.fileno_status(), handle.fileno_pidfd()], [], [], 0)[0]
    handle.terminate()
    assert select.select([handle.fileno_status()], [], [], 20)[0]
    assert select.select([handle.fileno_pidfd()], [], [], 20)[0]
    assert to_the_end(handle)[1:] == [Exited(0, None), Ended((), 0)]
    assert handle.read_events() == []


def test_a_process_and_its_warden_are_held_to_their_cpus(launching: Launching) -> None:
    cpu = min(os.sched_getaffinity(0))
    code = "import os, signal, sys; open(sys.argv[1], 'w').write(f'{os.sched_getaffinity(0)} 0\\n'); signal.pause()"
    spec = replace(launching.python(code, launching.fifo.path), cpus=(cpu,))
    with closing(launching.launcher.launch(spec)) as handle:
        assert launching.fifo.line() == f"{{{cpu}}} 0"
        assert os.sched_getaffinity(handle.warden_pid) == {cpu}


@pytest.mark.parametrize("own", [True, False])
def test_only_a_worker_leaves_no_core_where_it_would_be_removed(launching: Launching, own: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    elsewhere = Path("/proc/sys/kernel/core_pattern").read_bytes()[:1] in (b"/", b"|")
    code = "import resource, sys; print(resource.getrlimit(4)[0], 0, file=open(sys.argv[1], 'w')); sys.stdin.read()"
    env = {**base_environment(), "TMPDIR": str(launching.folder if own else launching.folder / "other")}
    spec = replace(launching.python(code, launching.fifo.path), env=env)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        with closing(launching.launcher.launch(spec)):
            assert launching.fifo.line() == f"{0 if own and not elsewhere else hard} 0"
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_cpus_that_are_not_there_are_a_launch_that_failed(launching: Launching) -> None:
    with pytest.raises(LaunchFailed, match="Invalid argument"):
        launching.launcher.launch(replace(launching.spec("true"), cpus=(4095,)))


def test_close_after_the_end_is_idempotent_and_commands_then_do_nothing(launching: Launching) -> None:
    handle, _ = launching.tree("exit0")
    to_the_end(handle)
    assert launching.launcher.owned() == {handle.warden_pid}
    handle.close()
    handle.close()
    handle.kill()
    handle.terminate()
    assert handle.read_events() == []
    assert launching.launcher.owned() == frozenset()


def test_close_before_the_end_kills_everything_and_tells(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "daemon", "clean")
    with watched(pids.values()) as running:
        handle.close()
        assert not running(0)
    assert handle.read_events()[1:] == [Exited(None, "SIGKILL"), Ended((), 3)]


def test_a_stopped_warden_still_obeys(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "daemon")
    os.kill(handle.warden_pid, signal.SIGSTOP)
    with watched(pids.values()) as running:
        handle.kill()
        assert not running(5)
    assert isinstance(to_the_end(handle)[-1], Ended)


def test_a_killed_warden_is_told_and_close_ends_what_it_guarded(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "setsid", "daemon")
    with watched(pids.values()) as running:
        os.kill(handle.warden_pid, signal.SIGKILL)
        assert to_the_end(handle)[1:] == [WardenDied(-signal.SIGKILL)]
        assert running(0) == set(pids.values())
        handle.close()
        assert not running(0)


def test_a_worker_that_died_with_its_warden_is_reaped(launching: Launching) -> None:
    handle, pids = launching.tree("polite")
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    with watched(pids.values()) as running:
        os.kill(pids["polite"], signal.SIGKILL)
        assert not running(5)
    assert state_of(pids["polite"]) == "Z"
    handle.close()
    assert state_of(pids["polite"]) == "gone"


#: As conda builds it: without names for what came after Linux 4.18. In the warden's place, by the name it is known by.
OLD_PYTHON = """
import os, runpy, signal
del os.pidfd_open, signal.pidfd_send_signal
runpy.run_path(WARDEN, run_name="__main__")
"""


def test_a_python_without_names_for_descriptors_of_processes(
    launching: Launching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warden.py").write_text(OLD_PYTHON.replace("WARDEN", repr(launcher_module.WARDEN)))
    monkeypatch.setattr(launcher_module, "WARDEN", str(tmp_path / "warden.py"))
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    handle, pids = launching.tree("stubborn", "setsid", "daemon", "clean")
    os.kill(handle.warden_pid, signal.SIGSTOP)
    with watched(pids.values()) as running:
        handle.kill()
        assert not running(5)
    assert to_the_end(handle)[-1] == Ended((), 4)
    handle, pids = launching.tree("stubborn", "setsid", "daemon", incarnation="w2-test")
    with watched(pids.values()) as running:
        os.kill(handle.warden_pid, signal.SIGKILL)
        to_the_end(handle)
        handle.close()
        assert not running(0)


def test_lines_that_come_in_pieces(launching: Launching) -> None:
    warden = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert warden.stdin
    read, write = os.pipe()
    handle = Handle(launching.spec("/bin/true"), warden, os.dup(warden.stdin.fileno()), read)
    told = [{"event": "exited", "code": 5, "signal": None}, {"event": "ended", "strays": ["a"], "killed": 1}]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in told)
    seen = []
    for at in range(len(text)):
        os.write(write, text[at : at + 1])
        seen += handle.read_events()
    assert seen == [Exited(5, None), Ended(("a",), 1)]
    os.close(write)
    warden.stdin.close()
    warden.kill()
    handle.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: (str(folder / "none"),), "FileNotFoundError"),
        (lambda folder: (str(folder),), "PermissionError"),
        (lambda folder: (str(not_executable(folder)),), "PermissionError"),
        (lambda folder: (str(no_program(folder)),), "Exec format error"),
        (lambda folder: ("/bin/echo", f"a\0{folder}"), "null byte"),
    ],
)
def test_a_start_that_fails_says_why(launching: Launching, make: Callable[[Path], tuple[str, ...]], says: str) -> None:
    with pytest.raises(LaunchFailed, match=says):
        launching.launch(launching.spec(*make(launching.folder)))


def not_executable(folder: Path) -> Path:
    path = folder / "plain"
    path.write_text("#!/bin/sh\n")
    return path


def no_program(folder: Path) -> Path:
    path = folder / "noise"
    path.write_bytes(b"\x01\x02\x03")
    path.chmod(0o755)
    return path


def test_a_folder_or_log_that_is_missing_fails_the_launch(launching: Launching) -> None:
    spec = launching.spec("/bin/true")
    with pytest.raises(LaunchFailed, match="nowhere"):
        launching.launch(replace(spec, cwd="/nowhere"))
    with pytest.raises(LaunchFailed, match="nowhere"):
        launching.launch(replace(spec, log="/nowhere/log"))


def test_an_order_larger_than_a_pipe_arrives(launching: Launching) -> None:
    big = "x" * (100 << 10)  # one string may have 128 KiB; three do not fit a pipe
    spec = launching.spec("/bin/sh", "-c", "echo ${#A} ${#B} ${#C}", env={"A": big, "B": big, "C": big})
    assert launching.launcher.run(spec, 20).ok
    assert launching.log() == f"{len(big)} {len(big)} {len(big)}\n"


def test_the_environment_is_what_was_given_and_nothing_else(
    launching: Launching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "1")
    given = {"A": "1", "ODD": "ä\udcff\n=", "PATH": "/bin"}
    assert launching.launcher.run(launching.spec("cat", "/proc/self/environ", env=given), 20).ok
    entries = (launching.folder / "log").read_bytes().split(b"\0")[:-1]
    found = dict(os.fsdecode(entry).split("=", 1) for entry in entries)
    assert found.pop("AIRLOCK_WARDEN_PID").isdigit()
    assert found == {**given, "AIRLOCK_RUN": launching.run_tag, "AIRLOCK_INCARNATION": "w1-test"}


def test_the_callers_python_does_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "AIRLOCK_TOKEN", "WORLD_SIZE", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "bad")
    monkeypatch.setenv("HF_HOME", "/kept")
    env = base_environment()
    assert "bad" not in env.values()
    assert env["HF_HOME"] == "/kept"
    assert env["SPT_NOENV"] == "1"  # setproctitle would wipe the tag that sweeps go by
    assert env["PATH"] == os.environ["PATH"]


#: As torchrun, DeepSpeed, Open MPI, MPICH, Intel MPI, MVAPICH and Cray's launcher set them.
OF_JOBS = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_NAME", "ROLE_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_ERROR_FILE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_ess_base_jobid", "PRTE_LAUNCHED", "PMIX_RANK", "PMIX_SERVER_URI41"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI2_RANK", "HYDI_CONTROL_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    *("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK", "PALS_RANKID"),
}


def test_no_place_in_a_job_of_several_reaches_a_worker(launching: Launching, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_JOBS:
        monkeypatch.setenv(name, "bad")
    kept = ("MPI_HOME", "PMIXER", "RANKING", "TORCH_HOME", "SLURM_JOB_ID")
    for name in kept:
        monkeypatch.setenv(name, "good")
    assert of_a_job(os.environ) == sorted(OF_JOBS)
    assert launching.launcher.run(launching.spec("env", env=base_environment()), 20).ok
    assert "=bad" not in launching.log()
    assert {f"{name}=good" for name in kept} <= set(launching.log().splitlines())


def test_the_log_is_appended_to_and_private(launching: Launching) -> None:
    for word in ("one", "two"):
        launching.launcher.run(launching.spec("/bin/sh", "-c", f"echo {word}; echo {word} >&2"), 20)
    assert launching.log().split() == ["one", "one", "two", "two"]
    assert (launching.folder / "log").stat().st_mode & 0o777 == 0o600


def test_run_gives_code_and_strays(launching: Launching) -> None:
    spec = launching.spec(*tree_argv(launching.fifo, "exit3", "daemon"))
    completed = launching.launcher.run(spec, 20)
    assert completed == Completed(3, None, completed.strays, timed_out=False)
    assert len(completed.strays) == 1
    assert not completed.ok


def test_run_ends_what_takes_too_long(launching: Launching) -> None:
    completed = launching.launcher.run(launching.spec(*tree_argv(launching.fifo, "stubborn", "clean")), 0.5)
    assert completed == Completed(None, "SIGKILL", (), timed_out=True)
    assert not completed.ok


def test_run_asks_whether_to_stop_and_tells_that_it_waits(launching: Launching) -> None:
    waits: list[float] = []
    completed = launching.launcher.run(
        launching.spec(*tree_argv(launching.fifo, "stubborn")),
        60,
        on_wait=lambda: waits.append(time.monotonic()),
        stop=lambda: len(waits) >= 2,
    )
    assert completed == Completed(None, "SIGKILL", (), timed_out=False, stopped=True)
    assert waits[1] - waits[0] < 1


def test_an_exception_while_waiting_leaves_nothing(launching: Launching) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launching.launcher.run(launching.spec(*tree_argv(launching.fifo, "stubborn", "daemon")), 60, on_wait=fail)


def test_run_says_when_the_warden_was_killed(launching: Launching) -> None:
    def kill_warden() -> None:
        for pid in launching.launcher.owned():
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(LaunchFailed, match="warden"):
        launching.launcher.run(
            launching.spec(*tree_argv(launching.fifo, "stubborn", "daemon")), 60, on_wait=kill_warden
        )


def test_a_warden_that_does_not_answer_fails_the_launch(
    launching: Launching, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow_warden.py"
    slow.write_text("import signal\nwhile True: signal.pause()\n")
    monkeypatch.setattr("orchestrator.launcher.WARDEN", str(slow))
    monkeypatch.setattr(handle_module, "TIMING", Timing(start_s=0.2, end_s=0.2))
    with pytest.raises(LaunchFailed, match=r"did not answer within 0\.2 s"):
        launching.launch(launching.spec("/bin/true"))


def test_a_warden_that_is_stopped_before_it_answers_is_woken(
    launching: Launching, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = tmp_path / "stopped_warden.py"
    code = "import os, runpy, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nrunpy.run_path({!r}, run_name='__main__')\n"
    stopped.write_text(code.format(launcher_module.WARDEN))
    monkeypatch.setattr("orchestrator.launcher.WARDEN", str(stopped))
    began = time.monotonic()
    assert launching.launcher.run(launching.spec("/bin/true"), 20).ok
    assert time.monotonic() - began < handle_module.TIMING.start_s / 2


def test_a_warden_that_breaks_at_once_fails_the_launch(
    launching: Launching, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken_warden.py"
    broken.write_text("raise SystemExit(7)\n")
    monkeypatch.setattr("orchestrator.launcher.WARDEN", str(broken))
    with pytest.raises(LaunchFailed, match="status 7"):
        launching.launch(launching.spec("/bin/true"))


def test_the_lifeline_is_not_inherited_by_anything_launched_later(launching: Launching) -> None:
    first, _ = launching.tree("polite", incarnation="w1-a")
    second, _ = launching.tree("polite", incarnation="w2-b")
    for handle, other in ((first, second), (second, first)):
        pipes = {os.readlink(f"/proc/self/fd/{fd}") for fd in (handle._lifeline, handle._status)}
        held = {os.readlink(link) for link in Path(f"/proc/{other.warden_pid}/fd").iterdir()}
        assert not pipes & held


def test_many_launches_leave_nothing(launching: Launching) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert launching.launcher.run(launching.spec("/bin/true"), 20).ok
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_bystander_of_the_caller_is_untouched(launching: Launching, tmp_path: Path) -> None:
    other = Fifo(tmp_path / "other")
    bystander = subprocess.Popen([sys.executable, *tree_argv(other, "polite")[1:]])
    other.pids(1)
    handle, _ = launching.tree("stubborn", "daemon")
    (ref,) = subtree(bystander.pid)
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)
    handle.close()
    assert alive(ref)
    bystander.terminate()
    assert bystander.wait() == 0
    other.close()


def test_a_launch_without_descriptors_fails_cleanly_and_the_next_one_works(launching: Launching) -> None:
    """Whichever of the descriptors that it needs is the one too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    taken = max(map(int, os.listdir("/proc/self/fd")))
    spares = [os.open(os.devnull, os.O_RDONLY) for _ in range(taken - before + 1)]  # so that numbers have no gaps
    refused = []
    try:
        for more in range(16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more - 1, hard))
            try:
                launching.launcher.run(launching.spec("/bin/true"), 20)
            except LaunchFailed as exc:
                refused.append(str(exc))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        for fd in spares:
            os.close(fd)
    assert len(refused) > 5
    assert all("Too many open files" in text for text in refused)
    assert len(os.listdir("/proc/self/fd")) == before
    assert launching.launcher.run(launching.spec("/bin/true"), 20).ok
    assert launching.launcher.owned() == frozenset()


def test_a_launch_beyond_the_limit_on_processes_says_so(launching: Launching) -> None:
    """Where root is exempt from it, so is this process: then it is a user without rights that tries."""
    code = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.errors import LaunchFailed
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
launcher, spec = Launcher(), LaunchSpec(("/bin/true",), {}, "/", "/dev/null", sys.argv[2], "w1-test")
resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
try:
    launcher.run(spec, 20)
except LaunchFailed as exc:
    print(exc)
resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
print(launcher.owned(), len(os.listdir("/proc/self/fd")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(REPOSITORY), launching.run_tag],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    refused, after = done.stdout.splitlines()
    assert "Resource temporarily unavailable" in refused
    assert after == "frozenset() 4"


@pytest.mark.parametrize("leader", ["stubborn", "exit0"])
def test_many_threads_that_stop_and_close_at_once(launching: Launching, leader: str) -> None:
    handle, pids = launching.tree(leader, "daemon", "clean")
    together = threading.Barrier(8)

    def end(number: int) -> bool:
        together.wait()
        for _ in range(50):
            handle.terminate()
            handle.read_events() if number % 2 else handle.kill()
        handle.close()
        return handle.closed and not any(alive(ref) for ref in refs)

    refs = subtree(handle.warden_pid)
    with watched(pids[kind] for kind in ("daemon", "clean")) as running:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(end, range(8))), "each returns only when all is over"
        assert not running(0)
    handle.close()


def test_two_threads_closing_what_a_killed_warden_guarded(launching: Launching) -> None:
    handle, pids = launching.tree("stubborn", "daemon", "clean")
    refs = subtree(handle.warden_pid)
    os.kill(handle.warden_pid, signal.SIGKILL)
    to_the_end(handle)

    def close(_number: int) -> bool:
        handle.close()
        return not any(map(alive, refs))

    with watched(pids.values()) as running:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(close, range(4)))
        assert not running(0)


def test_another_namespaces_proc_is_refused(launching: Launching) -> None:
    """Every pid in it would be somebody else's."""
    code = """
import sys
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.errors import LaunchFailed
try:
    Launcher().launch(LaunchSpec(("/bin/true",), {}, "/", "/dev/null", sys.argv[1], "w1-test"))
except LaunchFailed as exc:
    print(exc)
"""
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code, launching.run_tag]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        pytest.skip(f"no PID namespace to be had here: {done.stderr}")
    assert "another PID namespace" in done.stdout


WRAPPER = """#!/bin/sh
"{python}" "$@"
exit $?
"""


def wrapped(launching: Launching, *arguments: str) -> LaunchSpec:
    """The worker's entry, by an interpreter that is a script and does not exec."""
    script = launching.folder / "python"
    script.write_text(WRAPPER.format(python=sys.executable))
    script.chmod(0o755)
    return launching.spec(str(script), str(REPOSITORY / "workers" / "bootstrap.py"), *arguments)


def test_an_interpreter_may_be_a_script_that_does_not_exec(launching: Launching) -> None:
    asked, answered = launching.folder / "asked", launching.folder / "answered"
    asked.write_text("{}")
    assert launching.launcher.run(wrapped(launching, "tool", "installed", str(asked), str(answered)), 20).ok
    assert json.loads(answered.read_text())["ok"]


def test_a_worker_behind_such_a_script_dies_with_it(launching: Launching) -> None:
    os.mkfifo(launching.folder / "asked")
    spec = wrapped(launching, "tool", "installed", str(launching.folder / "asked"), "answered")
    handle = launching.launch(spec)
    with open(launching.folder / "asked", "w"):  # the tool reads from now on, and is tied
        (worker,) = [ref.pid for ref in subtree(handle.warden_pid)[2:]]
        assert handle.pid
        with watched([worker]) as running:
            os.kill(handle.pid, signal.SIGKILL)
            assert not running(5)


def test_a_worker_that_is_not_below_its_warden_does_not_start(launching: Launching) -> None:
    command = [sys.executable, str(REPOSITORY / "workers" / "bootstrap.py"), "worker"]
    other = subprocess.Popen(["sleep", "infinity"])
    env = {"AIRLOCK_WARDEN_PID": str(other.pid)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    other.kill()
    other.wait()
    assert done.returncode == 78
    assert f"the warden {other.pid} is not above it" in done.stderr
    assert launching.launcher.owned() == frozenset()
