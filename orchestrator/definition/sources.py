"""Where the model and the prompts of a sweep come from, as the user named them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from orchestrator.definition.fields import INVALID, convert, parts, unfit
from orchestrator.definition.spelling import likely, nearest, oddity, shown
from orchestrator.definition.sweepfile import Node, Problems

ChatTemplate = Literal["auto", "on", "off"]


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


@dataclass(frozen=True)
class PromptSource:
    """Where the prompts are: exactly one of `file` and `inline` is set. For messages, `where` and
    `key` of the whole, and `places` with those of each inline prompt."""

    file: str | None
    inline: tuple[str | dict[str, Any], ...] | None
    chat_template: ChatTemplate = "auto"
    where: str = field(default="", compare=False)
    key: str = field(default="prompts", compare=False)
    places: tuple[tuple[str, str], ...] = field(default=(), compare=False)


_MODEL_KEYS: Final = {"path": str, "hub": str, "revision": str, "trust_remote_code": bool}
_PROMPT_KEYS: Final = ("file", "inline", "chat_template")
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
        return "variables are not filled in: write the folder out; ~ is your home folder"
    if "://" in value:
        name = "/".join(value.split("/")[3:5])
        return f"write {name}" if _is_hub(name) else "write org/name, as the hub calls it"
    close = likely(value, ("demo", "scripted"))
    folder = f"for the folder write ./{value}" if value.isascii() and value else oddity(value)
    return "; ".join(filter(None, (close and f"did you mean {close}?", folder, f"valid: {_MODEL_RULE}")))


def _model_mapping(node: Node, problems: Problems) -> ModelRef | None:
    given = parts(node, "model", _MODEL_KEYS, problems)
    named = [k for k in ("path", "hub") if k in node.value]
    if len(named) == 2 or _nothing_of(node, ("path", "hub"), _MODEL_KEYS):
        problems.add(node.where, "model", "needs exactly one of path and hub")
    if "revision" in node.value and "hub" not in node.value:
        problems.add(node.value["revision"].where, "model.revision", "belongs to a model from a hub")
    if "hub" in given and not _is_hub(given["hub"]):
        problems.add(node.value["hub"].where, "model.hub", f"can't be {shown(given['hub'])}", "write org/name")
    if given.get("path") == "":
        problems.add(node.value["path"].where, "model.path", "is empty")
    kind: Literal["hub", "path"] = "hub" if "hub" in node.value else "path"
    if len(named) != 1 or not given.get(kind):
        return None
    trust = given.get("trust_remote_code", False)
    return ModelRef(kind, given[kind], given.get("revision"), trust, node.value[kind].where, f"model.{kind}")


def _nothing_of(node: Node, alternatives: tuple[str, ...], valid: Collection[str]) -> bool:
    """Whether a mapping has none of them, and no other key that is told of as a slip for something."""
    unknown = [name for name in node.value if name not in valid]
    return not unknown and all(name not in node.value for name in alternatives)


def _is_hub(text: str) -> bool:
    halves = text.split("/")
    return len(halves) == 2 and all(half.strip(".") and re.fullmatch(r"[A-Za-z0-9._-]+", half) for half in halves)


def read_prompts(node: Node, problems: Problems) -> PromptSource | None:
    """What can be read of it; None where that is nothing."""
    if isinstance(node.value, dict):
        return _prompt_mapping(node, problems)
    if isinstance(node.value, list):
        return _inline(node, "prompts", "auto", problems)
    if not isinstance(node.value, str):
        problems.add(node.where, "prompts", f"can't be {shown(node.value)}", "a file, or a list of prompts: [hello]")
        return None
    return _file(node, "prompts", "auto", problems)


def _prompt_mapping(node: Node, problems: Problems) -> PromptSource | None:
    given = node.value
    for name in given:
        if name not in _PROMPT_KEYS:
            problems.add(given[name].where, f"prompts.{name}", "prompts has no such key", nearest(name, _PROMPT_KEYS))
    if ("file" in given and "inline" in given) or _nothing_of(node, ("file", "inline"), _PROMPT_KEYS):
        problems.add(node.where, "prompts", "needs exactly one of file and inline")
    template: Any = "auto"
    if "chat_template" in given:
        template = convert(given["chat_template"], "prompts.chat_template", ChatTemplate, problems)
    readers = (("file", _file), ("inline", _inline))
    found = [read(given[n], f"prompts.{n}", template, problems) for n, read in readers if n in given]
    return next((source for source in found if source is not None), None)


def _file(node: Node, key: str, template: Any, problems: Problems) -> PromptSource | None:
    value = convert(node, key, str, problems)
    if value == "":
        problems.add(node.where, key, "is empty")
    return PromptSource(value, None, template, node.where, key) if value and value is not INVALID else None


def _inline(node: Node, key: str, template: Any, problems: Problems) -> PromptSource | None:
    """Entries that are no prompt at all are left out."""
    if not isinstance(node.value, list) or not node.value:
        problems.add(node.where, key, "must be a list with at least one prompt")
        return None
    good = [(item, f"{key}[{n}]") for n, item in enumerate(node.value) if _is_prompt(item, f"{key}[{n}]", problems)]
    if not good:
        return None
    texts, places = tuple(item.plain() for item, _ in good), tuple((item.where, place) for item, place in good)
    return PromptSource(None, texts, template, node.where, key, places)


def _is_prompt(item: Node, place: str, problems: Problems) -> bool:
    if isinstance(item.value, dict):
        wrong = _mapping_problem(item.value)
    elif isinstance(item.value, str):
        wrong = None
    else:
        wrong = f"must be text or a mapping, not {shown(item.value)}", "write it in quotes"
    if wrong:
        problems.add(item.where, place, *wrong)
    return wrong is None


def _mapping_problem(given: Mapping[str, Node]) -> tuple[str, str] | None:
    """Message and hint."""
    both = ("prompt", "messages")
    if all(name in given for name in both):
        return "has both prompt and messages", "leave one out"
    if not any(name in given for name in both):
        close = next((f"did you mean {c}?" for name in given if (c := likely(name, both))), "")
        text = "if it is text with a colon, put it in quotes" if len(given) == 1 else ""
        return "has neither prompt nor messages", close or text
    reason = unfit({k: v.plain() for k, v in given.items() if k not in both})
    return (reason, "") if reason else None
