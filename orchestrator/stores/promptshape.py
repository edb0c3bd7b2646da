"""What is wrong with one prompt as the user wrote it, or as it was made of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.definition.spelling import likely
from orchestrator.readers.found import kind
from orchestrator.stores import images
from orchestrator.stores.prompttext import BINARY
from orchestrator.view.wording import clean, listed

LISTED_KEYS = 10
#: As they travel.
TOKEN_IDS = range(2**32)
#: What others call a prompt, and the answer to it.
_QUESTIONS = ("question", "query", "instruction", "problem", "input", "text", "content")
_ANSWERS = ("answer", "answers", "response", "output", "completion", "target", "label")


def faults(said: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    """(key, message) of everything that is wrong with the mapping's own keys."""
    yield from _id(said.get("id"))
    if ("prompt" in said) == ("messages" in said):
        yield "", "has both `prompt` and `messages`" if "prompt" in said else _neither(said)
    if "prompt" in said:
        yield from _text("prompt", said["prompt"])
        if isinstance(said["prompt"], str) and said["prompt"].startswith(BINARY):
            yield "prompt", "is binary data, not text"
    if isinstance(said.get("prompt"), list) and said.get("images"):
        yield "images", "can't stand beside token ids, which say nothing of where they go"
    if "messages" in said:
        yield from _messages(said["messages"])
    if said.get("continuation") is not None:
        yield from _text("continuation", said["continuation"])
    yield from images.shape(said)


def _id(given: Any) -> Iterable[tuple[str, str]]:
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        yield "id", f"is {kind(given)}, not text or a whole number"
    if given == "":
        yield "id", "is empty"


def _text(key: str, value: Any) -> Iterable[tuple[str, str]]:
    """Text, or a list of token ids."""
    if isinstance(value, list):
        yield from _ids(key, value)
    elif not isinstance(value, str):
        yield key, f"is {kind(value)}, not text"
    if not value and isinstance(value, str | list):
        yield key, "is empty"


def _ids(key: str, value: list[Any]) -> Iterable[tuple[str, str]]:
    wrong = next((n for n, one in enumerate(value) if type(one) is not int or one not in TOKEN_IDS), None)
    if wrong is not None:
        yield key, f"is {kind(value)}, not text; a list holds token ids, and [{wrong}] is none"


def _neither(said: Mapping[Any, Any]) -> str:
    names = [clean(str(name)) for name in said]
    given = f", but {listed(names, LISTED_KEYS)}" if names else ""
    meant = next((one for name in names if (one := likely(name, ("prompt", "messages")))), None)
    hint = f": did you mean {meant}?" if meant else _columns(names)
    return f"has neither `prompt` nor `messages`{given}{hint}"


def _columns(names: Sequence[str]) -> str:
    """How fields that others call so are read."""
    asked, answer = (next((one for one in known if one in names), None) for known in (_QUESTIONS, _ANSWERS))
    answered = f", expected: {answer}" if answer else ""
    return f": columns: {{prompt: {asked}{answered}}} reads them" if asked else ""


def _messages(messages: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(messages, list | tuple):
        yield "messages", f"is {kind(messages)}, not a list"
        return
    if not messages:
        yield "messages", "is empty"
    for n, message in enumerate(messages):
        key = f"messages[{n}]"
        if not isinstance(message, Mapping):
            yield key, f"is {kind(message)}, not a mapping with `role` and `content`"
            continue
        role = message.get("role")
        if not isinstance(role, str) or not role:
            yield f"{key}.role", "is missing" if role is None else f"is {kind(role)}, not a role's name"
        yield from _content(f"{key}.content", message)


def _content(key: str, message: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, list | tuple):
        yield key, "is missing" if "content" not in message else f"is {kind(content)}, not text"
        return
    for n, part in enumerate(content):
        text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not text and not images.is_image(part):
            yield f"{key}[{n}]", 'is neither {"type": "text", "text": …} nor {"type": "image", "image": "FILE"}'
