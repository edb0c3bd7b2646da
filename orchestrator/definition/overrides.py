"""`--set path=value`: one value of the sweep file put in, replaced or removed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.definition.spelling import clean, nearest, short, shown
from orchestrator.definition.sweepfile import Node, Problems, fragment

_EXAMPLE = "write --set path=value, for example --set sampling.temperature=0.5"


def override(root: Node, expression: str, problems: Problems, takes_list: Callable[[list[str], str], bool]) -> Node:
    """`root` with one `--set path=value` applied. The value is YAML; where `takes_list`
    says so of path and value, commas make a list without brackets. Nothing after the
    equals sign removes the key."""
    where = f"--set {short(expression)}"
    path, equals, text = (part.strip() for part in expression.partition("="))
    steps = clean(path).split(".")
    if not equals or not all(steps):
        problems.add(where, "", "can't be read", _EXAMPLE)
        return root
    if not text:
        return _removed(root, steps, where, problems)
    before = problems.said
    value = _value(text, where, ".".join(steps), takes_list(steps, text), problems)
    return root if problems.said > before else _put(root, steps, 0, value, where, problems)


def _value(text: str, where: str, key: str, as_list: bool, problems: Problems) -> Node:
    if not as_list:
        return fragment(text, where, key, problems)
    node = fragment(f"[{text}]", where, key, problems)
    listed = isinstance(node.value, list) and len(node.value) == 1 and isinstance(node.value[0].value, list)
    return node.value[0] if listed else node


def _put(node: Node, steps: Sequence[str], at: int, value: Node, where: str, problems: Problems) -> Node:
    name = steps[at]
    if node.value is None:  # a section whose every line is commented out
        node = Node({}, node.where)
    if not isinstance(node.value, dict):
        key, part = ".".join(steps[:at]), ".".join(steps[at:])
        hint = f"set it whole: --set {key}=…" if part[0].isdigit() else f"set it whole: --set '{key}={{{part}: …}}'"
        problems.add(where, key, f"is {shown(node.value)} in the file, and has no parts to set", hint)
        return node
    inner = value
    if at < len(steps) - 1:
        inner = _put(node.value.get(name, Node({}, where)), steps, at + 1, value, where, problems)
    return Node({**node.value, name: inner}, node.where)


def _removed(root: Node, steps: Sequence[str], where: str, problems: Problems) -> Node:
    holders = [root]
    for at, name in enumerate(steps):
        held = holders[-1].value
        if not isinstance(held, dict) or name not in held:
            hint = nearest(name, held) if isinstance(held, dict) else ""
            problems.add(where, ".".join(steps[: at + 1]), "is not in the file: there is nothing to remove", hint)
            return root
        holders.append(held[name])
    node: Node | None = None
    for holder, name in zip(reversed(holders[:-1]), reversed(steps), strict=True):
        rest = {k: v for k, v in holder.value.items() if k != name}
        node = Node(rest if node is None else {**holder.value, name: node}, holder.where)
    return node or root
