"""This program has two names. Messages use the one that was typed; documents and examples use the short one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.called import MODULE, SCRIPT, command
from tests.unit.documents import DOCUMENTS, REPO, name_of

PACKAGES = ("orchestrator", "protocol", "workers")
#: Of modules that are run by themselves the name goes on.
SPELLED_OUT = re.compile(
    rf"{MODULE}(?![.\w])|`{SCRIPT} |(?:^|\s){SCRIPT} (?:sweep|report|status|plan|watch|env|methods)\b"
)
EXPLAINED = {"README.md": f"`{SCRIPT}` is short for `{MODULE}`"}


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/venv/bin/airlock", "report"], SCRIPT),
        (["airlock"], SCRIPT),
        (["/repo/orchestrator/__main__.py", "sweep", "airlock"], MODULE),
        (["/venv/bin/pytest"], MODULE),
        (["-c"], MODULE),
        ([""], MODULE),
        ([], MODULE),
    ],
)
def test_the_name_is_the_one_that_was_typed(argv: list[str], name: str) -> None:
    assert command(argv) == name


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What it can say: its strings, without docstrings and comments."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def test_no_message_spells_a_name_out() -> None:
    paths = [path for package in PACKAGES for path in sorted((REPO / package).rglob("*.py"))]
    found = [
        f"{name_of(path)}:{line}: {text!r}"
        for path in paths
        if path != REPO / "orchestrator" / "called.py"
        for line, text in texts(path)
        if SPELLED_OUT.search(text)
    ]
    assert found == [], "COMMAND of orchestrator.called is what was typed"


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("`airlock methods` lists them", True),
        ("python -m orchestrator report RUN", True),
        ("to go on: airlock sweep …", True),
        ("python -m orchestrator.serve.errands", False),
        ("airlock: 1 problem in the input", False),
    ],
)
def test_what_counts_as_spelled_out(text: str, bad: bool) -> None:
    assert bool(SPELLED_OUT.search(text)) is bad


@pytest.mark.parametrize("path", [*DOCUMENTS, *sorted((REPO / "examples").iterdir())], ids=name_of)
def test_documents_use_the_short_name(path: Path) -> None:
    """The long one is explained once."""
    text = path.read_text(encoding="utf-8")
    explained = EXPLAINED.get(name_of(path), "")
    assert explained in text
    assert not re.search(rf"{MODULE}(?![.\w])", text.replace(explained, "", 1) if explained else text)
