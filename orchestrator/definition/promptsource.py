"""The section `prompts` of a sweep file. A source with a problem of its own is none: what reading it would tell follows
from that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_type_hints

from orchestrator.definition.fields import INVALID, convert, unfit
from orchestrator.definition.promptuse import (
    DISTRIBUTIONS,
    MOST_PROMPTS,
    ChatTemplate,
    Lengths,
    PromptSource,
    RandomTokens,
    Reading,
    SharedPrefix,
)
from orchestrator.definition.spelling import likely, nearest, short, shown
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.readers import fields
from orchestrator.view.wording import joined

SOURCES: Final = ("file", "inline", "random", "shared_prefix")
_READING: Final[dict[str, Any]] = get_type_hints(Reading, include_extras=True)
_MADE: Final[dict[str, Any]] = {"random": RandomTokens, "shared_prefix": SharedPrefix}
_KEYS: Final = (*SOURCES, "chat_template", *_READING)


def read_prompts(node: Node, problems: Problems) -> PromptSource | None:
    """None where something is wrong with it; of a list, what can be read of it."""
    if isinstance(node.value, dict):
        return _mapping(node, problems)
    if isinstance(node.value, list):
        return _inline(node, "prompts", "auto", problems)
    if not isinstance(node.value, str):
        problems.add(node.where, "prompts", f"can't be {shown(node.value)}", "a file, or a list of prompts: [hello]")
        return None
    return _file(node, "prompts", "auto", Reading(), problems)


def _mapping(node: Node, problems: Problems) -> PromptSource | None:
    given, before = node.value, problems.said
    for name in given:
        if name not in _KEYS:
            problems.add(given[name].where, f"prompts.{name}", "prompts has no such key", nearest(name, _KEYS))
    named = [name for name in SOURCES if name in given]
    if len(named) > 1 or (not named and all(name in _KEYS for name in given)):
        problems.add(node.where, "prompts", f"needs exactly one of {joined(SOURCES)}")
    template: Any = _converted(given, "chat_template", ChatTemplate, "auto", problems)
    if "file" not in named:
        _only_of_files(given, named, problems)
        reading = Reading()
    else:
        reading = _reading(given, problems)
    sound = problems.said == before
    found = [_source(name, given[name], template, reading, problems) for name in named]
    return found[0] if sound else None


def _converted(given: Mapping[str, Node], name: str, kind: Any, default: Any, problems: Problems) -> Any:
    found = convert(given[name], f"prompts.{name}", kind, problems) if name in given else default
    return default if found is INVALID else found


def _source(name: str, node: Node, template: Any, reading: Reading, problems: Problems) -> PromptSource | None:
    key = f"prompts.{name}"
    if name == "file":
        return _file(node, key, template, reading, problems)
    if name == "inline":
        return _inline(node, key, template, problems)
    return _made(name, node, template, problems)


# --- a file ---------------------------------------------------------------------


def _only_of_files(given: Mapping[str, Node], named: list[str], problems: Problems) -> None:
    for name in given:
        if name in _READING and named:
            message = f"says how a file is read, and the prompts are {named[0]}"
            problems.add(given[name].where, f"prompts.{name}", message, "leave it out")


def _reading(given: Mapping[str, Node], problems: Problems) -> Reading:
    found = {name: _converted(given, name, kind, INVALID, problems) for name, kind in _READING.items()}
    reading = Reading(**{name: value for name, value in found.items() if value is not INVALID})
    for name, why, hint in _misfits(reading):
        problems.add(_place(given, name), f"prompts.{name}", why, hint)
    return reading


def _place(given: Mapping[str, Node], name: str) -> str:
    """Of a key such as "columns.prompt"."""
    outer, _, inner = name.partition(".")
    node = given[outer]
    return node.value[inner].where if isinstance(node.value, dict) and inner in node.value else node.where


def _misfits(reading: Reading) -> list[tuple[str, str, str]]:
    """Key, message and hint of all in which the parts contradict each other."""
    found = [(f"columns.{target}", why, "") for target, path in reading.columns.given().items() if (why := _path(path))]
    columns, limits = reading.columns, reading.filter
    if columns.prompt is not None and columns.messages is not None:
        found.append(("columns.messages", "stands beside columns.prompt", "leave one out"))
    if reading.template is not None:
        found += [("template", why, "") for why in [_template(reading.template)] if why]
        both = next((name for name in ("prompt", "messages") if getattr(columns, name) is not None), None)
        found += (
            [("template", f"stands beside columns.{both}, which is the prompt too", "leave one out")] if both else []
        )
    for what in ("prompt_tokens", "chars"):
        low, high = getattr(limits, f"min_{what}"), getattr(limits, f"max_{what}")
        if low is not None and high is not None and low > high:
            found.append((f"filter.min_{what}", f"is more than filter.max_{what}", ""))
    if reading.split is not None and reading.container not in (None, "hf_dataset"):
        found.append(("split", f"means nothing for {reading.format}", "leave it out"))
    if reading.delimiter is not None and (wrong := _delimiter(reading)):
        found.append(("delimiter", wrong, 'for example ";"'))
    return found


def _delimiter(reading: Reading) -> str:
    if reading.container not in (None, "csv"):
        return f"means nothing for {reading.format}"
    usual = len(reading.delimiter or "") == 1 and reading.delimiter not in ('"', "\n", "\r", "\0")
    return "" if usual else "must be a single character, and no quote"


def _path(path: str) -> str:
    try:
        fields.steps(path)
    except ValueError as exc:
        return str(exc)
    return ""


def _template(template: str) -> str:
    try:
        return "" if len(fields.parts(template)) > 1 else "holds no field, and all prompts would be the same"
    except ValueError as exc:
        return str(exc)


def _file(node: Node, key: str, template: Any, reading: Reading, problems: Problems) -> PromptSource | None:
    value = convert(node, key, str, problems)
    if value == "":
        problems.add(node.where, key, "is empty")
    return PromptSource(value, None, template, node.where, key, (), reading) if value and value is not INVALID else None


# --- inline ---------------------------------------------------------------------


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
        if meant := next(((name, c) for name in given if (c := likely(name, both))), None):
            return f"has neither prompt nor messages; {short(meant[0])}: no such key", f"did you mean {meant[1]}?"
        text = "if it is text with a colon, put it in quotes" if len(given) == 1 else ""
        return "has neither prompt nor messages", text
    reason = unfit({k: v.plain() for k, v in given.items() if k not in both})
    return (reason, "") if reason else None


# --- random ones ----------------------------------------------------------------


def _made(name: str, node: Node, template: Any, problems: Problems) -> PromptSource | None:
    key = f"prompts.{name}"
    before = problems.said
    made = convert(node, key, _MADE[name], problems)
    if made is INVALID:
        return None
    if template == "on":
        problems.add(node.where, key, "are token ids, and chat_template is on", "leave chat_template out")
    _CHECKS[name](node, key, made, problems)
    return PromptSource(None, None, template, node.where, key, made=made) if problems.said == before else None


def _random(node: Node, key: str, made: RandomTokens, problems: Problems) -> None:
    _lengths(node, f"{key}.input_tokens", made.input_tokens, problems)
    if made.count is None and not (isinstance(made.input_tokens, Lengths) and made.input_tokens.file):
        problems.add(node.where, key, "lacks count", "for example count: 200")


def _shared(node: Node, key: str, made: SharedPrefix, problems: Problems) -> None:
    for name in ("system_tokens", "question_tokens"):
        _lengths(node, f"{key}.{name}", getattr(made, name), problems)
    if made.groups * made.prompts_per_group > MOST_PROMPTS:
        problems.add(node.where, key, f"comes to more than {MOST_PROMPTS} prompts")


_CHECKS: Final[dict[str, Callable[[Node, str, Any, Problems], None]]] = {"random": _random, "shared_prefix": _shared}


def _lengths(node: Node, key: str, lengths: int | Lengths, problems: Problems) -> None:
    if isinstance(lengths, int):
        return
    where = node.value[key.rpartition(".")[2]].where
    kinds = lengths.kinds()
    if len(kinds) != 1:
        problems.add(where, key, f"needs exactly one of {joined(DISTRIBUTIONS)}")
    if lengths.uniform is not None and not (len(lengths.uniform) == 2 and lengths.uniform[0] <= lengths.uniform[1]):
        problems.add(where, f"{key}.uniform", "must be two numbers, the smaller one first", "for example [100, 2000]")
    if lengths.max is not None and lengths.min > lengths.max:
        problems.add(where, f"{key}.min", "is more than max")
