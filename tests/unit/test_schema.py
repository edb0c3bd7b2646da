"""The editor's schema of the sweep file agrees with what `parse` takes, and the examples fit both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields
from ruamel.yaml import YAML

from orchestrator import config
from orchestrator.config import Limits, Measurement
from orchestrator.definition.fields import SAMPLING, SETTABLE, SETTINGS
from orchestrator.definition.sections import SECTIONS
from orchestrator.errors import InputError
from protocol.specs import BackendConfig, MethodSpec, NgramSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = "name: a\nmodel: demo\nprompts: p.jsonl\nmethods: [hf_sdpa]\n"


def matches(value: Any, schema: dict[str, Any], defs: dict[str, Any]) -> bool:
    """As much of JSON Schema as ours uses, formats and lengths left out."""
    if "$ref" in schema:
        return matches(value, defs[schema["$ref"].removeprefix("#/$defs/")], defs)
    if "anyOf" in schema:
        return any(matches(value, s, defs) for s in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, kind) for kind in kinds):
        return False
    if isinstance(value, dict):
        inner, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        known = all(matches(v, inner[k], defs) if k in inner else rest is not False for k, v in value.items())
        return known and all(name in value for name in schema.get("required", ()))
    if isinstance(value, list):
        return all(matches(v, schema.get("items", {"type": list(_TYPES)}), defs) for v in value)
    return isinstance(value, str | bool | None) or schema.get("minimum", value) <= value <= schema.get("maximum", value)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "boolean": bool,
}


def _is(value: Any, kind: str) -> bool:
    return kind == "boolean" if isinstance(value, bool) else isinstance(value, _TYPES[kind])


def fits_schema(text: str) -> bool:
    schema = json.loads(json.dumps(config.json_schema()))
    value = json.loads(json.dumps(YAML(typ="safe", pure=True).load(text)))
    return matches(value, schema, schema["$defs"])


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_sweeps_and_fit_the_schema(file: Path) -> None:
    text = file.read_text()
    got = config.parse(text, file.name)
    assert fits_schema(text)
    assert got.prompts.file is None or (EXAMPLES / got.prompts.file).is_file()


def test_there_are_examples() -> None:
    assert {f.name for f in EXAMPLES.glob("*.yaml")} >= {"quickstart.yaml", "sweep-gpu.yaml"}


@pytest.mark.parametrize(
    "extra",
    [
        "sampling: {seed: 1, dtype: auto}\n",
        "matrix: {batch_size: [0]}\n",
        "matrix: {batch_size: 4}\n",
        "limits: {load: 4}\n",
        "repeats: 0\n",
        "smapling: {}\n",
        "environments: {scripted: x}\n",
    ],
)
def test_the_schema_refuses_too(extra: str) -> None:
    assert fits_schema(BASE)
    assert not fits_schema(BASE + extra)
    with pytest.raises(InputError):
        config.parse(BASE + extra, "s.yaml")


def test_the_schema_covers_every_field_with_words() -> None:
    schema = config.json_schema()
    assert set(schema["properties"]) == set(SECTIONS)
    assert all("description" in v or "$ref" in v for v in schema["properties"].values())
    for section, names in (("sampling", SAMPLING), ("settings", SETTINGS), ("matrix", SETTABLE), ("zip", SETTABLE)):
        assert set(schema["properties"][section]["properties"]) == set(names)


def test_the_schema_gives_every_default_and_offers_nothing_that_is_refused() -> None:
    schema = config.json_schema()
    defaults = {f.name: f.default for f in fields(BackendConfig)}
    for section, names in (("sampling", SAMPLING), ("settings", SETTINGS)):
        given = {n: part["default"] for n, part in schema["properties"][section]["properties"].items()}
        assert given == {n: defaults[n] for n in names}
    assert {n: schema["properties"][n]["default"] for n in ("repeats", "warmup")} == {"repeats": 1, "warmup": 1}
    assert set(schema["$defs"]["MethodSpec"]["properties"]) == {*(f.name for f in fields(MethodSpec)), "base"}
    assert "required" not in json.dumps(schema["properties"]["settings"]["properties"]["kv_cache_bytes"])


def test_the_guide_explains_every_key() -> None:
    guide = (EXAMPLES.parent / "docs" / "sweep-file.md").read_text()
    method = {f.name for f in fields(MethodSpec)}
    others = {f.name for kind in (Limits, Measurement, NgramSpec) for f in fields(kind)} | {"base"}
    for name in sorted({*SETTABLE, *method, *others, *SECTIONS}):
        assert f"`{name}`" in guide, name


def test_the_guide_gives_the_defaults_there_are() -> None:
    rows = [line.split("|") for line in (EXAMPLES.parent / "docs" / "sweep-file.md").read_text().splitlines()]
    said = {row[1].strip().strip("`"): row[2].strip() for row in rows if len(row) == 5}
    for field in (*fields(Limits), *fields(Measurement), *fields(BackendConfig)):
        if field.name in SETTABLE or field.name in said:
            assert said[field.name] == json.dumps(field.default).strip('"').removesuffix(".0"), field.name
