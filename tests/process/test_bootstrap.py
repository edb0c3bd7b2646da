"""Bootstrap by path, in a real process: what can be imported there, what can't, and who owns which name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from protocol.signals import STACKS
from tests.process.worker_peer import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nothing_leaked")

ROOT = Path(__file__).resolve().parents[2]

#: A tool that looks round in its own process and in a child made by multiprocessing's spawn.
LOOK = """
import importlib, multiprocessing, sys

def where(name):
    try:
        return getattr(importlib.import_module(name), "__file__", "no file")
    except ImportError as exc:
        return type(exc).__name__

def look(names):
    found = {name: where(name) for name in names}
    caught = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigCgt:"))
    signals = [number for number in range(1, 65) if int(caught, 16) >> number - 1 & 1]
    return {"path": sys.path, "main": sys.modules["__main__"].__name__, "python": sys.executable, "found": found,
            "caught": signals, "stderr": type(sys.stderr.buffer).__name__}

def child(pipe, names):
    pipe.send(look(names))
    pipe.close()

def run(request):
    mine, theirs = multiprocessing.Pipe(duplex=False)
    spawned = multiprocessing.get_context("spawn").Process(target=child, args=(theirs, request["names"]))
    spawned.start()
    theirs.close()
    seen = mine.recv()
    spawned.join()
    return {"parent": look(request["names"]), "child": seen, "child_exit": spawned.exitcode}
