"""The import rules of the design hold for the code as it is, and each rule can be broken."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import import_graph as graph
from tests.unit.import_graph import Modules, parse, read

ROOT = Path(__file__).resolve().parents[2]
MODULES = read(ROOT)

Rule = Callable[[Modules], list[str]]
RULES: list[Rule] = [
    graph.protocol_is_small,
    graph.workers_start_without_an_engine,
    graph.workers_never_know_the_orchestrator,
    graph.an_engine_is_imported_by_its_own_backend_only,
    graph.tools_start_with_the_standard_library,
    graph.orchestrator_never_imports_workers,
    graph.orchestrator_never_imports_an_engine,
    graph.pure_modules_have_no_effects,
    graph.report_is_a_pure_read,
    graph.a_sweep_exports_nothing,
    graph.trackers_have_processes_of_their_own,
    graph.runs_on_python_3_10,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    assert rule(MODULES) == []


def test_all_of_it_was_read() -> None:
    assert {"protocol.codec", "workers.bootstrap", "workers.backends.base", "orchestrator.lifecycle"} <= set(MODULES)
    assert all("plugins" not in name for name in MODULES)


@pytest.mark.parametrize(
    "path", [p for d in ("protocol", "workers") for p in sorted((ROOT / d).rglob("*.py"))], ids=str
)
def test_syntax_of_python_3_10(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


PURE_STUBS = {f"orchestrator.{name}": "" for name in graph.PURE}
BROKEN: list[tuple[Rule, dict[str, str], str]] = [
    (graph.protocol_is_small, {"protocol.codec": "import zmq"}, "protocol.codec:1 imports zmq"),
    (graph.protocol_is_small, {"protocol.x": "def f():\n import psutil"}, "protocol.x:2 imports psutil"),
    (graph.protocol_is_small, {"protocol.x": "from workers import session"}, "protocol.x:1 imports workers.session"),
    (graph.workers_start_without_an_engine, {"workers.x": "import torch"}, "workers.x:1 imports torch"),
    (graph.workers_start_without_an_engine, {"workers.x": "try:\n import zmq\nexcept E: 0"}, "workers.x:2 imports zmq"),
    (graph.workers_start_without_an_engine, {"workers.x": "class A:\n import vllm"}, "workers.x:2 imports vllm"),
    (
        graph.workers_never_know_the_orchestrator,
        {"workers.x": "def f():\n from orchestrator import errors"},
        "workers.x:2 imports orchestrator.errors",
    ),
    (
        graph.an_engine_is_imported_by_its_own_backend_only,
        {"workers.backends.hf_backend": "def f():\n import vllm"},
        "workers.backends.hf_backend:2 imports vllm",
    ),
    (
        graph.tools_start_with_the_standard_library,
        {"workers.tools.runner": "from workers.y import z", "workers.y": "import msgspec"},
        "workers.y:1 imports msgspec",
    ),
    (
        graph.orchestrator_never_imports_workers,
        {"orchestrator.x": "async def f():\n import workers.session"},
        "orchestrator.x:2 imports workers.session",
    ),
    (
        graph.orchestrator_never_imports_an_engine,
        {"orchestrator.x": "def f(): import torch.cuda"},
        "orchestrator.x:1 imports torch.cuda",
    ),
    (
        graph.pure_modules_have_no_effects,
        {**PURE_STUBS, "orchestrator.plan": "import os"},
        "orchestrator.plan:1 imports os",
    ),
    (
        graph.pure_modules_have_no_effects,
        {**PURE_STUBS, "orchestrator.plan": "from orchestrator.y import z", "orchestrator.y": "def f():\n import time"},
        "orchestrator.y:2 imports time",
    ),
    (
        graph.pure_modules_have_no_effects,
        {**PURE_STUBS, "orchestrator.config": "from pathlib import Path"},
        "orchestrator.config:1 imports pathlib.Path",
    ),
    (
        graph.pure_modules_have_no_effects,
        {**PURE_STUBS, "orchestrator.config": "x = open('y')"},
        "orchestrator.config:1 calls open",
    ),
    (
        graph.pure_modules_have_no_effects,
        {
            **PURE_STUBS,
            "orchestrator.plan": "from orchestrator.models import find",
            "orchestrator.models": "import os",
        },
        "orchestrator.models:1 imports os",
    ),
    (graph.pure_modules_have_no_effects, dict.fromkeys(list(PURE_STUBS)[1:], ""), "orchestrator.config does not exist"),
    (
        graph.report_is_a_pure_read,
        {
            "orchestrator.report": "from orchestrator import y",
            "orchestrator.y": "import orchestrator.supervisor",
            "orchestrator.supervisor": "",
        },
        "orchestrator.report reaches orchestrator.supervisor",
    ),
    (
        graph.a_sweep_exports_nothing,
        {
            "orchestrator.run.sweep": "from orchestrator import y",
            "orchestrator.y": "from orchestrator.exports import frames",
            "orchestrator.exports.frames": "",
        },
        "orchestrator.run.sweep reaches orchestrator.exports.frames",
    ),
    (
        graph.trackers_have_processes_of_their_own,
        {"orchestrator.exports.tracking": "def f():\n import mlflow"},
        "orchestrator.exports.tracking:2 imports mlflow",
    ),
    (
        graph.trackers_have_processes_of_their_own,
        {"orchestrator.exports.child_mlflow": "from orchestrator import errors\ndef f():\n import mlflow"},
        "orchestrator.exports.child_mlflow:1 imports orchestrator.errors",
    ),
    (graph.runs_on_python_3_10, {"workers.x": "from enum import StrEnum"}, "workers.x:1 imports enum.StrEnum"),
]


@pytest.mark.parametrize(("rule", "sources", "sentence"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_can_be_broken(rule: Rule, sources: dict[str, str], sentence: str) -> None:
    assert rule({name: parse(name, source) for name, source in sources.items()}) == [sentence]


def test_every_rule_was_broken() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_what_is_imported_in_functions_and_for_types_is_not_imported_at_the_top() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import torch\ndef f():\n import vllm\n"
    assert [(i.root, i.top) for i in parse("x", source).imports] == [
        ("typing", True),
        ("torch", False),
        ("vllm", False),
    ]
