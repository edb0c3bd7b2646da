"""Where real engines are: the environments under AIRLOCK_HOME, as `scripts/test` has built them.

An environment that is not there skips its tests, with the reason; where
AIRLOCK_TEST_ENGINES is "required", as in `scripts/test`, it fails them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.definition.inputs import ModelInfo
from orchestrator.definition.promptuse import PromptSource
from orchestrator.definition.sources import ModelRef
from orchestrator.devices import discover
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.launcher import Launcher
from orchestrator.stores.home import airlock_home
from orchestrator.stores.models import ModelStore
from orchestrator.stores.prompts import read, tokenise
from protocol.specs import unpack_ids
from tests.engines import made_models

FindEnv = Callable[[str], EngineEnv]
FindPython = Callable[[str], str]

TEXTS = {
    "capital": "What is the capital of France?",
    "sum": "What is 2 + 3? Answer with one number.",
    "colours": "Name the three primary colours.",
    "repeat": "Repeat after me, word for word: one two three four one two three four one two three four",
}
GENERATION_CONFIG = "generation_config.json"
OPINIONS = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.5,
    "repetition_penalty": 1.9,
    "max_length": 20,
}


@dataclass(frozen=True)
class Prompts:
    """Token ids by prompt id, and the model's stop ids."""

    ids: dict[str, list[int]]
    stop: list[int]


@pytest.fixture(scope="session")
def built() -> Iterator[EnvStore]:
    """The user's own store. Nothing is built by a test."""
    store = EnvStore(airlock_home(), Launcher(), lambda _: None, kind=discover().kind)
    yield store
    store.close()


@pytest.fixture(scope="session")
def find_env(built: EnvStore) -> FindEnv:
    """The environment of an engine."""

    def find(engine: str) -> EngineEnv:
        found = built.get(engine)
        if found is None or built.outdated(engine):
            why = f"environment {engine} is not built; `python -m orchestrator env build {engine}` builds it"
            (pytest.fail if os.environ.get("AIRLOCK_TEST_ENGINES") == "required" else pytest.skip)(why)
        return found

    return find


@pytest.fixture(scope="session")
def engine_env(find_env: FindEnv) -> FindPython:
    """The interpreter of an engine."""
    return lambda engine: find_env(engine).python


@pytest.fixture(scope="session")
def demo(find_env: FindEnv) -> ModelInfo:
    """The demo model, made at its first use."""
    return ModelStore(airlock_home(), Launcher(), lambda _: None).resolve(ModelRef("demo", "demo"), find_env("hf"))


@pytest.fixture(scope="session")
def home() -> str:
    return str(airlock_home())


@pytest.fixture(scope="session")
def model(demo: ModelInfo) -> str:
    return demo.path


@pytest.fixture(scope="session")
def tiny_llama(find_env: FindEnv, model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random Llama whose heads two devices can share, made at its first use."""
    return made_models.tiny_llama(tmp_path_factory.mktemp("llama"), find_env("hf").python, model)


@pytest.fixture(scope="session")
def tiny_moe(find_env: FindEnv, model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random mixture-of-experts model, made at its first use."""
    return made_models.tiny_moe(tmp_path_factory.mktemp("moe"), find_env("hf").python, model)


@pytest.fixture(scope="session")
def tiny_vision(find_env: FindEnv, model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random vision-language model, made at its first use."""
    return made_models.tiny_vision(tmp_path_factory.mktemp("vision"), find_env("hf").python, model)


@pytest.fixture(scope="session")
def opinionated_model(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model, whose folder recommends sampling settings. No engine may take them."""
    folder = tmp_path_factory.mktemp("opinionated")
    for file in Path(model).iterdir():
        (folder / file.name).symlink_to(file.resolve())
    settings = json.loads((folder / GENERATION_CONFIG).read_text())
    (folder / GENERATION_CONFIG).unlink()
    (folder / GENERATION_CONFIG).write_text(json.dumps({**settings, **OPINIONS}))
    return str(folder)


@pytest.fixture(scope="session")
def prompts(demo: ModelInfo, find_env: FindEnv) -> Prompts:
    """Tokenised once for all engines."""
    inline = tuple({"id": name, "prompt": text} for name, text in TEXTS.items())
    source = PromptSource(None, inline, "on")
    raw = read(source, airlock_home())
    found = tokenise(raw, demo, source, find_env("hf"), Launcher(), home=airlock_home())
    return Prompts({p.id: unpack_ids(p.token_ids) for p in found.prompts}, list(demo.stop_token_ids))
