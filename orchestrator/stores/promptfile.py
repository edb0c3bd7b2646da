"""Prompts as the user wrote them: from a file or from the sweep file itself, checked in full.

.jsonl, .ndjson   one JSON object a line: `prompt` (text) or `messages` (a chat), an
                  optional `id`, an optional `continuation` (text) for `task: score`, optional
                  `images` (see `images`); every other field is kept and exported, never interpreted.
.txt              one prompt a line, as it stands (spaces at the ends included).

Lines end with LF or CRLF; blank lines are skipped and counted in line numbers. A
byte order mark at the start is skipped. Prompts without an id are named by their
place, "0", "1", …, with a suffix where a given id has that name already.

Text that can't reach every engine unchanged is refused here, with its place: lone
surrogates can't be sent or stored, and some engines silently end a prompt at NUL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.config import PromptSource
from orchestrator.definition.sweepfile import by_line
from orchestrator.errors import InputError, Problem
from orchestrator.stores import images
from orchestrator.stores.images import Album, NoImage
from orchestrator.stores.named import Named
from orchestrator.stores.promptlines import Entry, entries_of
from orchestrator.stores.prompttext import unclean
from orchestrator.view.wording import clean, listed

#: Problems of one kind that are told each by itself.
ALIKE = 10
LISTED_KEYS = 10


class RawPrompt(Struct, frozen=True):
    """One prompt before tokenising: `text` or `messages`, never both; `continuation` for `task: score`.
    `where` is "prompts.jsonl:7". `images` are encoded files, in the order of their placeholders."""

    id: str
    text: str | None
    messages: list[dict[str, Any]] | None
    fields: dict[str, Any]
    where: str
    continuation: str | None = None
    images: tuple[bytes, ...] = ()

    def source(self) -> dict[str, Any]:
        """As the user gave it, without the id and without what is in data URLs."""
        said: dict[str, Any] = {"prompt": self.text} if self.messages is None else {"messages": self.messages}
        more = {} if self.continuation is None else {"continuation": self.continuation}
        whole = {**said, **more, **self.fields}
        return images.abridged(whole) if self.images else whole


def read(source: PromptSource, base: Path) -> tuple[RawPrompt, ...]:
    """All prompts of `source`. A relative file name is taken from `base`, an image's from the prompt file's folder.

    Raises InputError with every problem of every line, in the order of the lines.
    """
    problems: list[Problem] = []
    album = Album(base)
    if source.inline is not None:
        entries = _from_list(source)
    elif source.file is not None:
        named = Named(source.file, base)
        entries, album = entries_of(named, source, problems), Album(named.path.parent)
    else:
        raise InputError([Problem(source.where, "prompts", "there are none", "give `file` or `inline`")])
    prompts = _named([one for entry in entries if (one := _checked(entry, album, problems)) is not None], problems)
    if not problems and not prompts:
        problems.append(Problem(source.file or source.where, source.key, "there is not a single prompt"))
    if problems:
        raise InputError(_abridged(by_line(problems)))
    return tuple(prompts)


def _abridged(problems: Iterable[Problem]) -> list[Problem]:
    """A mistake that most lines of a large file have is told of a few of them."""
    alike: dict[tuple[str, str], list[Problem]] = {}
    for one in problems:
        kind = re.sub(r"\d+|'[^']*'", "", f"{one.key} {one.message}")
        alike.setdefault((kind, one.suggestion), []).append(one)
    told: list[Problem] = []
    for some in alike.values():
        told += some[:ALIKE]
        if left := some[ALIKE:]:
            last = left[-1]
            more = f"; the last of {len(left)} more like it" if len(left) > 1 else ""
            told.append(Problem(last.where, last.key, last.message + more, last.suggestion))
    return by_line(told)


def _from_list(source: PromptSource) -> list[Entry]:
    values = source.inline or ()
    places = source.places or tuple(("", f"prompts[{n}]") for n in range(len(values)))
    return [Entry(value, where, key) for value, (where, key) in zip(values, places, strict=True)]


# --- one prompt ---------------------------------------------------------------


class _Found(Struct, frozen=True):
    given_id: str | None
    text: str | None
    messages: list[dict[str, Any]] | None
    continuation: str | None
    fields: dict[str, Any]
    entry: Entry
    images: tuple[bytes, ...]


def _checked(entry: Entry, album: Album, problems: list[Problem]) -> _Found | None:
    """The prompt, or None with its problems added."""
    said: Any = {"prompt": entry.value} if isinstance(entry.value, str) else entry.value
    if not isinstance(said, Mapping):
        problems.append(Problem(entry.where, entry.key, f"is {_kind(said)}", "a prompt is a text or a mapping"))
        return None
    wrong = [*_shape(said), *(("", m) for m in unclean(said))]
    taken: list[bytes] = []
    if not wrong:
        wrong += _taken(said, album, taken)
    problems += [Problem(entry.where, ".".join(filter(None, (entry.key, key))), message) for key, message in wrong]
    if wrong:
        return None
    given = said.get("id")
    return _Found(
        None if given is None else str(given),
        said.get("prompt"),
        [dict(m) for m in said["messages"]] if "messages" in said else None,
        said.get("continuation"),
        {k: v for k, v in said.items() if k not in ("id", "prompt", "messages", "continuation")},
        entry,
        tuple(taken),
    )


def _taken(said: Mapping[str, Any], album: Album, taken: list[bytes]) -> Iterable[tuple[str, str]]:
    """Adds the prompt's images to `taken`; gives (key, message) of those that can't be used."""
    for place in images.places(said):
        try:
            taken.append(album.take(place.reference))
        except NoImage as exc:
            yield place.key, str(exc)


def _shape(said: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    """(key, message) of everything that is wrong with the mapping's own keys."""
    given = said.get("id")
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        yield "id", f"is {_kind(given)}, not text or a whole number"
    if given == "":
        yield "id", "is empty"
    if ("prompt" in said) == ("messages" in said):
        yield "", "has both `prompt` and `messages`" if "prompt" in said else _neither(said)
    if "prompt" in said:
        prompt = said["prompt"]
        if not isinstance(prompt, str):
            yield "prompt", f"is {_kind(prompt)}, not text"
        elif not prompt:
            yield "prompt", "is empty"
    if "messages" in said:
        yield from _messages(said["messages"])
    continuation = said.get("continuation")
    if continuation is not None and not isinstance(continuation, str):
        yield "continuation", f"is {_kind(continuation)}, not text"
    if continuation == "":
        yield "continuation", "is empty"
    yield from images.shape(said)


