"""Files of prompts as the tests of their readers write them, and what comes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import parse
from orchestrator.definition.inputs import SCRIPTED, PromptSet
from orchestrator.definition.promptuse import PromptSource
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.stores.prompts import Gathered, read, tokenise


def source_of(**options: Any) -> PromptSource:
    """`prompts` as a sweep file has it, in its fourth line."""
    text = f"name: a\nmodel: scripted\nmethods: [scripted]\nprompts: {json.dumps(options)}\n"
    return parse(text, "s.yaml").prompts


def gathered(folder: Path, name: str, data: str | bytes, **options: Any) -> Gathered:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return read(source_of(file=name, **options), folder)


def tokenised(folder: Path, name: str, data: str | bytes, **options: Any) -> PromptSet:
    found = gathered(folder, name, data, **options)
    return tokenise(found, SCRIPTED, source_of(file=name, **options), None, Launcher(), home=folder)


def said(folder: Path, name: str, data: str | bytes, **options: Any) -> list[dict[str, Any]]:
    """Each prompt with its id."""
    return [{"id": one.id, **one.source()} for one in gathered(folder, name, data, **options).prompts]


def refusals(folder: Path, name: str, data: str | bytes, **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        gathered(folder, name, data, **options)
    return [str(problem) for problem in caught.value.problems]


def json_lines(*values: Any) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
