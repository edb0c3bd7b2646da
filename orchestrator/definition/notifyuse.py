"""Who is told when a sweep ends or needs somebody, and how.

    notify:
      command: [./tell-me, "{event}"]      # gets the summary as JSON on its standard input
      webhook: {url: env:SLACK_URL, format: slack}
      on: [end, failure]

The file is copied into the run directory, so what is secret stands in it as `env:NAME` only. None of it is asked of a
method, so a resumed run may change it. Pure.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from msgspec import Meta, Struct

from orchestrator.definition.fields import INVALID, convert, is_mapping, parts
from orchestrator.definition.hints import list_hint
from orchestrator.definition.spelling import nearest, shown
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.definition.webaddress import SECRETIVE, URL, is_secret, unpostable
from orchestrator.view.wording import clean, joined

Occasion = Literal["start", "end", "failure", "quarantine", "low_disk"]
Format = Literal["json", "slack", "discord", "ntfy"]
OCCASIONS: Final[tuple[Occasion, ...]] = get_args(Occasion)
#: What may stand in a command in braces. What an engine said is not among it: it may hold anything, and a command may
#: be a shell.
PLACEHOLDERS: Final = ("event", "run", "run_dir", "state", "exit_code")
#: More are a slip of the pen.
MOST: Final = 16
#: Of a text that is shown again as what was meant.
_LONGEST_COMMAND: Final = 1000
_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
#: "Bearer env:NAME"
_SCHEMED: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_-]* )?env:[A-Za-z_][A-Za-z0-9_]*")
#: An address without its scheme.
_BARE: Final = re.compile(r"[\w.-]+\.\w+(?::\d+)?(/\S*)?")
_EXAMPLE: Final = "for example https://ntfy.sh/my-topic"
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET: Final = "holds a secret, and this file is copied into the run directory"
_BRACES: Final = "write {{ and }} for braces themselves"
_MOVE: Final = "put it into the environment, and write env:NAME here"


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that the summary is posted to. Secrets stand in it as "env:NAME"."""

    url: Annotated[str, Meta(min_length=1, description="https://…, or env:NAME where the address itself is a secret")]
    headers: Annotated[
        dict[str, str], Meta(description="sent as well; secret ones as env:NAME, or with their scheme: Bearer env:NAME")
    ] = {}
    format: Annotated[Format, Meta(description="what is sent; json: the summary")] = "json"

    @property
    def name(self) -> str:
        """As it may be told: without what could be secret."""
        match = URL.fullmatch(self.url)
        where = f"{match[1]}://{match[2]}" if match else f"${self.url.removeprefix('env:')}"
        return f"the webhook at {clean(where)}" + (f" ({self.format})" if self.format != "json" else "")

    @property
    def variables(self) -> Iterator[tuple[str, str]]:
        """Key and name of each variable of the environment that it needs."""
        for key, value in (("url", self.url), *((f"headers.{name}", value) for name, value in self.headers.items())):
            if match := _VARIABLE.search(value):
                yield key, match[1]


