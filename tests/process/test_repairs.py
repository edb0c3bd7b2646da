"""Broken optional packages in real interpreters: found by trying, blocked where that helps, no file touched."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.tools import run_tool

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NO_OPERATOR = "raise RuntimeError('operator torchvision::nms does not exist')"
UNDEFINED = "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E')"
#: As the real engine: it takes a package for usable wherever it is found.
MODELING = "import importlib.util\nif importlib.util.find_spec('torchvision'):\n    import torchvision\n"
Try = Callable[..., dict[str, str]]


class Interpreter:
    """A venv with what our worker needs, an engine called Transformers, and what a test puts beside them."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.folder, self.python = folder, str(folder / "bin" / "python")
        self.site = next((folder / "lib").glob("*/site-packages"))
        ours = Path(sysconfig.get_path("purelib"))
        for name in ("zmq", "pyzmq", "msgpack", "msgspec", "psutil"):
            for found in ours.glob(f"{name}*"):
                (self.site / found.name).symlink_to(found)
        self.write("torch", "class cuda:\n    is_available = staticmethod(lambda: False)\n")
        self.write(
            "transformers", "__version__ = '1.0'\nAutoModelForCausalLM = AutoTokenizer = GenerationConfig = None\n"
        )
        self.write("transformers/models")
        self.write("transformers/models/llama")
        self.engine(MODELING)

    def write(self, package: str, text: str = "") -> None:
        (self.site / package).mkdir(parents=True)
        (self.site / package / "__init__.py").write_text(text)

    def engine(self, text: str) -> None:
        (self.site / "transformers/models/llama/modeling_llama.py").write_text(text)

    def install(self, name: str, version: str) -> None:
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def digest(self) -> str:
        """Of all files but those that Python writes beside what it imports."""
        files = sorted(p for p in self.folder.rglob("*") if p.is_file() and p.parent.name != "__pycache__")
        return hashlib.sha256(b"".join(bytes(p) + p.read_bytes() for p in files)).hexdigest()


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    return Interpreter(tmp_path / "venv")


@pytest.fixture
def attempt(tmp_path: Path, run_tag: str) -> Try:
    def call(python: str, *modules: str, seconds: float = 60.0) -> dict[str, str]:
        request = {"modules": modules, "seconds": seconds}
        result: dict[str, Any] = run_tool(Launcher(), python, "optional", request, run_tag, 120.0, tmp_path / "log")
        broken: dict[str, str] = result["broken"]
        return broken

    return call


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> Iterator[EnvStore]:
    found = EnvStore(tmp_path / "home", Launcher(), said.append, kind="cpu")
    yield found
    found.close()


def ready(found: object) -> EngineEnv:
    assert isinstance(found, EngineEnv)
    return found


# --- found by trying ----------------------------------------------------------------