def _neither(said: Mapping[Any, Any]) -> str:
    names = [clean(str(name)) for name in said]
    given = f", but {listed(names, LISTED_KEYS)}" if names else ""
    return f"has neither `prompt` nor `messages`{given}"


def _messages(messages: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(messages, list | tuple):
        yield "messages", f"is {_kind(messages)}, not a list"
        return
    if not messages:
        yield "messages", "is empty"
    for n, message in enumerate(messages):
        key = f"messages[{n}]"
        if not isinstance(message, Mapping):
            yield key, f"is {_kind(message)}, not a mapping with `role` and `content`"
            continue
        role = message.get("role")
        if not isinstance(role, str) or not role:
            yield f"{key}.role", "is missing" if role is None else f"is {_kind(role)}, not a role's name"
        yield from _content(f"{key}.content", message)


def _content(key: str, message: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, list | tuple):
        yield key, "is missing" if "content" not in message else f"is {_kind(content)}, not text"
        return
    for n, part in enumerate(content):
        text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not text and not images.is_image(part):
            yield f"{key}[{n}]", 'is neither {"type": "text", "text": …} nor {"type": "image", "image": "FILE"}'


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


# --- ids ----------------------------------------------------------------------


def _named(found: list[_Found], problems: list[Problem]) -> list[RawPrompt]:
    first: dict[str, Entry] = {}
    for one in found:
        if one.given_id is None:
            continue
        if (other := first.get(one.given_id)) is not None:
            message = f"id {one.given_id!r} is taken by {' '.join(filter(None, (other.where, other.key)))}"
            problems.append(Problem(one.entry.where, one.entry.key, message))
        else:
            first[one.given_id] = one.entry
    taken = set(first)
    return [_raw(one, one.given_id or _free_name(n, taken)) for n, one in enumerate(found)]


def _free_name(place: int, taken: set[str]) -> str:
    names = (f"{place}.{n}" if n else str(place) for n in range(len(taken) + 1))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _raw(one: _Found, name: str) -> RawPrompt:
    where = one.entry.where or one.entry.key
    return RawPrompt(name, one.text, one.messages, one.fields, where, one.continuation, one.images)
