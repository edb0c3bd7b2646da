"""A sweep file as a tree of values that know where they stand: text in, nodes out.

Covers YAML itself: syntax, duplicate keys, anchors and merge keys, text that is
not clean Unicode, and `--set path=value`. Knows nothing of what the keys mean.
Pure: every fault becomes a Problem in the collector that the caller passes in.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as RawNode
from ruamel.yaml.reader import ReaderError

from orchestrator.errors import Problem

#: A file that grows past this through its aliases is a mistake or an attack, not a sweep.
MAX_NODES = 200_000
SHOWN_CHARACTERS = 60

_MERGE = "tag:yaml.org,2002:merge"
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
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
    """Collects what is wrong, so that the user sees all of it at once."""

    found: list[Problem] = field(default_factory=list)

    def add(self, where: str, key: str, message: str, suggestion: str = "") -> None:
        problem = Problem(where, key, message, suggestion)
        if problem not in self.found:
            self.found.append(problem)

    def ordered(self) -> list[Problem]:
        """By line; what came from the command line last."""
        return by_line(self.found)


def by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=_line)


def nearest(name: str, valid: Iterable[str]) -> str:
    """What to write instead of `name`: the closest valid name, or all of them."""
    choices = list(valid)
    lower = {c.lower(): c for c in choices}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return f"did you mean {lower[close[0]]}?" if close else f"valid: {', '.join(choices)}"


def shown(value: Any) -> str:
    """A value as it looks in a YAML file, shortened, safe to print."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        text = ascii(value) if not value.isprintable() else f'"{value}"'
        return "the text " + _short(text)
    words = {True: "true", False: "false"} if isinstance(value, bool) else {None: "null"}
    return words.get(value) or _short(_number(value))


def load(text: str, source: str, problems: Problems) -> Node | None:
    """The tree of one YAML document, or None where it can't be read at all."""
    try:
        raw = YAML(typ="safe", pure=True).compose(text)
        return None if raw is None else _Reader(source, problems).node(raw, "", None)
    except _Beyond as exc:
        problems.add(source, "", str(exc))
    except RecursionError:
        problems.add(source, "", "is nested too deeply, or an anchor holds an alias of itself")
    except YAMLError as exc:
        line, message, hint = _syntax(exc, text)
        problems.add(f"{source}:{line}" if line else source, "", f"not valid YAML: {message}", hint)
    return None


def override(root: Node, expression: str, problems: Problems, takes_list: Callable[[Sequence[str]], bool]) -> Node:
    """`root` with one `--set path=value` applied. The value is YAML; where `takes_list`
    says so of the path, commas make a list without brackets. Nothing after the equals
    sign removes the key."""
    where = f"--set {_short(expression)}"
    path, equals, text = expression.partition("=")
    steps = _clean(path).strip().split(".")
    if not equals or not all(steps):
        problems.add(where, "", "can't be read", "write --set path=value, for example --set sampling.temperature=0.5")
        return root
    value = _value(text.strip(), where, takes_list(steps), problems) if text.strip() else None
    if value is None and text.strip():
        return root
    return _put(root, steps, 0, value, where, problems)


class _Beyond(Exception):
    """More nodes than any sweep has."""


