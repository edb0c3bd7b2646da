from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nvml.fakedriver import FakeDriver, build, compiler


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        why = "no C compiler for the stand-in of NVIDIA's driver"
        (pytest.fail if os.environ.get("AIRLOCK_TEST_ENGINES") == "required" else pytest.skip)(why)
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> FakeDriver:
    """A machine without GPUs until it is told of some."""
    fake = FakeDriver(library, tmp_path / "nvml.txt")
    fake.clear("")
    return fake