"""


def children() -> set[int]:
    return {one.pid for one in proc.descendants([os.getpid()], proc.table())}


class Checkout:
    """A copy of our packages with one tool more, and a folder beside it that stands for site-packages."""

    def __init__(self, folder: Path, run_tag: str, python: str, name: str = "checkout") -> None:
        self.root, self.site, self.folder, self.run_tag = folder / name, folder / "theirs", folder, run_tag
        self.python = python
        for package in ("protocol", "workers"):
            shutil.copytree(ROOT / package, self.root / package, ignore=shutil.ignore_patterns("__pycache__"))
        self.write(self.root, orchestrator="MINE = True")
        (self.root / "workers" / "tools" / "look.py").write_text(LOOK)
        self.site.mkdir()

    @staticmethod
    def write(where: Path, **packages: str) -> None:
        for name, text in packages.items():
            (where / name).mkdir(parents=True)
            (where / name / "__init__.py").write_text(text)

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, python: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        before = children()
        done = subprocess.run(
            [*(python or (self.python,)), str(self.root / "workers" / "bootstrap.py"), *arguments],
            env={"AIRLOCK_RUN": self.run_tag, **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        for orphan in children() - before:  # multiprocessing's resource tracker ends by itself, and comes to us
            os.waitpid(orphan, 0)
        return done

    def look(self, *names: str, env: Mapping[str, str] | None = None, **kwargs: Any) -> dict[str, Any]:
        request, response = self.folder / "request.json", self.folder / "response.json"
        request.write_text(json.dumps({"names": names}))
        done = self.start("tool", "look", str(request), str(response), env=env, **kwargs)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(response.read_text())["result"]
        assert result["child_exit"] == 0
        return result


def new_venv(folder: Path) -> str:
    """An interpreter with all that ours has, but for the project itself, should that be installed:
    a .pth file adds the folder of packages and not what the .pth files in there add."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "theirs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_venv(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture
def checkout(tmp_path: Path, run_tag: str, python: str) -> Checkout:
    return Checkout(tmp_path, run_tag, python)


def real(paths: list[str]) -> set[str]:
    return {os.path.realpath(path) for path in paths}


@pytest.mark.parametrize("who", ["parent", "child"])
def test_exactly_two_names_are_bound_by_location(checkout: Checkout, who: str) -> None:
    seen = checkout.look("protocol", "workers", "workers.session", "orchestrator", "bootstrap", "session")[who]
    assert seen["found"] == {
        "protocol": str(checkout.root / "protocol" / "__init__.py"),
        "workers": str(checkout.root / "workers" / "__init__.py"),
        "workers.session": str(checkout.root / "workers" / "session.py"),
        "orchestrator": "ModuleNotFoundError",
        "bootstrap": "ModuleNotFoundError",
        "session": "ModuleNotFoundError",
    }
    assert not real(seen["path"]) & real([str(checkout.root), str(checkout.root / "workers")])


def test_the_child_is_a_spawned_one(checkout: Checkout) -> None:
    seen = checkout.look()
    assert (seen["parent"]["main"], seen["child"]["main"]) == ("__main__", "__mp_main__")


@pytest.mark.parametrize("who", ["parent", "child"])
def test_no_file_of_ours_hides_a_module_of_the_engine(checkout: Checkout, who: str) -> None:
    names = ("session", "compat", "tools", "backends", "memory")
    checkout.write(checkout.site, **dict.fromkeys(names, ""))
    seen = checkout.look(*names, env={"PYTHONPATH": str(checkout.site)})[who]
    assert seen["found"] == {name: str(checkout.site / name / "__init__.py") for name in names}


def test_not_even_pythonpath_lets_the_orchestrator_in(checkout: Checkout) -> None:
    path = f"{checkout.root}:{checkout.root / 'workers'}"
    seen = checkout.look("orchestrator", "session", env={"PYTHONPATH": path})
    for who in ("parent", "child"):
        assert set(seen[who]["found"].values()) == {"ModuleNotFoundError"}


@pytest.mark.parametrize("who", ["parent", "child"])
def test_each_process_tells_its_stacks_when_asked_and_loses_lines_rather_than_fail(
    checkout: Checkout, who: str
) -> None:
    seen = checkout.look()[who]
    assert {STACKS, signal.SIGUSR1, signal.SIGUSR2} <= set(seen["caught"])
    assert seen["stderr"] == "Lossy"


def test_blocked_modules_are_blocked_in_spawned_children_too(checkout: Checkout) -> None:
    checkout.write(checkout.site, broken_one="raise RuntimeError", fine="")
    names = ("broken_one", "fine", "colorsys")
    env = {"PYTHONPATH": str(checkout.site), "AIRLOCK_BLOCK_MODULES": "broken_one: RuntimeError\ncolorsys"}
    seen = checkout.look(*names, env=env)
    for who in ("parent", "child"):
        found = seen[who]["found"]
        assert (found["broken_one"], found["colorsys"]) == ("ModuleNotFoundError", "ModuleNotFoundError")
        assert found["fine"].endswith("fine/__init__.py")


def test_installed_beside_the_engine_everything_stays_importable(tmp_path: Path, run_tag: str, python: str) -> None:
    checkout = Checkout(tmp_path, run_tag, python, name="site-packages")
    checkout.write(checkout.root, engine="")
    seen = checkout.look("engine", "workers", "session", env={"PYTHONPATH": str(checkout.root)})
    for who in ("parent", "child"):
        found = seen[who]["found"]
        assert found["engine"] == str(checkout.root / "engine" / "__init__.py")
        assert found["workers"] == str(checkout.root / "workers" / "__init__.py")
        assert found["session"] == "ModuleNotFoundError"


def test_the_interpreter_stays_the_one_that_was_named(checkout: Checkout, tmp_path: Path) -> None:
    """Resolving its symlink would leave the virtual environment."""
    assert checkout.look()["child"]["python"] == checkout.python
    python = new_venv(tmp_path / "venv")
    assert os.path.realpath(python) != python
    seen = checkout.look(python=(python,))
    assert seen["parent"]["python"] == seen["child"]["python"] == python


# --- refusals -------------------------------------------------------------


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("airlock: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("mode", [("worker",), ("tool", "look", "x", "y")])
@pytest.mark.parametrize("name", ["protocol", "workers"])
def test_another_owner_of_our_names(checkout: Checkout, name: str, mode: tuple[str, ...]) -> None:
    checkout.write(checkout.site, **{name: ""})
    said = one_sentence(checkout.start(*mode, env={"PYTHONPATH": str(checkout.site)}))
    assert f"'{name}' belongs to {checkout.site / name / '__init__.py'}" in said


def test_an_owner_that_is_only_a_folder(checkout: Checkout) -> None:
    (checkout.site / "workers").mkdir()
    said = one_sentence(checkout.start("worker", env={"PYTHONPATH": str(checkout.site)}))
    assert str(checkout.site / "workers") in said


def test_an_owner_that_is_imported_already(checkout: Checkout) -> None:
    (checkout.site / "sitecustomize.py").write_text(
        "import sys, types; sys.modules['protocol'] = types.ModuleType('x')"
    )
    said = one_sentence(checkout.start("worker", env={"PYTHONPATH": str(checkout.site)}))
    assert "'protocol' belongs to something that does not say" in said


def test_what_is_missing_is_named(checkout: Checkout) -> None:
    said = one_sentence(checkout.start("worker", python=(sys.executable, "-S")))
    assert "-m pip install pyzmq msgpack msgspec psutil" in said
    assert sys.executable in said


def test_what_is_broken_is_named(checkout: Checkout) -> None:
    checkout.write(checkout.site, msgpack="raise ImportError('libmsgpack.so.1 is gone')")
    said = one_sentence(checkout.start("worker", env={"PYTHONPATH": str(checkout.site)}))
    assert "libmsgpack.so.1 is gone" in said
    assert "-m pip install msgpack\n" in said


def test_a_worker_without_a_coordinator(checkout: Checkout) -> None:
    said = one_sentence(checkout.start("worker", env={"AIRLOCK_ENGINE": "scripted"}))
    assert "AIRLOCK_ENDPOINT, AIRLOCK_INCARNATION, AIRLOCK_TOKEN, AIRLOCK_SERVER_KEY" in said


@pytest.mark.parametrize("arguments", [(), ("worker", "x"), ("tool",), ("tool", "look"), ("help",)])
def test_usage(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    done = checkout.start(*arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: bootstrap.py worker")


# --- tools ----------------------------------------------------------------


def tool(checkout: Checkout, source: str, request: str = "{}") -> tuple[int, dict[str, Any]]:
    (checkout.root / "workers" / "tools" / "tried.py").write_text(source)
    (checkout.folder / "request.json").write_text(request)
    response = checkout.folder / "response.json"
    done = checkout.start("tool", "tried", str(checkout.folder / "request.json"), str(response))
    assert [p.name for p in checkout.folder.iterdir() if "response" in p.name] == ["response.json"]
    return done.returncode, json.loads(response.read_text())


def test_a_tool_answers(checkout: Checkout) -> None:
    source = "def run(request): return {'twice': request['n'] * 2, 'text': 'ü\\ud800'}"
    assert tool(checkout, source, '{"n": 21}') == (0, {"ok": True, "result": {"twice": 42, "text": "ü\ud800"}})


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def run(request): raise KeyError('n')", "KeyError"),
        ("def run(request): raise SystemExit(0)", "SystemExit"),
        ("import no_such_engine", "ModuleNotFoundError"),
        ("raise RuntimeError('at import')", "RuntimeError"),
        ("def run(request): return {'x': object()}", "TypeError"),
        ("def run(request): return {'x': float('nan')}", "ValueError"),
        ("nothing = 1", "AttributeError"),
    ],
)
def test_a_tool_that_fails_still_answers(checkout: Checkout, source: str, kind: str) -> None:
    status, answer = tool(checkout, source)
    assert (status, answer["ok"], answer["error"]["type"]) == (1, False, kind)
    assert kind in answer["error"]["traceback"]


@pytest.mark.parametrize("request_text", ["", "[1]", "{", "nonsense"])
def test_a_request_that_is_no_json_object(checkout: Checkout, request_text: str) -> None:
    status, answer = tool(checkout, "def run(request): return {}", request_text)
    assert (status, answer["error"]["type"]) == (1, "BadRequest")
    assert "request.json" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["no_such_tool", "runner", "../session", ""])
def test_a_tool_that_does_not_exist(checkout: Checkout, name: str) -> None:
    response = checkout.folder / "response.json"
    assert checkout.start("tool", name, "x", str(response)).returncode == 1
    error = json.loads(response.read_text())["error"]
    assert error["type"] == "UnknownTool"
    assert "look" in error["message"]


def test_a_response_that_cant_be_written(checkout: Checkout) -> None:
    done = checkout.start("tool", "look", "x", str(checkout.folder / "nowhere" / "response.json"))
    assert done.returncode == 70
    assert "FileNotFoundError" in done.stderr


def test_tools_need_nothing_installed(checkout: Checkout) -> None:
    (checkout.root / "workers" / "tools" / "bare.py").write_text("def run(request): return {}")
    (checkout.folder / "request.json").write_text("{}")
    response = str(checkout.folder / "response.json")
    arguments = ("tool", "bare", str(checkout.folder / "request.json"), response)
    assert checkout.start(*arguments, python=(sys.executable, "-S")).returncode == 0
