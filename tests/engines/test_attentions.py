"""The attentions that a sweep file may name are those that the recipes' versions of the engines know, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.definition.attentions import KNOWN
from tests.engines.conftest import FindPython
from tests.engines.driver import ANSWER_S

pytestmark = pytest.mark.engine

#: What leaves an engine's own names in `names`. "paged|eager" is eager on a paged cache, which is no name of its own.
ASKING = {
    "hf": """
from transformers import AttentionInterface
names = {"eager", *(name.removeprefix("paged|") for name in AttentionInterface().valid_keys())}
""",
    "vllm": """
from vllm.v1.attention.backends.registry import AttentionBackendEnum
names = AttentionBackendEnum.__members__
""",
    "sglang": """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
names = next(one.choices for one in parser._actions if "--attention-backend" in one.option_strings)
""",
}


def names_of(python: str, engine: str, answer: Path) -> list[str]:
    """As it says itself, in a process of its own; what it prints meanwhile is no answer."""
    script = f"{ASKING[engine]}\nimport json, sys\njson.dump(list(names), open(sys.argv[1], 'w'))\n"
    subprocess.run([python, "-c", script, str(answer)], timeout=ANSWER_S, stdout=sys.stderr, check=True)
    return [str(name) for name in json.loads(answer.read_text())]


@pytest.mark.parametrize("engine", KNOWN)
def test_the_list_holds_what_the_engine_knows(engine_env: FindPython, tmp_path: Path, engine: str) -> None:
    found = set(names_of(engine_env(engine), engine, tmp_path / "names.json"))
    listed = set(KNOWN[engine])
    assert found, f"{engine} names no attention at all"
    assert len(listed) == len(KNOWN[engine]), "a name stands there once"
    lacking, unknown = sorted(found - listed), sorted(listed - found)
    assert not lacking + unknown, f"{engine} knows {lacking} and the list does not; the list {unknown} and it does not"
