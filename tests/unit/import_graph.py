"""Who imports whom, read from the source alone, and the rules that hold for it.

Each rule takes the modules and gives sentences about what breaks it, so that
the tests can also show each of them a package that does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OURS = ("protocol", "workers", "orchestrator")
STDLIB = frozenset(sys.stdlib_module_names)
WIRE = frozenset({"msgpack", "msgspec"})
PURE = (
    *("config", "methods", "plan", "schedule", "lifecycle", "events", "outcomes", "progress"),
    *(
        "definition.acting",
        "definition.attentions",
        "definition.builtin",
        "definition.enginewords",
        "definition.fits",
        "definition.requirements",
    ),
    *(
        "definition.fields",
        "definition.grid",
        "definition.inputs",
        "definition.memory",
        "definition.modality",
        "definition.ownmethods",
    ),
    *("definition.schema", "definition.sections", "definition.sizes", "definition.sources", "definition.sweepfile"),
    *("definition.promptsource", "definition.promptuse"),
    *("readers.choice", "readers.delimited", "readers.draws", "readers.fields", "readers.found", "readers.jsontext"),
    *("readers.lines", "readers.mapping", "readers.shapes", "readers.shaping", "readers.tally"),
    *("definition.chosen", "definition.hints", "definition.overrides", "definition.spelling", "definition.yamlwords"),
    *("definition.clusteruse", "definition.devicefits", "definition.deviceuse", "definition.durations"),
    *("definition.notifyuse", "definition.webaddress", "notify.message"),
    *("harness.arguments", "harness.calls"),
    *("definition.endpoint", "definition.need"),
    *("clusters.allocations", "clusters.raywords", "clusters.slurmwords", "record.output"),
    *("judge.agreement", "judge.fairness", "judge.findings", "judge.ran"),
    *("definition.judging", "judge.answerkeys", "judge.answers", "view.scores", "view.shares", "view.pareto"),
    *("exports.columns", "exports.textual", "exports.values"),
    *("run.causes", "run.joining", "run.life", "run.recording", "run.transitions"),
    *("run.cpusets", "run.dominated", "run.forecast", "run.paces", "run.timing"),
    *("page.plots", "page.rendered", "page.theme", "view.planned", "view.timeline"),
)
#: What reaches outside the process or reads a clock.
IMPURE = frozenset(
    {"asyncio", "ctypes", "fcntl", "glob", "http", "io", "logging", "mmap", "multiprocessing", "os", "psutil"}
    | {"pynvml", "resource", "rich", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile"}
    | {"threading", "time", "urllib", "zmq"}
)
HEAVY = frozenset({"torch", "transformers", "vllm", "sglang", "accelerate", "tensorflow", "jax"})
TRACKERS = frozenset({"mlflow", "wandb"})
#: A model of lm-evaluation-harness, in its process.
HARNESS_MODEL = "orchestrator.harness.model"
#: New in 3.11 or later, which no parser finds.
TOO_NEW = frozenset(
    {"tomllib", "contextlib.chdir", "datetime.UTC", "enum.StrEnum", "itertools.batched", "typing.LiteralString"}
    | {"typing.Never", "typing.NotRequired", "typing.Required", "typing.Self", "typing.Unpack", "typing.override"}
    | {"typing.assert_never", "typing.assert_type", "typing.reveal_type", "asyncio.TaskGroup", "asyncio.timeout"}
)


@dataclass(frozen=True)
class Import:
    """`name` is dotted, with what is taken from it: "msgspec.structs.replace".
    `top`: it runs when the module is imported."""

    name: str
    line: int
    top: bool

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    def at(self, found: Import) -> str:
        return f"{self.name}:{found.line} imports {found.name}"


Modules = Mapping[str, Module]


def read(root: Path) -> dict[str, Module]:
    """Every module of our packages. The plugins are distributions of their own."""
    paths = [path for package in OURS for path in sorted((root / package).rglob("*.py")) if "plugins" not in path.parts]
    modules = (parse(module_name(path.relative_to(root)), path.read_text(encoding="utf-8")) for path in paths)
    return {module.name: module for module in modules}


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def parse(name: str, source: str) -> Module:
    tree = ast.parse(source, filename=name)
    return Module(name, tree, tuple(imports_of(tree)))


def imports_of(tree: ast.Module) -> Iterator[Import]:
    yield from _imports(tree.body, top=True)


def _imports(body: Iterable[ast.AST], top: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: names are absolute here"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno, top) for alias in node.names)
        else:
            inner = (
                top
                and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                and not for_types(node)
            )
            yield from _imports(ast.iter_child_nodes(node), inner)


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def within(modules: Modules, package: str) -> list[Module]:
    return [m for m in modules.values() if m.name == package or m.name.startswith(f"{package}.")]


def reachable(modules: Modules, start: str) -> list[Module]:
    """`start` and all of ours that importing it brings in."""
    todo, seen = [start], dict[str, Module]()
    while todo:
        name = todo.pop()
        if name not in seen and name in modules:
            seen[name] = modules[name]
            followed = [i for i in modules[name].imports if i.top]
            todo += [target for found in followed for target in targets(modules, found)]
    return list(seen.values())


def targets(modules: Modules, found: Import) -> list[str]:
    """The modules of ours behind one import: "a.b.c" may be module a.b.c or name c of a.b."""
    return [name for name in (found.name, found.name.rpartition(".")[0]) if name in modules]


# --- rules ----------------------------------------------------------------


def protocol_is_small(modules: Modules) -> list[str]:
    allowed = STDLIB | WIRE | {"protocol"}
    return [
        m.at(i)
        for m in within(modules, "protocol")
        for i in m.imports
        if i.root not in (allowed | {"zmq"} if m.name in ("protocol.channel", "protocol.porter") else allowed)
    ]


def workers_start_without_an_engine(modules: Modules) -> list[str]:
    allowed = STDLIB | WIRE | {"protocol", "workers", "psutil"}
    return [m.at(i) for m in within(modules, "workers") for i in m.imports if i.top and i.root not in allowed]


def workers_never_know_the_orchestrator(modules: Modules) -> list[str]:
    return [
        m.at(i)
        for p in ("workers", "protocol")
        for m in within(modules, p)
        for i in m.imports
        if i.root == "orchestrator"
    ]


def an_engine_is_imported_by_its_own_backend_only(modules: Modules) -> list[str]:
    return [
        m.at(i)
        for m in within(modules, "workers")
        for i in m.imports
        if i.root in ("vllm", "sglang")
        and not m.name.startswith(f"workers.backends.{i.root}_")
        and m.name != "workers.tools.probe"  # whose job it is
    ]


def tools_start_with_the_standard_library(modules: Modules) -> list[str]:
    """A tool may be what finds out that something is missing; `runner` and what it needs must not need that."""
    runner = reachable(modules, "workers.tools.runner")
    return [m.at(i) for m in runner for i in m.imports if i.top and i.root not in STDLIB | {"workers"}]


def orchestrator_never_imports_workers(modules: Modules) -> list[str]:
    return [m.at(i) for m in within(modules, "orchestrator") for i in m.imports if i.root == "workers"]


def orchestrator_never_imports_an_engine(modules: Modules) -> list[str]:
    """One module is read by the harness's process alone, for the tokenizer; what reads it does so when it is called."""
    found = [
        (m, i) for m in within(modules, "orchestrator") for i in m.imports if i.root in HEAVY or i.name == HARNESS_MODEL
    ]
    allowed = {(HARNESS_MODEL, "transformers"): True, ("orchestrator.harness.command", "orchestrator"): False}
    return [m.at(i) for m, i in found if allowed.get((m.name, i.root)) is not i.top]


