"""Environments with real interpreters, real pip and no index but a folder of wheels."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.envs import OWN, EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed, InputError, Interrupted
from orchestrator.launcher import Launcher
from orchestrator.stores.filelock import FileLock
from orchestrator.stores.home import tag_of
from orchestrator.stores.recipes import Kind, Recipe
from tests.conftest import below_us, tagged
from tests.process.wheels import empty_wheel, worker_wheels

pytestmark = pytest.mark.usefixtures("nothing_leaked", "nothing_of_home_left")

ROOT = Path(__file__).resolve().parents[2]
#: Another coordinator: builds environment "slow" of the home it is given.
COORDINATOR = """
import sys
from pathlib import Path
from orchestrator.envs import EnvStore
from orchestrator.launcher import Launcher
from orchestrator.stores.recipes import Recipe
recipe = Recipe("scripted", "cpu", ("nosuch==1",))
EnvStore(Path(sys.argv[1]), Launcher(), lambda _: None, kind="cpu", recipe=lambda *_: recipe).build("slow")
"""
Recipes = dict[str, Recipe]
Open = Callable[..., EnvStore]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def nothing_of_home_left(home: Path) -> Iterator[None]:
    yield
    assert not tagged(tag_of(home))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Requirements that pip finds without an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))  # must not divert the packages
    return worker_wheels(tmp_path / "wheels")


@pytest.fixture
def slow_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An index that accepts and never answers: pip hangs on it until it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def open_store(home: Path, said: list[str]) -> Iterator[Open]:
    opened: list[EnvStore] = []

    def open_one(
        recipes: Recipes | None = None, kind: Kind = "cpu", on_wait: Callable[[], None] | None = None
    ) -> EnvStore:
        def recipe(name: str, _kind: Kind) -> Recipe | None:
            return (recipes or {}).get(name)

        opened.append(EnvStore(home, Launcher(), said.append, kind=kind, on_wait=on_wait, recipe=recipe))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def bare_python(folder: Path) -> str:
    venv.create(folder, with_pip=False)
    return str(folder / "bin" / "python")


def failure(found: object) -> EnvironmentFailed:
    assert isinstance(found, EnvironmentFailed)
    return found


# --- the user's own -------------------------------------------------------------


def test_an_interpreter_of_the_users_is_taken_in_and_left_alone(open_store: Open, home: Path) -> None:
    store = open_store()
    added = store.add("mine", "scripted", sys.executable)
    assert added.python == sys.executable  # not resolved: that would leave the venv
    assert added.fingerprint.packages.keys() >= {"pyzmq", "msgpack", "msgspec", "psutil"}
    assert (store.get("mine"), store.list()) == (added, {"mine": added})
    assert store.ensure(["mine"]) == {"mine": added}
    assert store.outdated("mine") == ""
    found = store.check("mine")
    assert (found.env, found.drift, found.outdated) == (added, (), "")
    with pytest.raises(InputError, match="of that name"):
        store.add("mine", "scripted", sys.executable)
    assert sorted(p.name for p in (home / "envs" / "mine").iterdir()) == ["env.json"]
    assert list((home / "logs").iterdir()) == []


def test_a_users_environment_is_never_built(open_store: Open) -> None:
    store = open_store({"mine": Recipe("scripted", "cpu", ())})
    store.add("mine", "scripted", sys.executable)
    for rebuild in (False, True):
        with pytest.raises(InputError, match="never changes"):
            store.build("mine", rebuild)


def test_wrong_names_and_interpreters_are_said(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    with pytest.raises(InputError) as caught:
        store.add("../x", "tensorrt", str(tmp_path))
    assert len(caught.value.problems) == 3
    assert f"{tmp_path}/bin/python" in str(caught.value)
    with pytest.raises(InputError, match="own interpreter"):
        store.add(OWN, "scripted", sys.executable)
    with pytest.raises(InputError, match="does not exist"):
        store.add("x", "scripted", str(tmp_path / "gone"))
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(EnvironmentFailed, match=r"link to .*gone, which is gone"):
        store.add("x", "scripted", str(tmp_path / "link"))
    (tmp_path / "text").write_text("x")
    with pytest.raises(EnvironmentFailed, match="not a program"):
        store.add("x", "scripted", str(tmp_path / "text"))
    assert store.list() == {}


def test_an_interpreter_without_our_needs_gets_told_what_to_install(open_store: Open, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    with pytest.raises(EnvironmentFailed, match=r"lacks pyzmq, msgpack, msgspec, psutil.*-m pip install pyzmq"):
        open_store().add("bare", "scripted", python)


def test_an_engine_that_is_not_installed_is_refused_in_a_sentence(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(EnvironmentFailed, match="has no package torch; install it there") as caught:
        store.add("hf", None, sys.executable)
    assert caught.value.log_tail == ""
    assert store.get("hf") is None


def test_a_broken_optional_package_is_blocked(open_store: Open, tmp_path: Path, said: list[str]) -> None:
    python = bare_python(tmp_path / "venv")
    site = next((tmp_path / "venv" / "lib").glob("*/site-packages"))
    (site / "ours.pth").write_text(os.pathsep.join(str(Path(path)) for path in sys.path if "site-packages" in path))
    write_engine(site)
    store = open_store()
    store.add("hf", None, python)
    assert said == ["environment hf is ready: hf 1.0, " + python]
    (site / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    env = store.add("cured", "hf", python)
    error = "RuntimeError: operator torchvision::nms does not exist"
    assert (env.blocked, env.broken) == (("torchvision",), {"torchvision": error})
    assert env.variables == {"AIRLOCK_BLOCK_MODULES": f"torchvision: {error}"}
    assert said[1] == f"environment cured: torchvision is broken and blocked: {error}"
    assert store.check("cured").env == store.get("cured") == env
    (site / "transformers" / "__init__.py").write_text("import nothing_of_that_name")
    with pytest.raises(EnvironmentFailed, match="nothing_of_that_name"):
        store.add("worse", "hf", python)


def write_engine(site: Path) -> None:
    """An engine that, as the real one, takes torchvision for usable wherever it is found."""
    (site / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\nclass Tensor: ...\n")
    for folder in ("transformers", "transformers/models", "transformers/models/llama"):
        (site / folder).mkdir()
        (site / folder / "__init__.py").write_text("")
    names = "AutoModelForCausalLM = AutoTokenizer = GenerationConfig = None"
    (site / "transformers" / "__init__.py").write_text(f"__version__ = '1.0'\n{names}\n")
    use = "import importlib.util\nif importlib.util.find_spec('torchvision'):\n    import torchvision\n"
    (site / "transformers" / "models" / "llama" / "modeling_llama.py").write_text(use)


def test_an_environment_whose_python_is_gone_is_said_and_the_others_go_on(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    # The packages of the venv come by its configuration file, which stands beside the link.
    (tmp_path / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    store.add("good", "scripted", sys.executable)
    (home := tmp_path / "home" / "envs" / "bad").mkdir()
    text = (home.parent / "good" / "env.json").read_text()
    (home / "env.json").write_text(text.replace(sys.executable, str(link)).replace('"good"', '"bad"'))
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    found = store.ensure(["bad", "good"])
    assert isinstance(found["good"], EngineEnv)
    assert "removed or upgraded" in failure(found["bad"]).cause
    with pytest.raises(EnvironmentFailed, match="which is gone"):
        store.check("bad")


def test_own_is_this_very_interpreter(open_store: Open, home: Path) -> None:
    store = open_store()
    assert store.default_name("scripted") == OWN
    env = store.ensure([OWN])[OWN]
    assert isinstance(env, EngineEnv)
    assert (env.python, env.source) == (sys.executable, "own")
    assert store.check(OWN).env == env
    assert not home.exists()


def test_unknown_names_are_wrong_input_and_nothing_is_built(open_store: Open, home: Path) -> None:
    store = open_store({"hf": Recipe("hf", "cpu", ())})
    with pytest.raises(InputError) as caught:
        store.ensure(["nope", "hf", "nada"])
    assert len(caught.value.problems) == 2
    with pytest.raises(InputError, match="no recipe"):
        store.estimate("nope")
    assert not (home / "envs").exists()


# --- built ----------------------------------------------------------------------


def test_from_recipe_to_drift(open_store: Open, home: Path, said: list[str], wheels: tuple[str, ...]) -> None:
    extra = empty_wheel(home.parent / "wheels", "torchvision", "1.0")
    recipe = Recipe("scripted", "cpu", (*wheels, extra), remove=("torchvision",), disk_bytes=1000, build_s=5)
    recipes = {"hf": recipe}
    store = open_store(recipes)
    env = store.ensure(["hf"])["hf"]
    assert isinstance(env, EngineEnv)
    assert env.python == str(home / "envs" / "hf" / "venv" / "bin" / "python")
    assert env.fingerprint.recipe_digest == recipe.digest
    assert env.fingerprint.packages.keys() >= {"pyzmq", "msgspec"}
    assert "torchvision" not in env.fingerprint.packages
    assert "about 1000 B of disk and 5 s or more" in said[1]
    assert said[-1].startswith("environment hf is ready: scripted ")
    assert sorted(p.name for p in (home / "envs" / "hf").iterdir()) == ["env.json", "venv"]
    assert not (home.parent / "elsewhere").exists()

    said.clear()
    assert store.ensure(["hf"]) == {"hf": env}
    assert store.build("hf") == env
    assert said == ["environment hf is there and up to date"]

    site = next((home / "envs" / "hf" / "venv" / "lib").glob("*/site-packages"))
    next(site.glob("psutil-*.dist-info/METADATA")).unlink()
    assert store.check("hf").drift == (f"psutil {env.fingerprint.packages['psutil']} → not installed",)
    drifted = store.ensure(["hf"])["hf"]
    assert isinstance(drifted, EngineEnv)
    assert drifted.fingerprint.digest != env.fingerprint.digest
    assert "has changed since it was made: psutil" in said[-1]

    recipes["hf"] = Recipe("scripted", "cpu", wheels)
    assert store.outdated("hf") == "its recipe has changed since it was built"
    assert "cuda machine" in open_store(recipes, kind="cuda").outdated("hf")
    again = store.ensure(["hf"])["hf"]
    assert isinstance(again, EngineEnv)
    assert again.fingerprint.packages == env.fingerprint.packages
    assert any("its recipe has changed" in line for line in said)


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on the PATH")
def test_uv_builds_the_same(
    open_store: Open, home: Path, said: list[str], wheels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_INSTALLER", "uv")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(home.parent / "wheels"))
    extra = empty_wheel(home.parent / "wheels", "torchvision", "1.0")
    recipes = {"hf": Recipe("scripted", "cpu", (*wheels, extra), remove=("torchvision",))}
    store = open_store(recipes)
    env = store.ensure(["hf"])["hf"]
    assert isinstance(env, EngineEnv), env
    assert said[0].endswith("with uv")
    assert env.fingerprint.packages.keys() >= {"pyzmq", "msgspec"}
    assert "torchvision" not in env.fingerprint.packages
    recipes["bad"] = Recipe("scripted", "cpu", ("nosuch==1.0",))
    assert "nosuch was not found" in failure(store.ensure(["bad"])["bad"]).cause


def test_a_failed_build_is_removed_its_log_kept_and_only_its_engine_fails(
    open_store: Open, home: Path, wheels: tuple[str, ...]
) -> None:
    store = open_store({"vllm": Recipe("scripted", "cpu", ("nosuch==1.0", *wheels))})
    store.add("mine", "scripted", sys.executable)
    found = store.ensure(["vllm", "mine"])
    failed = failure(found["vllm"])
    assert "Could not find a version that satisfies the requirement nosuch==1.0" in failed.cause
    assert "WARNING" not in failed.log_tail
    assert isinstance(found["mine"], EngineEnv)
    assert not (home / "envs" / "vllm").exists()
    (log,) = (home / "logs").iterdir()
    assert str(log) in failed.cause
    assert "nosuch" in log.read_text()


def test_an_environment_that_cannot_be_used_is_no_environment(open_store: Open, home: Path) -> None:
    store = open_store({"hf": Recipe("scripted", "cpu", ())})
    assert "lacks pyzmq" in failure(store.ensure(["hf"])["hf"]).cause
    assert not (home / "envs" / "hf").exists()


def test_a_full_disk_and_a_wrong_python_are_found_before_the_build(open_store: Open, home: Path) -> None:
    recipes = {
        "large": Recipe("scripted", "cpu", (), disk_bytes=1 << 60),
        "old": Recipe("scripted", "cpu", (), pythons=((3, 8), (3, 9))),
    }
    found = open_store(recipes).ensure(recipes)
    assert "TiB" in failure(found["large"]).cause
    assert "needs Python 3.8 to 3.9" in failure(found["old"]).cause
    assert not (home / "logs").exists()


def test_what_an_interrupted_build_left_is_removed_unless_somebody_is_at_it(
    open_store: Open, home: Path, said: list[str]
) -> None:
    for name in ("left", "building"):
        (home / "envs" / name / "venv").mkdir(parents=True)
    lock = FileLock(home / "envs" / ".building.lock")
    assert lock.try_exclusive()
    store = open_store()
    assert store.list() == {}
    store.ensure([OWN])
    lock.close()
    assert not (home / "envs" / "left").exists()
    assert (home / "envs" / "building").exists()
    assert said == ["environment left: removing what an interrupted build left behind"]


def test_a_damaged_state_is_said_and_can_be_rebuilt(open_store: Open, home: Path) -> None:
    (home / "envs" / "hf").mkdir(parents=True)
    (home / "envs" / "hf" / "env.json").write_text("{")
    store = open_store({"hf": Recipe("scripted", "cpu", ())})
    assert "can't be read" in failure(store.list()["hf"]).cause
    assert "can't be read" in failure(store.ensure(["hf"])["hf"]).cause
    store.close()
    with pytest.raises(EnvironmentFailed, match="lacks"):  # it got as far as a new venv
        open_store({"hf": Recipe("scripted", "cpu", ())}).build("hf", rebuild=True)


# --- more than one, and the end of one ----------------------------------------------


def test_an_interrupt_ends_a_build_with_nothing_left(open_store: Open, home: Path, slow_index: socket.socket) -> None:
    slow_index.setblocking(False)
    connections: list[socket.socket] = []

    def on_wait() -> None:
        try:
            connections.append(slow_index.accept()[0])
        except BlockingIOError:
            return
        raise Interrupted(signal.SIGINT)

    store = open_store({"hf": Recipe("scripted", "cpu", ("nosuch==1",))}, on_wait=on_wait)
    with pytest.raises(Interrupted):
        store.ensure(["hf"])
    assert not (home / "envs" / "hf").exists()
    assert not tagged(tag_of(home))
    for connection in connections:
        connection.close()


def test_a_second_coordinator_waits_and_a_killed_one_leaves_no_pip(
    open_store: Open, home: Path, said: list[str], slow_index: socket.socket
) -> None:
    before = below_us()
    other = subprocess.Popen([sys.executable, "-c", COORDINATOR, str(home)], cwd=ROOT)
    connection, _ = slow_index.accept()  # its pip has got to the index
    assert tagged(tag_of(home))

    def on_wait() -> None:
        if other.poll() is None:
            other.kill()
            other.wait()

    store = open_store({"slow": Recipe("scripted", "cpu", ())}, on_wait=on_wait)
    found = store.ensure(["slow"])
    connection.close()
    assert any("another Airlock" in line for line in said)
    assert "lacks pyzmq" in failure(found["slow"]).cause  # so it took over and built its own
    for orphan in below_us() - before:  # the warden of the killed one, which came to us
        os.waitpid(orphan.pid, 0)
    assert not tagged(tag_of(home))


def test_an_environment_in_use_is_not_rebuilt_under_its_user(open_store: Open, home: Path, said: list[str]) -> None:
    user = open_store()
    env = user.add("mine", "scripted", sys.executable)
    text = json.loads((home / "envs" / "mine" / "env.json").read_text())
    text["env"] |= {"source": "recipe"}
    text["kind"] = "cpu"
    recipe = Recipe("scripted", "cpu", ())
    text["env"]["fingerprint"]["recipe_digest"] = recipe.digest
    (home / "envs" / "mine" / "env.json").write_text(json.dumps(text))
    assert user.ensure(["mine"]).keys() == {"mine"}

    def on_wait() -> None:
        raise Interrupted(signal.SIGINT)

    builder = open_store({"mine": recipe}, on_wait=on_wait)
    with pytest.raises(Interrupted):
        builder.build("mine", rebuild=True)
    assert said[-1] == "environment mine: another Airlock builds or uses it; waiting"
    found = builder.get("mine")
    assert found is not None
    assert found.python == env.python
