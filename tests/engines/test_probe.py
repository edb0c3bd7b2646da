"""The probe in each real environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.conftest import FindPython
from tests.engines.driver import run_tool

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_tells_the_versions_that_matter(engine_env: FindPython, tmp_path: Path, engine: str) -> None:
    request, response = tmp_path / "request.json", tmp_path / "response.json"
    request.write_text(json.dumps({"engine": engine}))
    assert run_tool(engine_env(engine), "probe", request, response) == 0
    result = json.loads(response.read_text())["result"]
    assert {"torch", "transformers", "python"} <= result["versions"].keys()
    assert result["engine_version"]
    assert result["device"] in ("cpu", "cuda")


def test_gives_the_cause_where_the_engine_is_missing(engine_env: FindPython, tmp_path: Path) -> None:
    request, response = tmp_path / "request.json", tmp_path / "response.json"
    request.write_text(json.dumps({"engine": "vllm"}))
    assert run_tool(engine_env("hf"), "probe", request, response) != 0
    error = json.loads(response.read_text())["error"]
    assert (error["type"], "vllm" in error["message"]) == ("ModuleNotFoundError", True)
