"""What docs/prompts.md shows is read as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.definition.promptuse import CONTAINERS, DISTRIBUTIONS, SHAPES, Columns, Filter
from tests.unit.promptfiles import gathered

GUIDE = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
SHOWN = {
    name: re.sub("^    ", "", block, flags=re.MULTILINE)
    for name, block in re.findall(r"^`(\w+)`:(?:[^\n]+\n)+\n((?:    [^\n]*\n)+)", GUIDE, re.MULTILINE)
}
YAML = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


def test_each_format_is_shown() -> None:
    assert set(SHOWN) == {"jsonl", *SHAPES}
    for name in (*CONTAINERS, *SHAPES, *DISTRIBUTIONS, *Columns.__struct_fields__, *Filter.__struct_fields__):
        assert name in GUIDE


@pytest.mark.parametrize("form", sorted(SHOWN))
def test_a_format_is_read_as_it_is_shown(tmp_path: Path, form: str) -> None:
    found = gathered(tmp_path, "p.json", SHOWN[form], format=form)
    assert len(found.prompts) == found.tally.read > 0


def test_the_table_is_read_as_it_is_shown(tmp_path: Path) -> None:
    (table,) = re.findall(r"((?:    [^\n]*\n)+)", GUIDE[GUIDE.index("    question,answer") :])[:1]
    found = gathered(tmp_path, "p.csv", table.replace("    ", ""), columns={"prompt": "question", "expected": "answer"})
    assert [one.text for one in found.prompts] == ['What is "KV" short for?', "Two lines,\none cell"]


@pytest.mark.parametrize("block", YAML)
def test_each_sweep_file_is_one(block: str) -> None:
    assert parse(f"name: a\nmodel: demo\nmethods: [hf_sdpa]\n{block}", "s.yaml").prompts
