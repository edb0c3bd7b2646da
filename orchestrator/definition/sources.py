"""Where the model and the prompts of a sweep come from, as the user named them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrator.definition.fields import INVALID, convert, parts, unfit
from orchestrator.definition.sweepfile import Node, Problems, nearest, shown

ChatTemplate = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class ModelRef:
    """Which model, as the user named it; `value` is a path as written or "org/name"."""

    kind: Literal["demo", "path", "hub", "scripted"]
    value: str
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class PromptSource:
    """Where the prompts are: exactly one of `file` and `inline` is set."""

    file: str | None
    inline: tuple[str | dict[str, Any], ...] | None
    chat_template: ChatTemplate = "auto"


_MODEL_KEYS: Final = {"path": str, "hub": str, "revision": str, "trust_remote_code": bool}
_MODEL_RULE: Final = "demo, scripted, ./folder, org/name, or a mapping with path or hub"


def read_model(node: Node, problems: Problems) -> ModelRef:
    if isinstance(node.value, dict):
        return _model_mapping(node, problems)
    value = convert(node, "model", str, problems)
    if value in ("demo", "scripted"):
        return ModelRef(value, value)
    if value is not INVALID and value.startswith((".", "/", "~")):
        return ModelRef("path", value)
    if value is not INVALID and not _is_hub(value):
        hint = f"for the folder write ./{value}" if value else _MODEL_RULE
        problems.add(
            node.where, "model", f"can't be {shown(value)}", f"{hint}; valid: {_MODEL_RULE}" if value else hint
        )
    return ModelRef("hub", str(value))


def _model_mapping(node: Node, problems: Problems) -> ModelRef:
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
    return ModelRef(kind, given.get(kind, ""), given.get("revision"), given.get("trust_remote_code", False))


def _is_hub(text: str) -> bool:
    halves = text.split("/")
    return len(halves) == 2 and all(h.strip(".") and h.isascii() and not set(h) & set(" \t\n\\:@?#") for h in halves)


def read_prompts(node: Node, problems: Problems) -> PromptSource:
    if isinstance(node.value, dict):
        return _prompt_mapping(node, problems)
    if isinstance(node.value, list):
        return PromptSource(None, _inline(node, "prompts", problems))
    return PromptSource(_file(node, "prompts", problems), None)


def _prompt_mapping(node: Node, problems: Problems) -> PromptSource:
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
    file = _file(given["file"], "prompts.file", problems) if "file" in given else None
    inline = _inline(given["inline"], "prompts.inline", problems) if "inline" in given else None
    return PromptSource(file, inline, template)


def _file(node: Node, key: str, problems: Problems) -> str:
    value = convert(node, key, str, problems)
    if value == "":
        problems.add(node.where, key, "is empty")
    return str(value)


def _inline(node: Node, key: str, problems: Problems) -> tuple[str | dict[str, Any], ...]:
    if not isinstance(node.value, list) or not node.value:
        problems.add(node.where, key, "must be a list with at least one prompt")
        return ()
    for n, item in enumerate(node.value):
        place = f"{key}[{n}]"
        if isinstance(item.value, dict):
            if ("prompt" in item.value) == ("messages" in item.value):
                problems.add(item.where, place, "needs exactly one of prompt and messages")
            if reason := unfit({k: v.plain() for k, v in item.value.items() if k not in ("prompt", "messages")}):
                problems.add(item.where, place, reason)
        elif not isinstance(item.value, str):
            problems.add(item.where, place, f"must be text or a mapping, not {shown(item.value)}", "write it in quotes")
    return tuple(item.plain() for item in node.value)
