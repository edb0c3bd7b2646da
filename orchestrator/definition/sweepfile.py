"""A sweep file as a tree of values that know where they stand: text in, nodes out.

Covers YAML itself: syntax, duplicate keys, anchors and merge keys, text that is
not clean Unicode. Knows nothing of what the keys mean.
Pure: every fault becomes a Problem in the collector that the caller passes in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as RawNode

from orchestrator.definition.spelling import clean, short, shown
from orchestrator.definition.yamlwords import syntax
from orchestrator.errors import Problem

#: A file that grows past this through its aliases is a mistake or an attack, not a sweep.
MAX_NODES = 500_000
#: What is written down, compared and sent is walked by functions that call themselves.
MAX_DEPTH = 100
#: For each so many in its path a value counts once more: paths are kept, and a long name may be repeated by aliases.
_KEY_CHARACTERS = 200

_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Node:
    """One value and where it stands, "sweep.yaml:12" or "--set a.b=1"."""

    value: Any  # dict[str, Node] | list[Node] | str | int | float | bool | None
    where: str

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value


def wrap(value: Any, where: str) -> Node:
    """The inverse of `Node.plain`, everything standing at one place."""
    if isinstance(value, dict):
        return Node({k: wrap(v, where) for k, v in value.items()}, where)
    return Node([wrap(v, where) for v in value] if isinstance(value, list) else value, where)


@dataclass
class Problems:
    """Collects what is wrong, so that the user sees all of it at once.

    said  how often something was: what it rose by belongs to what was read meanwhile, told before or not
    """

    found: list[Problem] = field(default_factory=list)
    said: int = 0
    _known: set[Problem] = field(default_factory=set)
    _unread: set[tuple[str, str]] = field(default_factory=set)

    def add(self, where: str, key: str, message: str, suggestion: str = "") -> None:
        self.said += 1
        problem = Problem(where, key, message, suggestion)
        if problem not in self._known and (where, key) not in self._unread:
            self._known.add(problem)
            self.found.append(problem)

    def unreadable(self, where: str, key: str, message: str, suggestion: str = "") -> None:
        """As `add`, of a value that a substitute stands for from now on: whatever is wrong with that is not told."""
        self.add(where, key, message, suggestion)
        self._unread.add((where, key))

    def unread(self, node: Node, key: str) -> bool:
        """Whether a substitute stands there, of which all is told."""
        known = (node.where, key) in self._unread
        self.said += known
        return known

    def ordered(self) -> list[Problem]:
        """By line; what came from the command line last."""
        return by_line(self.found)


def by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=_line)


def load(text: str, source: str, problems: Problems) -> Node | None:
    """The tree of one YAML document, or None where it can't be read at all."""
    try:
        raw = _composed(text)
        return None if raw is None else _Reader(source, problems).node(raw, "", None)
    except _Beyond as exc:
        problems.add(exc.where, "", str(exc))
    except RecursionError:
        problems.add(source, "", _TOO_DEEP)
    except YAMLError as exc:
        line, message, hint = syntax(exc, text)
        problems.add(f"{source}:{line}" if line else source, "", f"not valid YAML: {message}", hint)
    return None


def fragment(text: str, where: str, key: str, problems: Problems) -> Node:
    """A value given apart from the file; null where there is none, and beside a problem."""
    try:
        raw = _composed(text)
        return Node(None, where) if raw is None else _Reader("", problems, place=where).node(raw, key, None)
    except YAMLError as exc:
        problems.add(where, "", f"the value is not valid YAML: {syntax(exc, text).message}")
    except (RecursionError, _Beyond) as exc:
        problems.add(where, "", f"the value {exc if isinstance(exc, _Beyond) else _TOO_DEEP}")
    return Node(None, where)


def _composed(text: str) -> RawNode | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it: an alias means the last one above it
        return cast(RawNode | None, YAML(typ="safe", pure=True).compose(text))


_TOO_DEEP = "is nested too deeply, or an anchor holds an alias of itself"