def pure_modules_have_no_effects(modules: Modules) -> list[str]:
    """All that a pure module brings in counts as well."""
    found = {m.name: m for name in PURE for m in reachable(modules, f"orchestrator.{name}")}
    missing = [f"orchestrator.{name} does not exist" for name in PURE if f"orchestrator.{name}" not in modules]
    imports = [m.at(i) for m in found.values() for i in m.imports if impure(i)]
    return (
        missing + imports + [f"{m.name}:{line} calls {name}" for m in found.values() for line, name in effects(m.tree)]
    )


def impure(found: Import) -> bool:
    return found.root in IMPURE or (found.root == "pathlib" and not found.name.startswith("pathlib.Pure"))


def effects(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print")
        ):
            yield node.lineno, node.func.id


def report_is_a_pure_read(modules: Modules) -> list[str]:
    if "orchestrator.report" not in modules:
        return ["orchestrator.report does not exist"]
    forbidden = {"orchestrator.supervisor", "orchestrator.launcher", "orchestrator.reaper", "orchestrator.warden"}
    return [
        f"orchestrator.report reaches {m.name}"
        for m in reachable(modules, "orchestrator.report")
        if m.name in forbidden
    ]


def a_sweep_exports_nothing(modules: Modules) -> list[str]:
    return [
        f"orchestrator.run.sweep reaches {m.name}"
        for m in reachable(modules, "orchestrator.run.sweep")
        if m.name.startswith("orchestrator.exports.")
    ]


def trackers_have_processes_of_their_own(modules: Modules) -> list[str]:
    """Where nothing but the standard library is known to be there, and none of ours."""
    sides: dict[bool, list[Module]] = {True: [], False: []}
    for module in within(modules, "orchestrator"):
        sides[module.name.startswith("orchestrator.exports.child")].append(module)
    theirs = [m.at(i) for m in sides[True] for i in m.imports if i.root not in STDLIB | (set() if i.top else TRACKERS)]
    return theirs + [m.at(i) for m in sides[False] for i in m.imports if i.root in TRACKERS]


def runs_on_python_3_10(modules: Modules) -> list[str]:
    sides = [m for package in ("workers", "protocol") for m in within(modules, package)]
    return [m.at(i) for m in sides for i in m.imports if i.name in TOO_NEW or i.root in TOO_NEW]
