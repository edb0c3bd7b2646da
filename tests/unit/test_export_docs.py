"""docs/exports.md says what the code does: its tables are made by it, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.exports.columns import SCHEMA_VERSION
from orchestrator.exports.documented import renewed
from orchestrator.exports.tables import TABLES
from tests.unit.rundirs import finished_run

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "exports.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert renewed(PAGE) == PAGE, "python -m orchestrator.exports.documented docs/exports.md renews them"


def test_every_column_is_in_it() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {column.name for table in TABLES.values() for column in table.columns} <= named
    assert f"The schema's version is {SCHEMA_VERSION}." in PAGE


def test_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for library in ("pyarrow", "pandas", "polars"):
        pytest.importorskip(library)
    for name in ("mine", "later"):
        finished_run(tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/exports.md", "exec"), {})
    said = capsys.readouterr().out
    assert "setting_batch_size" in said
    assert all(name in said for name in ("mine", "later", "vllm_fa"))
