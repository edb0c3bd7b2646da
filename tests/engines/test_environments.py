"""Our tools in the engines' own interpreters: what they tell must not depend on which one it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.definition.promptuse import PromptSource
from orchestrator.definition.sources import ModelRef
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.stores.models import ModelStore
from orchestrator.stores.prompts import read, tokenise
from orchestrator.stores.recipes import Kind
from protocol.specs import unpack_ids
from tests.engines.conftest import FindPython

pytestmark = pytest.mark.engine

ENGINES = ("hf", "vllm", "sglang")
SOURCE = PromptSource(
    None,
    (
        "What is the capital of France?",
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "id": "chat"},
        {
            "messages": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}],
            "id": "begun",
        },
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvStore]:
    kind: Kind = "cuda" if os.path.exists("/dev/nvidiactl") else "cpu"
    found = EnvStore(tmp_path_factory.mktemp("home"), Launcher(), lambda _: None, kind=kind)
    yield found
    found.close()


@pytest.fixture(scope="module", params=ENGINES)
def env(request: pytest.FixtureRequest, store: EnvStore, engine_env: FindPython) -> EngineEnv:
    return store.add(f"my-{request.param}", request.param, engine_env(request.param))


@pytest.fixture(scope="module")
def first_digest() -> dict[str, str]:
    """Of the prompts, by model: the first engine writes it, the others must agree."""
    return {}


def resolve(home: Path, ref: ModelRef, env: EngineEnv) -> ModelInfo:
    return ModelStore(home, Launcher(), lambda _: None).resolve(ref, env)


def tokenised(home: Path, source: PromptSource, model: ModelInfo, env: EngineEnv) -> PromptSet:
    return tokenise(read(source, home), model, source, env, Launcher(), home=home)


def test_an_environment_is_checked_and_its_model_and_prompts_are_read(
    store: EnvStore, env: EngineEnv, model: str, tmp_path: Path, first_digest: dict[str, str]
) -> None:
    assert store.check(env.name).drift == ()
    assert env.fingerprint.packages.keys() >= {"torch", "transformers", "tokenizers", "numpy"}

    info = resolve(tmp_path, ModelRef("path", model), env)
    config = json.loads((Path(model) / "config.json").read_text())
    assert info.context_length == config["max_position_embeddings"]
    assert set(info.stop_token_ids) >= {config["eos_token_id"]}
    assert info.kv_bytes_per_token

    found = tokenised(tmp_path, SOURCE, info, env)
    assert found.templated
    assert found == tokenised(tmp_path, SOURCE, info, env)
    assert first_digest.setdefault(info.digest, found.digest) == found.digest
    assert list((tmp_path / "logs").iterdir()) == []


def test_the_template_setting_is_obeyed(env: EngineEnv, model: str, tmp_path: Path) -> None:
    info = resolve(tmp_path, ModelRef("path", model), env)
    plain = PromptSource(None, ("hello",), "off")
    templated = tokenised(tmp_path, PromptSource(None, ("hello",), "on"), info, env)
    bare = tokenised(tmp_path, plain, info, env)
    assert templated.templated
    assert not bare.templated
    assert len(unpack_ids(bare.prompts[0].token_ids)) < len(unpack_ids(templated.prompts[0].token_ids))
    ended = tokenised(tmp_path, PromptSource(None, ("hello<|im_end|>",), "off"), info, env)
    assert "stop token" in ended.warnings[0]


def test_a_model_without_a_template_refuses_chats(env: EngineEnv, model: str, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.jinja"), copy_function=os.symlink)
    info = resolve(tmp_path, ModelRef("path", str(folder)), env)
    with pytest.raises(InputError) as caught:
        tokenised(tmp_path, SOURCE, info, env)
    assert [problem.key for problem in caught.value.problems] == ["prompt chat", "prompt begun"]


def test_a_model_of_the_hub_comes_from_the_cache_when_offline(
    env: EngineEnv, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(model, repo / "snapshots" / commit, copy_function=os.symlink)
    info = resolve(tmp_path, ModelRef("hub", "org/name"), env)
    assert (info.name, info.revision, info.path) == ("org/name", commit, str(repo / "snapshots" / commit))
    assert info.digest == resolve(tmp_path, ModelRef("path", info.path), env).digest
    with pytest.raises(InputError, match="org/other: its main revision is not in the local cache, and HF_HUB_OFFLINE"):
        resolve(tmp_path, ModelRef("hub", "org/other"), env)
