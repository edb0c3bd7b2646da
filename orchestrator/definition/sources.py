"""Where the model and the prompts of a sweep come from, as the user named them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from orchestrator.definition.fields import INVALID, convert, parts, unfit
from orchestrator.definition.sweepfile import Node, Problems, nearest, shown

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
_MODEL_RULE: Final = "demo, scripted, ./folder, org/name, or a mapping with path or hub"


def read_model(node: Node, problems: Problems) -> ModelRef | None:
    """None where nothing can be said of it but its problems."""
    if isinstance(node.value, dict):
        return _model_mapping(node, problems)
    value = convert(node, "model", str, problems)
    if value is INVALID:
        return None
    if value in ("demo", "scripted"):
        return ModelRef(value, value, where=node.where)
    if value.startswith((".", "/", "~")):
        return ModelRef("path", value, where=node.where)
    if _is_hub(value):
        return ModelRef("hub", value, where=node.where)
    hint = f"for the folder write ./{value}; valid: {_MODEL_RULE}" if value else _MODEL_RULE
    problems.add(node.where, "model", f"can't be {shown(value)}", hint)
    return None


def _model_mapping(node: Node, problems: Problems) -> ModelRef | None:
    given = parts(node, "model", _MODEL_KEYS, problems)
    named = [k for k in ("path", "hub") if k in node.value]
    if len(named) != 1:
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


def _is_hub(text: str) -> bool:
    halves = text.split("/")
    return len(halves) == 2 and all(h.strip(".") and h.isascii() and not set(h) & set(" \t\n\\:@?#") for h in halves)


def read_prompts(node: Node, problems: Problems) -> PromptSource | None:
    """What can be read of it; None where that is nothing."""
    if isinstance(node.value, dict):
        return _prompt_mapping(node, problems)
    read = _inline if isinstance(node.value, list) else _file
    return read(node, "prompts", "auto", problems)


def _prompt_mapping(node: Node, problems: Problems) -> PromptSource | None:
    given = node.value
    for name in given:
        if name not in ("file", "inline", "chat_template"):
            hint = nearest(name, ["file", "inline", "chat_template"])
            problems.add(given[name].where, f"prompts.{name}", "prompts has no such key", hint)
    if ("file" in given) == ("inline" in given):
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
    before = len(problems.found)
    if isinstance(item.value, dict):
        if ("prompt" in item.value) == ("messages" in item.value):
            problems.add(item.where, place, "needs exactly one of prompt and messages")
        if reason := unfit({k: v.plain() for k, v in item.value.items() if k not in ("prompt", "messages")}):
            problems.add(item.where, place, reason)
    elif not isinstance(item.value, str):
        problems.add(item.where, place, f"must be text or a mapping, not {shown(item.value)}", "write it in quotes")
    return len(problems.found) == before
