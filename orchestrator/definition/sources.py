"""Where the model of a sweep comes from, as the user named it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.definition.fields import INVALID, convert, parts
from orchestrator.definition.spelling import likely, oddity, shown
from orchestrator.definition.sweepfile import Node, Problems


@dataclass(frozen=True)
class ModelRef:
    """Which model, as the user named it; `value` is a path as written or "org/name".
    `where` and `key` say where, for messages."""

    kind: Literal["demo", "path", "hub", "scripted"]
    value: str
    revision: str | None = None
    trust_remote_code: bool = False
    where: str = field(default="", compare=False)
    key: str = field(default="model", compare=False)


_MODEL_KEYS: Final = {"path": str, "hub": str, "revision": str, "trust_remote_code": bool}
#: Of the hub's cache a name becomes one of a folder.
_LONGEST_NAME: Final = 200
#: Of a path with a "$" at which nothing is.
NOT_FILLED_IN: Final = "variables are not filled in: write the folder out; ~ is your home folder"
_MODEL_RULE: Final = "demo, scripted, ./folder, org/name, or a mapping with path or hub"


def read_model(node: Node, problems: Problems) -> ModelRef | None:
    """None where nothing can be said of it but its problems."""
    if isinstance(node.value, dict):
        return _model_mapping(node, problems)
    if not isinstance(node.value, str):
        problems.add(node.where, "model", f"can't be {shown(node.value)}", _MODEL_RULE)
        return None
    value = convert(node, "model", str, problems)
    if value is INVALID:
        return None
    if value in ("demo", "scripted"):
        return ModelRef(value, value, where=node.where)
    if value.startswith((".", "/", "~")):
        return ModelRef("path", value, where=node.where)
    if _is_hub(value):
        return ModelRef("hub", value, where=node.where)
    problems.add(node.where, "model", f"can't be {shown(value)}", _model_hint(value))
    return None


def _model_hint(value: str) -> str:
    if "$" in value:
        return NOT_FILLED_IN
    if "://" in value:
        name = "/".join(value.split("/")[3:5])
        return f"write {name}" if _is_hub(name) else "write org/name, as the hub calls it"
    close = likely(value, ("demo", "scripted"))
    folder = f"for the folder write ./{value}" if value.isascii() and value else oddity(value)
    return "; ".join(filter(None, (close and f"did you mean {close}?", folder, f"valid: {_MODEL_RULE}")))


def _model_mapping(node: Node, problems: Problems) -> ModelRef | None:
    before = problems.said
    given = parts(node, "model", _MODEL_KEYS, problems)
    named = [k for k in ("path", "hub") if k in node.value]
    if len(named) == 2 or _nothing_of(node, ("path", "hub"), _MODEL_KEYS):
        problems.add(node.where, "model", "needs exactly one of path and hub")
    if "revision" in node.value and "hub" not in node.value:
        problems.add(node.value["revision"].where, "model.revision", "belongs to a model from a hub")
    if "revision" in given and not _is_revision(given["revision"]):
        message, hint = f"can't be {shown(given['revision'])}", "write a branch, a tag or a commit"
        problems.add(node.value["revision"].where, "model.revision", message, hint)
    if "hub" in given and not _is_hub(given["hub"]):
        problems.add(node.value["hub"].where, "model.hub", f"can't be {shown(given['hub'])}", "write org/name")
    if given.get("path") == "":
        problems.add(node.value["path"].where, "model.path", "is empty")
    kind: Literal["hub", "path"] = "hub" if "hub" in node.value else "path"
    if problems.said > before:
        return None
    trust = given.get("trust_remote_code", False)
    return ModelRef(kind, given[kind], given.get("revision"), trust, node.value[kind].where, f"model.{kind}")


def _nothing_of(node: Node, alternatives: tuple[str, ...], valid: Collection[str]) -> bool:
    """Whether a mapping has none of them, and no other key that is told of as a slip for something."""
    unknown = [name for name in node.value if name not in valid]
    return not unknown and all(name not in node.value for name in alternatives)


def _is_revision(text: str) -> bool:
    """By git's rules, as far as they keep it a name: the hub's cache has a file for each, below its own folder."""
    steps = text.split("/")
    plain = not re.search(r"[\s\\~^:?*[\x00-\x20\x7f]", text) and len(text) <= _LONGEST_NAME
    return plain and not text.startswith("-") and all(step and ".." not in step and step != "." for step in steps)


def _is_hub(text: str) -> bool:
    halves = text.split("/")
    return (
        len(halves) == 2
        and len(text) <= _LONGEST_NAME
        and all(half.strip(".") and re.fullmatch(r"[A-Za-z0-9._-]+", half) for half in halves)
    )
