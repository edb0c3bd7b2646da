"""A real compiler's artefacts in the store: the second start of a model, in another folder, compiles nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.events import Artefacts, WorkerLaunched
from orchestrator.stores.artefacts import CACHE, ArtefactStore, Origin
from orchestrator.stores.envstate import Stored, save
from tests.engines.conftest import FindEnv
from tests.engines.made_models import tiny_llama
from tests.process.sweeping import Bench

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked")]

PATIENCE_S = 900
HIT, MISS = "cache hit for key", "cache miss for key"
COMPILED = {
    "name": "compiled",
    "base": "hf_sdpa",
    "compile": "default",
    "env_vars": {"TORCH_LOGS": "torch._inductor.codecache"},  # torch says of each graph where it comes from
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def sweep(bench: Bench, run: str, **changes: Any) -> str:
    """What the only worker logged."""
    bench.run_dir = bench.folder / run
    bench.write(**changes)
    done = bench.run(patience_s=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (bench.run_dir / "logs").glob("w1-*.log")
    return log.read_text(errors="replace")


def told(bench: Bench) -> list[str]:
    """Of what was at hand at the start, and of what was brought back."""
    events = bench.events
    launched = [event.artefacts for event in events if isinstance(event, WorkerLaunched)]
    return [*launched, *(event.what for event in events if isinstance(event, Artefacts))]


def test_a_second_start_takes_graphs_kernels_and_headers_from_the_store(
    bench: Bench, find_env: FindEnv, model: str, tmp_path: Path
) -> None:
    env = find_env("hf")
    home = Path(bench.env["AIRLOCK_HOME"])
    (home / "envs" / "good").mkdir(parents=True)
    save(home / "envs" / "good", Stored(env=msgspec.structs.replace(env, name="good", source="user")))
    changes = {
        "model": tiny_llama(tmp_path / "tiny", env.python, model),
        "environments": {"hf": "good"},
        "prompts": ["What is the capital of France?", "Name a colour."],
        "methods": [COMPILED],
        "settings": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 4},
        "matrix": {"batch_size": [2]},
        "limits": {},
        "warmup": 1,
    }
    first = sweep(bench, "first", **changes)
    assert told(bench) == ["cold", "kept"]
    assert MISS in first
    store = ArtefactStore.under(home)
    (entry,) = store.entries()
    kept = {path.suffix for path in (store.root / entry.manifest.key / CACHE).rglob("*") if path.is_file()}
    assert {".so", ".gch"} <= kept

    second = sweep(bench, "second", **changes)
    assert told(bench) == ["warm"]  # not a file is new or another: nothing was compiled
    assert HIT in second
    assert MISS not in second

    bench.assert_clean()


TRITON = """
import sys
from triton.runtime.cache import FileCacheManager
cache = FileCacheManager("K" * 64)
if sys.argv[1] == "put":
    cache.put_group("kernel.json", {"kernel.cubin": cache.put(b"machine code", "kernel.cubin")})
print((cache.get_group("kernel.json") or {}).get("kernel.cubin"))
"""


def test_triton_finds_its_kernels_in_another_folder(find_env: FindEnv, tmp_path: Path) -> None:
    """Without a GPU there is no kernel to compile, but its cache, which knows files by their whole path, works."""
    python = find_env("vllm").python
    store = ArtefactStore.under(tmp_path / "home")

    def cached(folder: Path, action: str) -> str:
        env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton")}
        done = subprocess.run(
            [python, "-c", TRITON, action], env=env, text=True, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True
        )
        return done.stdout.strip()

    first, second = tmp_path / "first", tmp_path / "second"
    made = cached(first, "put")
    assert store.keep("k", Origin(first, {}, "run", "w1"), 1 << 20).new
    shutil.rmtree(first)
    assert store.lend("k", second).warm
    assert cached(second, "get") == made.replace(str(first), str(second))