class _Beyond(Exception):
    """More nodes than any sweep has, or deeper ones."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


class _Reader:
    """Turns ruamel's nodes into ours; counts them, since aliases can multiply without end."""

    def __init__(self, source: str, problems: Problems, place: str | None = None) -> None:
        self._source = source
        self._problems = problems
        self._place = place
        self._left = MAX_NODES
        self._depth = 0
        self._lines: dict[int, str] = {}

    def node(self, raw: RawNode, key: str, where: str | None) -> Node:
        where = where or self._where(raw)
        self._count(key)
        if not isinstance(raw, ScalarNode) and str(raw.tag) not in _PLAIN:
            self._refuse_tag(raw, key, where)
        if isinstance(raw, ScalarNode):
            return Node(self._scalar(raw, key, where), where)
        if self._depth == MAX_DEPTH:
            raise _Beyond(where, _TOO_DEEP)
        self._depth += 1
        value = self._mapping(raw, key) if isinstance(raw, MappingNode) else self._sequence(raw, key)
        self._depth -= 1
        return Node(value, where)

    def _sequence(self, raw: RawNode, key: str) -> list[Node]:
        return [self.node(item, f"{key}[{n}]", None) for n, item in enumerate(raw.value)]

    def _count(self, key: str) -> None:
        self._left -= 1 + len(key) // _KEY_CHARACTERS
        if self._left < 0:
            message = f"has more than {MAX_NODES} values once its aliases are filled in"
            raise _Beyond(self._place or self._source, message)

    def _where(self, raw: RawNode) -> str:
        line = raw.start_mark.line + 1
        return self._place or self._lines.setdefault(line, f"{self._source}:{line}")

    def _mapping(self, raw: MappingNode, key: str) -> dict[str, Node]:
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for name_node, value in raw.value:
            where = self._where(name_node)
            if name_node.tag == _MERGE:
                merged = {**self._merge(value, key, where), **merged}
                continue
            name = self._name(name_node, key, where)
            if name is None:
                continue
            if name in own:
                self._problems.add(where, _join(key, name), f"is given twice, first at {own[name].where}")
            own[name] = self.node(value, _join(key, name), where)
        return {**merged, **own}

    def _merge(self, value: RawNode, key: str, where: str) -> dict[str, Node]:
        sources = value.value if isinstance(value, SequenceNode) else [value]
        merged: dict[str, Node] = {}
        for source in sources:
            if not isinstance(source, MappingNode):
                self._problems.add(where, _join(key, "<<"), "must name a mapping, or a list of mappings")
                continue
            # Counted although it adds no value: merged mappings that merge others twice double with each level.
            self._count(key)
            merged = {**self._mapping(source, key), **merged}
        return merged

    def _name(self, raw: RawNode, key: str, where: str) -> str | None:
        """None for one that can't be a key."""
        if not isinstance(raw, ScalarNode):
            self._problems.add(where, key, "a key must be text, not a list or a mapping")
            return None
        name = self._scalar(raw, key, where)
        if not isinstance(name, str):
            self._problems.add(where, key, f"a key must be text, not {shown(name)}", f'write "{raw.value}" in quotes')
            return None
        return name

    def _scalar(self, raw: RawNode, key: str, where: str) -> Any:
        kind = str(raw.tag).removeprefix("tag:yaml.org,2002:")
        try:
            match kind:
                case "str" | "timestamp" | "value":
                    return self._text(raw.value, key, where)
                case "null":
                    return None
                case "bool":
                    return _WORDS[raw.value.lower()]
                case "int":
                    return _integer(raw.value)
                case "float":
                    return float(raw.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            self._problems.unreadable(where, key, f"{short(raw.value)} is not a readable {kind}")
            return None
        self._refuse_tag(raw, key, where)
        return None

    def _refuse_tag(self, raw: RawNode, key: str, where: str) -> None:
        hint = "write a plain value, in quotes if it begins with !"
        self._problems.unreadable(where, key, f"the YAML tag {raw.tag} is not used here", hint)

    def _text(self, text: str, key: str, where: str) -> str:
        # JSON writes a character beyond 16 bits as two escapes, which YAML keeps as two halves: join them.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        lone = next((n for n, c in enumerate(whole) if "\ud800" <= c <= "\udfff"), None)
        if lone is not None:
            message = f"holds half a character (a lone surrogate) at offset {lone}: it can't be stored or sent"
            self._problems.unreadable(where, clean(key), message)
        return clean(whole)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    return int(digits, 0) if digits.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(digits)


def _line(problem: Problem) -> tuple[int, int]:
    tail = problem.where.rpartition(":")[2]
    from_option = problem.where.startswith("--set ")
    return (1 if from_option else 0, int(tail) if tail.isdecimal() and not from_option else 0)