class NotifyUse(Struct, frozen=True, kw_only=True):
    """Whom to tell, and on what occasions."""

    commands: tuple[tuple[str, ...], ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    on: tuple[Occasion, ...] = ("end", "failure", "quarantine", "low_disk")

    @property
    def secrets(self) -> frozenset[str]:
        """The variables of the environment that are named, whose values nobody may be shown."""
        return frozenset(name for webhook in self.webhooks for _, name in webhook.variables)

    @property
    def tells(self) -> bool:
        return bool(self.commands or self.webhooks)


def read_notify(node: Node, problems: Problems) -> NotifyUse:
    """What is right of it; what is wrong stands in `problems`."""
    if not is_mapping(node, "notify", _READERS, problems):
        return NotifyUse()
    found: dict[str, Any] = {}
    for name, part in node.value.items():
        if name not in _READERS:
            problems.add(part.where, f"notify.{name}", "notify has no such key", nearest(name, _READERS))
        elif part.value is not None:
            field, read = _READERS[name]
            found[field] = read(part, problems)
    if not node.value.keys() & {"command", "webhook"}:
        problems.add(node.where, "notify", "tells nobody", "give it a command or a webhook")
    return NotifyUse(**found)


# --- commands ------------------------------------------------------------------------


def _commands(node: Node, problems: Problems) -> tuple[tuple[str, ...], ...]:
    key = "notify.command"
    if not isinstance(node.value, list) or not node.value:
        problems.add(node.where, key, f"must be a list of words, not {_shown(node)}", _words_hint(node.value))
        return ()
    if not any(isinstance(item.value, list) for item in node.value):
        return _kept([_command(node, key, problems)])
    return _kept([_command(item, f"{key}[{n}]", problems) for n, item in enumerate(_few(node, key, problems))])


def _command(node: Node, key: str, problems: Problems) -> tuple[str, ...]:
    """Empty after saying what is wrong."""
    if not isinstance(node.value, list) or not node.value:
        problems.add(node.where, key, f"must be a list of words, not {_shown(node)}", _words_hint(node.value))
        return ()
    words = [_word(item, f"{key}[{n}]", problems) for n, item in enumerate(node.value)]
    if words[0] == "":
        problems.add(node.value[0].where, f"{key}[0]", "is empty", "name a program")
    return () if None in words or not words[0] else tuple(word for word in words if word is not None)


def _word(node: Node, key: str, problems: Problems) -> str | None:
    text = convert(node, key, str, problems)
    if text is INVALID:
        return None
    if "\0" in text:
        problems.add(node.where, key, "holds a NUL", "leave it out")
        return None
    try:
        fields = [(name, spec, how) for _, name, spec, how in string.Formatter().parse(text) if name is not None]
    except ValueError:
        problems.add(node.where, key, f"has a brace too many in {shown(text)}", _BRACES)
        return None
    if any(is_secret(url) for url in URL.finditer(text)):
        problems.add(node.where, key, _SECRET, "let the program itself take it from its environment")
        return None
    for name, spec, how in fields:
        if name in PLACEHOLDERS and (spec or how):
            problems.add(node.where, key, f"only the name stands in its braces, {{{name}}}", _BRACES)
            return None
        if name not in PLACEHOLDERS:
            hint = "; ".join((nearest(name, PLACEHOLDERS), _BRACES))
            problems.add(node.where, key, f"nothing is called {{{clean(name)}}}", hint)
            return None
    return str(text)


def _words_hint(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_COMMAND:
        return 'for example [./tell-me, "{event}"]'
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    return f"write [{', '.join(words)}]"


def filled(command: Sequence[str], values: dict[str, str]) -> list[str]:
    """The words with what stands in braces; `values`: for each of PLACEHOLDERS."""
    return [word.format(**values) for word in command]


# --- webhooks -------------------------------------------------------------------------


def _webhooks(node: Node, problems: Problems) -> tuple[Webhook, ...]:
    if not isinstance(node.value, list):
        return _kept([_webhook(node, "notify.webhook", problems)])
    if not node.value:
        problems.add(node.where, "notify.webhook", "is an empty list", "leave it out")
    items = enumerate(_few(node, "notify.webhook", problems))
    return _kept([_webhook(item, f"notify.webhook[{n}]", problems) for n, item in items])


def _webhook(node: Node, key: str, problems: Problems) -> Webhook | None:
    given = node if isinstance(node.value, dict) else Node({"url": node}, node.where)
    before = problems.said
    found = parts(given, key, _WEBHOOK, problems)
    if "url" not in given.value:
        problems.add(node.where, key, "lacks url", "for example url: https://ntfy.sh/my-topic")
    own_key = f"{key}.url" if given is node else key
    if "url" in found:
        _check_url(given.value["url"], own_key, found["url"], found.get("format", "json"), problems)
    for name, value in found.get("headers", {}).items():
        _check_header(given.value["headers"].value[name], f"{key}.headers.{name}", name, value, problems)
    return Webhook(**found) if problems.said == before else None


def _check_url(node: Node, key: str, url: str, kind: Format, problems: Problems) -> None:
    if url.startswith("env:"):
        if not _VARIABLE.fullmatch(url):
            problems.add(node.where, key, f"{shown(url)} names no variable", "for example env:SLACK_URL")
        return
    match = URL.fullmatch(url)
    if match and (is_secret(match) or kind in ("slack", "discord")):
        problems.add(node.where, key, _SECRET, _MOVE)
    elif why := unpostable(url):
        whole = f"https://{url}"
        hint = f"write {whole}" if _BARE.fullmatch(url) and not unpostable(whole) else _EXAMPLE
        problems.add(node.where, key, f"{shown(url)} {why}", hint)


def _check_header(node: Node, key: str, name: str, value: str, problems: Problems) -> None:
    if not _HEADER.fullmatch(name):
        problems.add(node.where, key, f"{shown(name)} is no name of a header")
    elif "\n" in value or "\r" in value or not value.isascii():
        problems.add(node.where, key, "must be one line of ASCII")
    elif "env:" in value and not _SCHEMED.fullmatch(value):
        problems.add(node.where, key, f"can't be {shown(value)}", "write env:NAME, or Bearer env:NAME")
    elif SECRETIVE.search(name) and not _SCHEMED.fullmatch(value):
        problems.add(node.where, key, _SECRET, _MOVE)


# --- occasions, and what they share -----------------------------------------------------


def _occasions(node: Node, problems: Problems) -> tuple[Occasion, ...]:
    key = "notify.on"
    if not isinstance(node.value, list):
        problems.add(node.where, key, f"must be a list, not {_shown(node)}", list_hint(Occasion, node.plain()))
        return NotifyUse().on
    if not node.value:
        problems.add(node.where, key, "is an empty list", "leave notify out to tell nobody")
    found = [convert(item, f"{key}[{n}]", Occasion, problems) for n, item in enumerate(node.value)]
    return tuple(dict.fromkeys(one for one in found if one is not INVALID))


def _few(node: Node, key: str, problems: Problems) -> list[Node]:
    items: list[Node] = node.value
    if len(items) > MOST:
        problems.add(node.where, key, f"has {len(items)} of them, and at most {MOST} can be told")
    return items[:MOST]


def _shown(node: Node) -> str:
    return "an empty list" if node.value == [] else str(shown(node.plain()))


def _kept(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one for one in found if one)


_WEBHOOK: Final[dict[str, Any]] = get_type_hints(Webhook, include_extras=True)
_READERS: Final = {
    "command": ("commands", _commands),
    "webhook": ("webhooks", _webhooks),
    "on": ("on", _occasions),
}


def is_listed(steps: Sequence[str]) -> bool:
    """Whether this path of a sweep file holds a list."""
    return list(steps) == ["notify", "on"]


def lines(use: NotifyUse) -> Iterator[str]:
    """What `plan` says of it; never a secret."""
    if use.tells:
        told = [f"`{clean(command[0])}`" for command in use.commands] + [webhook.name for webhook in use.webhooks]
        yield f"on {joined([one.replace('_', ' ') for one in use.on])} it tells {joined(told)}"


def schema(webhook: dict[str, Any]) -> dict[str, Any]:
    """For editors. `webhook`: the schema of `Webhook`, or where it stands."""
    word = {"type": "string"}
    command = {"type": "array", "minItems": 1, "items": word}
    address = {"anyOf": [{"type": "string"}, webhook]}
    return {
        "type": ["object", "null"],
        "description": "who is told when the run ends or needs somebody",
        "additionalProperties": False,
        "properties": {
            "command": {
                "description": "program and arguments, or a list of such; it gets the summary as JSON on its input",
                "anyOf": [command, {"type": "array", "minItems": 1, "items": command}],
            },
            "webhook": {
                "description": "an address that the summary is posted to, or several",
                "anyOf": [*address["anyOf"], {"type": "array", "minItems": 1, "items": address}],
            },
            "on": {
                "type": "array",
                "minItems": 1,
                "items": {"enum": list(OCCASIONS)},
                "default": list(NotifyUse().on),
                "description": "when; failure: points that did not end well, several in one message",
            },
        },
    }
