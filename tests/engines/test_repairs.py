"""A really broken torchvision beside Transformers, and what repairs do about it: inside the worker, and nowhere else.

The torchvision is SGLang's, built for another torch and for CUDA; it stands, with Pillow, without which Transformers
does not look for it, in a venv in front of all that hf's environment holds. With it a flash-attn and a torchao that
fail as such builds do.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices import discover
from orchestrator.envs import EnvStore
from orchestrator.events import WorkerReady
from orchestrator.launcher import Launcher
from tests.engines.conftest import FindPython
from tests.process.sweeping import NO_SECOND_TRY, Bench

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked")]

PATIENCE_S = 900
NO_OPERATOR = "RuntimeError: operator torchvision::nms does not exist"
UNDEFINED = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"
FAKES = {
    "flash_attn": ("2.8.3", "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E')"),
    "torchao": ("0.18.0", "import torch\ntorch.ops.torchao.quantize_of_another_torch\n"),
}


def site_of(python: str) -> Path:
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def overlay(folder: Path, base: str, others: str, *patterns: str) -> Path:
    """The site-packages of a new venv in `folder`: what `patterns` name in `others`, in front of all of `base`."""
    if discover().kind == "cuda":
        pytest.skip("the builds of a GPU machine may fit each other: none is known to be broken")
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "theirs.pth").write_text(f"{site_of(base)}\n")
    for pattern in patterns:
        for part in site_of(others).glob(pattern):
            (site / part.name).symlink_to(part)
    return site


@pytest.fixture
def folder(tmp_path: Path, engine_env: FindPython) -> Path:
    """A venv with hf's packages, some of them hidden by broken ones."""
    folder = tmp_path / "mine"
    site = overlay(folder, engine_env("hf"), engine_env("sglang"), "torchvision*", "PIL", "pillow*")
    for name, (version, text) in FAKES.items():
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(text)
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(f"{name}\n")
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture
def store(bench: Bench) -> Iterator[EnvStore]:
    found = EnvStore(Path(bench.env["AIRLOCK_HOME"]), Launcher(), lambda _: None, kind=discover().kind)
    yield found
    found.close()


def digest(folder: Path) -> str:
    """Of all files, links followed, but those that Python writes beside what it imports."""
    found = hashlib.sha256()
    for at, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = Path(at, name)
            found.update(bytes(path) + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def ids(bench: Bench) -> dict[str, list[int]]:
    return {record["prompt_id"]: record["token_ids"] for record in bench.records}


def test_a_model_loads_beside_a_broken_torchvision_and_nothing_on_the_disk_is_changed(
    bench: Bench, store: EnvStore, folder: Path, engine_env: FindPython, model: str
) -> None:
    before = digest(folder)
    env = store.add("mine", "hf", str(folder / "bin" / "python"))
    assert env.broken["torchvision"] == NO_OPERATOR
    assert env.broken["flash_attn"] == UNDEFINED
    assert "quantize_of_another_torch" in env.broken["torchao"]
    store.add("whole", "hf", engine_env("hf"))

    def sweep(name: str, **changes: Any) -> int:
        bench.run_dir = bench.folder / name
        asked: dict[str, Any] = {
            "model": model,
            "prompts": ["What is the capital of France?", "Count to five."],
            "methods": ["hf_sdpa"],
            "settings": {"dtype": "float32"},
            "sampling": {"max_new_tokens": 12},
            "matrix": {},
            "limits": {},
            "policies": NO_SECOND_TRY,
            **changes,
        }
        bench.write(**asked)
        done = bench.run(patience_s=PATIENCE_S)
        bench.assert_clean()
        return done.returncode

    assert sweep("whole", environments={"hf": "whole"}) == 0
    expected, (plain,) = ids(bench), ready(bench)
    assert sweep("repaired", environments={"hf": "mine"}) == 0
    (repaired,) = ready(bench)
    assert ids(bench) == expected
    assert plain.metadata.patches == []
    assert {f"blocked torchvision: {NO_OPERATOR}", f"blocked flash_attn: {UNDEFINED}"} <= {*repaired.metadata.patches}
    assert len(repaired.metadata.patches) == len(env.broken) == 3

    keep = {"repairs": {"keep": ["torchvision"]}, "environments": {"hf": "mine"}}
    assert sweep("kept", **keep) == 1
    (outcome,) = bench.outcomes()["hf_sdpa"]
    assert outcome.cause is not None
    assert (outcome.cause.cls, outcome.cause.phase) == ("environment", "loading")
    assert NO_OPERATOR in outcome.cause.message
    assert digest(folder) == before


def ready(bench: Bench) -> list[WorkerReady]:
    return [event for event in bench.events if isinstance(event, WorkerReady)]


def test_vllm_imports_beside_what_its_own_dependencies_would_break(
    store: EnvStore, tmp_path: Path, engine_env: FindPython
) -> None:
    names = ("torchaudio", "torchcodec", "torchvision")
    overlay(tmp_path / "mine", engine_env("vllm"), engine_env("sglang"), *(f"{name}*" for name in names))
    env = store.add("mine", "vllm", str(tmp_path / "mine" / "bin" / "python"))
    assert env.blocked == tuple(env.broken) == names  # and not what fails because of them alone