class _Reader:
    """Turns ruamel's nodes into ours; counts them, since aliases can multiply without end."""

    def __init__(self, source: str, problems: Problems, place: str | None = None) -> None:
        self._source = source
        self._problems = problems
        self._place = place
        self._left = MAX_NODES

    def node(self, raw: RawNode, key: str, where: str | None) -> Node:
        self._left -= 1
        if self._left < 0:
            raise _Beyond(f"has more than {MAX_NODES} values once its aliases are filled in")
        where = where or self._where(raw)
        if isinstance(raw, MappingNode):
            return Node(self._mapping(raw, key), where)
        if isinstance(raw, SequenceNode):
            return Node([self.node(item, f"{key}[{n}]", None) for n, item in enumerate(raw.value)], where)
        return Node(self._scalar(raw, key, where), where)

    def _where(self, raw: RawNode) -> str:
        return self._place or f"{self._source}:{raw.start_mark.line + 1}"

    def _mapping(self, raw: MappingNode, key: str) -> dict[str, Node]:
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for name_node, value in raw.value:
            where = self._where(name_node)
            if name_node.tag == _MERGE:
                merged = {**self._merge(value, key, where), **merged}
                continue
            name = self._name(name_node, key, where)
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
            merged = {**self._mapping(source, key), **merged}
        return merged

    def _name(self, raw: RawNode, key: str, where: str) -> str:
        if not isinstance(raw, ScalarNode):
            self._problems.add(where, key, "a key must be text, not a list or a mapping")
            return "?"
        name = self._scalar(raw, key, where)
        if not isinstance(name, str):
            self._problems.add(where, key, f"a key must be text, not {shown(name)}", f'write "{raw.value}" in quotes')
            return str(raw.value)
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
            self._problems.add(where, key, f"{_short(raw.value)} is not a readable {kind}")
            return None
        self._problems.add(where, key, f"the YAML tag {raw.tag} is not used here", "write a plain value")
        return None

    def _text(self, text: str, key: str, where: str) -> str:
        # JSON writes a character beyond 16 bits as two escapes, which YAML keeps as two halves: join them.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        lone = next((n for n, c in enumerate(whole) if "\ud800" <= c <= "\udfff"), None)
        if lone is not None:
            message = f"holds half a character (a lone surrogate) at offset {lone}: it can't be stored or sent"
            self._problems.add(where, _clean(key), message)
        return _clean(whole)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _clean(text: str) -> str:
    """Printable everywhere: a terminal can't encode lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _short(text: str) -> str:
    clean = _clean(text)
    return clean if len(clean) <= SHOWN_CHARACTERS else clean[: SHOWN_CHARACTERS - 1] + "…"


def _number(value: Any) -> str:
    # str() of an int with thousands of digits raises.
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else str(value)
    )


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    return int(digits, 0) if digits.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(digits)


def _line(problem: Problem) -> tuple[int, int]:
    tail = problem.where.rpartition(":")[2]
    from_option = problem.where.startswith("--set ")
    return (1 if from_option else 0, int(tail) if tail.isdecimal() and not from_option else 0)


def _syntax(exc: YAMLError, text: str) -> tuple[int, str, str]:
    """Line (0: unknown), message and hint of a syntax error."""
    if isinstance(exc, ReaderError):
        line = text.count("\n", 0, exc.position) + 1
        code = exc.character if isinstance(exc.character, int) else ord(exc.character)
        return (
            line,
            f"the character U+{code:04X} is not allowed",
            "remove it, or write it as an escape in double quotes",
        )
    if not isinstance(exc, MarkedYAMLError):
        return 0, str(exc).splitlines()[0], ""
    mark = exc.problem_mark or exc.context_mark
    message = str(exc.problem or exc.context)
    hint = "indent with spaces, YAML allows no tabs there" if "\\t" in message else ""
    return (mark.line + 1 if mark else 0), message, hint


def _value(text: str, where: str, as_list: bool, problems: Problems) -> Node | None:
    try:
        raw = YAML(typ="safe", pure=True).compose(f"[{text}]" if as_list else text)
        node = None if raw is None else _Reader("", problems, place=where).node(raw, "", None)
    except (YAMLError, RecursionError, _Beyond) as exc:
        message = str(getattr(exc, "problem", None) or exc).splitlines()[0]
        problems.add(where, "", f"the value is not valid YAML: {message}")
        return None
    if node and as_list and len(node.value) == 1 and isinstance(node.value[0].value, list):
        return node.value[0]  # type: ignore[no-any-return]
    return node


def _put(node: Node, steps: Sequence[str], at: int, value: Node | None, where: str, problems: Problems) -> Node:
    name, key = steps[at], ".".join(steps[: at + 1])
    if not isinstance(node.value, dict):
        problems.add(where, ".".join(steps[:at]), f"is {shown(node.value)} in the file, and has no parts to set")
        return node
    last = at == len(steps) - 1
    if value is None and name not in node.value:
        problems.add(where, key, "is not in the file: there is nothing to remove", nearest(name, node.value))
        return node
    if value is None and last:
        return Node({k: v for k, v in node.value.items() if k != name}, node.where)
    inner = value if last else _put(node.value.get(name, Node({}, where)), steps, at + 1, value, where, problems)
    return Node({**node.value, name: inner}, node.where)
