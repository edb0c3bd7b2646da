"""Where in the sweep file each value stands, for what is found wrong once the file is read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.definition.sweepfile import Node, by_line
from orchestrator.errors import Problem

_FIELDS = ("settings", "sampling", "matrix", "zip")


@dataclass(frozen=True)
class Places:
    """Positions, "sweep.yaml:12" or "--set a.b=1", by key path; `methods` gives the key of each method by name."""

    source: str
    at: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Node, source: str) -> Places:
        methods = root.value.get("methods")
        return cls(source, dict(_walk(root, "")), {} if methods is None else dict(method_keys(methods)))

    def where(self, key: str) -> str:
        """Of the value at `key`, or of the innermost that holds it."""
        while key and key not in self.at:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self.at.get(key, self.source)

    def problem(self, key: str, message: str, suggestion: str = "") -> Problem:
        return Problem(self.where(key), key, message, suggestion)

    def of_method(self, name: str, message: str) -> Problem:
        return self.problem(self.methods.get(name, "methods"), f"{name}: {message}")

    def of_field(self, name: str, message: str, suggestion: str = "") -> Problem:
        """`name` is a field of settings or sampling, wherever the file gives it."""
        keys = (f"{section}.{name}" for section in _FIELDS)
        return self.problem(next((key for key in keys if key in self.at), name), message, suggestion)

    def ordered(self, problems: Iterable[Problem]) -> list[Problem]:
        """The sweep file's by line, then what came from the command line, then other files' by line; each once."""
        distinct = list(dict.fromkeys(problems))
        ours = [p for p in distinct if p.where == self.source or p.where.startswith((f"{self.source}:", "--set "))]
        return by_line(ours) + by_line(p for p in distinct if p not in set(ours))


def _walk(node: Node, key: str) -> Iterator[tuple[str, str]]:
    if key:
        yield key, node.where
    if isinstance(node.value, dict):
        for name, part in node.value.items():
            yield from _walk(part, f"{key}.{name}" if key else name)
    elif isinstance(node.value, list):
        for n, part in enumerate(node.value):
            yield from _walk(part, f"{key}[{n}]")


def method_keys(methods: Node) -> Iterator[tuple[str, str]]:
    """The names in a list of methods, right or wrong, each with its key."""
    for n, entry in enumerate(methods.value if isinstance(methods.value, list) else [methods]):
        name = entry.value.get("name", entry).value if isinstance(entry.value, dict) else entry.value
        if isinstance(name, str):
            yield name, f"methods[{n}]"
