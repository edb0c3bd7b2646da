"""Where real engines are: an interpreter for each, and one small model.

AIRLOCK_TEST_PYTHON_HF, _VLLM, _SGLANG and AIRLOCK_TEST_MODEL name them; a test
whose engine is not named is skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

EngineEnv = Callable[[str], str]

TOKENIZE = """
import json, sys
from transformers import AutoTokenizer
path, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(path)
chats = [[{"role": "user", "content": text}] for text in texts]
ids = [list(tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"]) for c in chats]
print("ids:" + json.dumps({"prompts": ids, "stop": [tokenizer.eos_token_id]}))
"""
TEXTS = {
    "capital": "What is the capital of France?",
    "sum": "What is 2 + 3? Answer with one number.",
    "colours": "Name the three primary colours.",
    "repeat": "Repeat after me, word for word: one two three four one two three four one two three four",
}


@dataclass(frozen=True)
class Prompts:
    """Token ids by prompt id, and the model's stop ids."""

    ids: dict[str, list[int]]
    stop: list[int]


@pytest.fixture(scope="session")
def engine_env() -> EngineEnv:
    """The interpreter of an engine; skips the test if there is none."""

    def find(engine: str) -> str:
        variable = f"AIRLOCK_TEST_PYTHON_{engine.upper()}"
        if not os.environ.get(variable):
            pytest.skip(f"{variable} does not name an interpreter with {engine}")
        return os.environ[variable]

    return find


@pytest.fixture(scope="session")
def model() -> str:
    if not os.environ.get("AIRLOCK_TEST_MODEL"):
        pytest.skip("AIRLOCK_TEST_MODEL does not name a model folder")
    return os.environ["AIRLOCK_TEST_MODEL"]


@pytest.fixture(scope="session")
def prompts(model: str) -> Prompts:
    """Tokenised once, in whichever engine's interpreter there is, for all engines."""
    python = next(filter(None, (os.environ.get(f"AIRLOCK_TEST_PYTHON_{e}") for e in ("HF", "VLLM", "SGLANG"))), None)
    if python is None:
        pytest.skip("no interpreter with a tokenizer")
    command = [python, "-c", TOKENIZE, model, json.dumps(list(TEXTS.values()))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("ids:"))[4:])
    return Prompts(dict(zip(TEXTS, found["prompts"], strict=True)), found["stop"])
