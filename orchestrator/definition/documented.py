"""The sweep file's keys as Markdown, for docs/reference.md, out of the schema alone:
`python -m orchestrator.definition.documented FILE` renews what stands there between two marks, and a test says when
that is due. Pure but for the last lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.definition.builtin import builtin
from orchestrator.definition.schema import sweep_schema

Schema = Mapping[str, Any]

_MARKED: Final = re.compile(r"(?<=<!-- keys: made by the code -->\n).*?(?=<!-- end -->)", re.DOTALL)
_NUMBERS: Final = {"integer": "whole number", "number": "number"}
_WORDS: Final = {"string": "text", "boolean": "true or false", "object": "mapping", "array": "list"}
#: By how a key ends, which is how units are told.
_UNITS: Final = {"_s": "seconds", "_mib": "MiB", "_bytes": "bytes"}
#: Longer lists of words are for `airlock methods` and editors to show.
_MOST_WORDS: Final = 16
_LARGEST: Final = 10**12


@dataclass(frozen=True)
class Page:
    """`definitions`: what `$ref` points to."""

    top: Schema
    definitions: Mapping[str, Schema]

    def whole(self, schema: Schema) -> Schema:
        """What a reference points to, with what stands beside it."""
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if not name:
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return {**self.definitions[name], **beside}

    def choices(self, schema: Schema) -> list[Schema]:
        return [self.whole(one) for one in schema.get("anyOf", [schema])]

    # --- one key --------------------------------------------------------------------

    def kind(self, name: str, schema: Schema) -> str:
        """In words, with bounds; the unit where the key tells it."""
        words = dict.fromkeys(_kind(self, one) for one in self.choices(schema))
        unit = next((f", {unit}" for end, unit in _UNITS.items() if name.endswith(end)), "")
        return " or ".join(sorted(words, key="`null`".__eq__)) + unit

    def row(self, name: str, schema: Schema, required: bool) -> str:
        whole = self.whole(schema)
        default = "needed" if required else _default(whole)
        return f"| `{name}` | {self.kind(name, whole)} | {default} | {_meaning(whole)} |"

    def table(self, properties: Mapping[str, Schema], required: tuple[str, ...]) -> Iterator[str]:
        yield "| key | type | default | meaning |"
        yield "|---|---|---|---|"
        for name, schema in properties.items():
            yield self.row(name, schema, name in required)

    # --- sections -------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        properties = self.top["properties"]
        yield from self.table(properties, tuple(self.top["required"]))
        for name, schema in properties.items():
            if name == "policies":
                yield from self.policies(schema)
            elif name in ("matrix", "zip"):
                yield from _head(name, f"Lists of values of any key of `settings` and `sampling`: {_line(schema)}.")
            else:
                yield from self.sections(name, schema, set())

    def sections(self, path: str, schema: Schema, seen: set[tuple[str, ...]]) -> Iterator[str]:
        """A table for each mapping that stands there or below, those of the same keys once."""
        whole = self.whole(schema)
        choices = self.choices(whole)
        for one in choices:
            properties = one.get("properties", {})
            if not properties or tuple(properties) in seen:
                continue
            yield from _head("" if (path,) in seen else path, _line(one) or _line(whole))
            seen.update(((path,), tuple(properties)))
            yield from self.table(properties, tuple(one.get("required", ())))
            for name, inner in properties.items():
                yield from self.sections(f"{path}.{name}", inner, seen)
        for one in choices:
            if items := one.get("items"):
                yield from self.sections(f"{path}[]", items, seen)

    def policies(self, schema: Schema) -> Iterator[str]:
        """The same keys for every class, with defaults of their own."""
        yield from _head("policies", _line(schema))
        mappings = {name: self.choices(one)[-1]["properties"] for name, one in schema["properties"].items()}
        keys = {name: part for fields in mappings.values() for name, part in fields.items() if name != "do"}
        yield "| class | `do`, the default first | " + " | ".join(f"`{name}`" for name in keys) + " | meaning |"
        yield "|---|---|" + "---|" * (len(keys) + 1)
        for cls, fields in mappings.items():
            default = fields["do"]["default"]
            do = [default, *(one for one in fields["do"]["enum"] if one != default)]
            told = " | ".join(_default(fields.get(name, {})) for name in keys)
            yield f"| `{cls}` | {', '.join(f'`{one}`' for one in do)} | {told} | {_line(schema['properties'][cls])} |"
        yield from _head("policies.CLASS", "A mapping, or `do` alone as a word")
        yield "| key | type | meaning |"
        yield "|---|---|---|"
        yield from (f"| `{name}` | {self.kind(name, part)} | {_meaning(part)} |" for name, part in keys.items())


def _head(path: str, line: str) -> Iterator[str]:
    yield from ("", f"## `{path}`") if path else ()
    yield from ("", f"{line[:1].upper()}{line[1:]}".rstrip(".") + ".", "")


def _line(schema: Schema) -> str:
    return " ".join(str(schema.get("description", "")).split())


def _meaning(schema: Schema) -> str:
    return _line(schema).replace("|", "\\|").replace("<", "\\<").replace("[", "\\[")


def _default(schema: Schema) -> str:
    """Of a mapping its keys tell."""
    if schema.get("default", {}) in ({}, "") or isinstance(schema["default"], dict):
        return ""
    value = schema["default"]
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def _kind(page: Page, schema: Schema) -> str:
    if "enum" in schema:
        words = schema["enum"]
        return ", ".join(f"`{one}`" for one in words) if len(words) <= _MOST_WORDS else "a name"
    kinds = schema.get("type", "any value")
    kind = next(one for one in kinds if one != "null") if isinstance(kinds, list) and "null" in kinds else kinds
    if isinstance(kind, list):
        return " or ".join(str((_WORDS | _NUMBERS).get(one, one)) for one in kind)
    if kind in _NUMBERS:
        return f"{_NUMBERS[kind]}{_bounds(schema)}"
    if kind == "array" and "items" in schema:
        return f"list of ({page.kind('', schema['items'])})"
    return "`null`" if kind == "null" else _WORDS.get(kind, kind)


def _bounds(schema: Schema) -> str:
    """ " from 1 to 20" """
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    found = [f" {words[name]} {schema[name]}" for name in words if abs(schema.get(name, _LARGEST)) < _LARGEST]
    return "".join(found)


def lines() -> Iterator[str]:
    """The built-in methods alone: what else is installed here is no part of the page."""
    schema = sweep_schema({method.name: method for method in builtin().values()})
    return Page(schema, schema["$defs"]).lines()


def renewed(text: str) -> str:
    """A page with its tables as they are now."""
    return _MARKED.sub(lambda _: "\n" + "\n".join(lines()) + "\n", text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