def test_each_way_to_be_broken_is_told_and_what_is_whole_or_absent_is_not(
    attempt: Try, interpreter: Interpreter
) -> None:
    interpreter.write("torchvision", NO_OPERATOR)
    interpreter.write("hqq", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    interpreter.write("apex", "import sys\nsys.exit(3)\n")
    interpreter.write("natten", "import os\nos._exit(4)\n")
    interpreter.write("torchaudio", "")  # whole, but for the part that engines take from it
    interpreter.write("kernels", "")
    interpreter.write("bitsandbytes", "")
    stand_in = "class ErrorHandlerMockBNBNativeLibrary: ...\nlib = ErrorHandlerMockBNBNativeLibrary()\n"
    (interpreter.site / "bitsandbytes" / "cextension.py").write_text(stand_in)
    interpreter.write("fla", "VALUE = 1\n")
    (interpreter.site / "flash_attn" / "cute").mkdir(parents=True)  # flash-attn-4 alone
    names = ("torchvision", "hqq", "apex", "natten", "torchaudio", "kernels", "bitsandbytes", "fla", "flash_attn", "av")
    assert attempt(interpreter.python, *names) == {
        "torchvision": "RuntimeError: operator torchvision::nms does not exist",
        "hqq": "its import ends the process, by SIGSEGV",
        "apex": "SystemExit: 3",
        "natten": "its import ends the process, with exit code 4",
        "torchaudio": "ModuleNotFoundError: No module named 'torchaudio.functional'",
        "kernels": "Unusable: it has no get_kernel",
        "bitsandbytes": "Unusable: it has no library for this torch and this machine",
    }


def test_a_package_that_another_one_breaks_is_not_broken(attempt: Try, interpreter: Interpreter) -> None:
    interpreter.write("torchvision", NO_OPERATOR)
    interpreter.write("compressed_tensors", MODELING)
    interpreter.write("av", MODELING.replace("torchvision", "cv2"))
    interpreter.write("cv2", f"{MODELING.replace('torchvision', 'av')}raise OSError('libGL.so.1')\n")
    names = ("compressed_tensors", "torchvision", "av", "cv2")
    assert attempt(interpreter.python, *names) == {
        "torchvision": "RuntimeError: operator torchvision::nms does not exist",
        "cv2": "OSError: libGL.so.1",
    }


def test_a_package_whose_import_never_ends_is_given_up(attempt: Try, interpreter: Interpreter) -> None:
    interpreter.write("apex", "import signal\nsignal.pause()\n")
    assert attempt(interpreter.python, "apex", seconds=0.2) == {"apex": "its import takes longer than 0.2 s"}


# --- kept with the environment ---------------------------------------------------------


def test_what_is_broken_is_blocked_though_the_engine_imports(
    store: EnvStore, interpreter: Interpreter, said: list[str]
) -> None:
    """What the import of the engine does not show, the load of a model would."""
    interpreter.engine("")
    interpreter.write("torchao", "raise AttributeError('torch.library has no x')")
    interpreter.write("flash_attn", UNDEFINED)
    before = interpreter.digest()
    env = store.add("mine", "hf", interpreter.python)
    error = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"
    assert env.broken == {"torchao": "AttributeError: torch.library has no x", "flash_attn": error}
    assert env.blocked == ("torchao", "flash_attn")
    assert said[1] == f"environment mine: flash_attn is broken and blocked: {error}"
    found = store.check("mine")
    assert (found.env.broken, found.env.blocked, found.drift) == (env.broken, env.blocked, ())
    assert interpreter.digest() == before


def test_packages_are_tried_again_only_when_something_was_installed(
    store: EnvStore, interpreter: Interpreter, tmp_path: Path, said: list[str]
) -> None:
    count = f"with open({str(tmp_path / 'tries')!r}, 'a') as file:\n    file.write('x')\n"

    def tries() -> int:
        return len((tmp_path / "tries").read_text())

    interpreter.engine("")
    interpreter.write("peft", count)
    store.add("mine", "hf", interpreter.python)
    assert (tries(), ready(store.ensure(["mine"])["mine"]).broken) == (1, {})
    assert tries() == 1

    (interpreter.site / "peft" / "__init__.py").write_text(f"{count}raise OSError('libcudart.so.12')\n")
    interpreter.install("accelerate-extras", "2.0")
    said.clear()
    env = ready(store.ensure(["mine"])["mine"])
    assert (tries(), env.broken, env.blocked) == (2, {"peft": "OSError: libcudart.so.12"}, ("peft",))
    assert said == ["environment mine: trying which of its optional packages can be used"]
    assert (ready(store.ensure(["mine"])["mine"]), tries()) == (env, 2)
    assert ready(store.get("mine")).variables == env.variables

    (interpreter.site / "peft" / "__init__.py").write_text(count)  # the same version, built again
    assert (store.check("mine").env.broken, tries()) == ({}, 3)
    assert (ready(store.ensure(["mine"])["mine"]).variables, tries()) == ({}, 3)


def test_a_broken_package_that_the_engine_does_not_import_without_stays(
    store: EnvStore, interpreter: Interpreter
) -> None:
    interpreter.engine(f"import kernels\n{MODELING}")
    interpreter.write("kernels", "")
    interpreter.write("torchvision", NO_OPERATOR)
    env = store.add("mine", "hf", interpreter.python)
    assert (tuple(env.broken), env.blocked) == (("kernels", "torchvision"), ("torchvision",))
    assert env.repairs[0] == "kernels is broken and not blocked: Unusable: it has no get_kernel"

    interpreter.engine("import kernels, torchvision\n")
    with pytest.raises(EnvironmentFailed, match="operator torchvision::nms does not exist"):
        store.add("worse", "hf", interpreter.python)
    with pytest.raises(EnvironmentFailed, match="operator torchvision::nms does not exist"):
        store.check("mine")
    interpreter.install("anything", "1")
    left = ready(store.ensure(["mine"])["mine"])  # its worker will say it
    assert (tuple(left.broken), left.blocked) == (("kernels", "torchvision"), ())


def test_the_environment_of_an_engine_that_looks_for_none_is_not_searched(store: EnvStore) -> None:
    assert store.add("mine", "scripted", sys.executable).broken == {}


def test_check_list_and_doctor_tell_what_is_broken_and_that_it_is_blocked(
    store: EnvStore, interpreter: Interpreter, tmp_path: Path
) -> None:
    interpreter.write("torchvision", NO_OPERATOR)
    store.add("mine", "hf", interpreter.python)
    store.close()

    def answer(*verb: str) -> str:
        env = {**os.environ, "AIRLOCK_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "orchestrator", *verb]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout

    sentence = "torchvision is broken and blocked: RuntimeError: operator torchvision::nms does not exist"
    assert answer("env", "check", "mine").splitlines()[0] == f"mine: {sentence}"
    (listed,) = [entry for entry in json.loads(answer("env", "list", "--json")) if entry["name"] == "mine"]
    assert (listed["state"], listed["blocked"], list(listed["broken"])) == ("ready", ["torchvision"], ["torchvision"])
    (finding,) = [one for one in json.loads(answer("doctor", "--json")) if one["subject"] == "env mine"]
    assert (finding["level"], sentence in finding["message"]) == ("warn", True)
    assert finding["advice"].startswith("nothing, unless a model needs them")
