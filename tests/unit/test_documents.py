"""The documents say what there is: links lead somewhere, options exist and are told, sweep files can be read."""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib
from ruamel.yaml import YAML

from orchestrator import cli, config
from orchestrator.definition.documented import lines, renewed
from orchestrator.definition.sections import SECTIONS
from tests.unit.documents import DOCUMENTS, REPO, Block, all_blocks, anchors, blocks, commands, links, name_of, spans

REFERENCE = REPO / "docs" / "reference.md"
LANGUAGES = {"", "sh", "yaml", "json", "python", "toml", "text", "html"}
#: Options of other programs that the documents name.
FOREIGN = {
    *("--gres", "--cpus-per-task", "--mem", "--time", "--requeue", "--partition", "--qos", "--exclude"),  # Slurm
    "--hold",
    *("--array", "--wait", "--output", "--export", "--signal", "--clusters", "--address", "--num-cpus", "--num-gpus"),
    *("--model_args", "--batch_size", "--device", "--tasks"),  # lm_eval
    *("--shm-size", "--gpus"),  # docker
}
#: What files of other programs begin with.
OTHER_YAML = {"scrape_configs"}
#: Never by hand.
UNTOLD = {"outpost", "--help"}
BASE = {"name": "a", "model": "demo", "prompts": "[x]", "methods": "[hf_sdpa]"}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command by its words, "env build" among them."""
    return dict(_below("", cli._parser()))


def _below(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _below(f"{path} {name}".strip(), inner)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


PARSERS = parsers()
ALL_OPTIONS = {option for parser in PARSERS.values() for option in options(parser)}
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS if path != REFERENCE)


def called(words: str) -> str | None:
    """The command that a line of a shell, or a piece of text between backquotes, calls; None for none of ours."""
    head = re.sub(r"^(?:nohup )?(?:python -m orchestrator|airlock) ", "", words)
    found = [name for name in PARSERS if name and re.match(rf"{re.escape(name)}(?= |$)", head)]
    return max(found, key=len, default=None)


# --- where links lead -------------------------------------------------------------


@pytest.mark.parametrize("path", [*DOCUMENTS, REPO / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{name_of(path)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(path)}: {link} has no such head"


def test_every_document_is_linked_from_another() -> None:
    linked = {(path.parent / one.partition("#")[0]).resolve() for path in DOCUMENTS for one in links(path)}
    assert {path for path in DOCUMENTS if path.parent.name == "docs"} <= linked


# --- commands and options ---------------------------------------------------------


def test_options_that_are_named_exist() -> None:
    for path in DOCUMENTS:
        for words in [*spans(path), *(one for one, where in commands().items() if where.startswith(name_of(path)))]:
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", words))
            if (name := called(words)) == "harness" or words.startswith("worker: "):
                continue  # its options are those of another program
            of_scripts = "".join(one.read_text() for one in _scripts()) if "scripts/" in words or not name else ""
            known = (options(PARSERS[name]) if name else ALL_OPTIONS) | FOREIGN
            assert {one for one in named - known if one not in of_scripts} == set(), f"{name_of(path)}: {words}"


def _scripts() -> list[Path]:
    return [path for path in [*(REPO / "scripts").iterdir(), *(REPO / "tests" / "soak").glob("*.py")] if path.is_file()]


def test_every_command_and_option_is_told_of() -> None:
    for name, parser in PARSERS.items():
        if not name or name in UNTOLD:
            continue
        assert re.search(rf"(?:orchestrator |airlock |`){name}\b", TEXT), f"no document has {name}"
        untold = [one for one in options(parser) - UNTOLD if not re.search(rf"{one}(?![\w-])", TEXT)]
        assert not untold, f"{name}: no document has {untold}"


def test_extras_that_are_named_exist() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    named = {one for group in re.findall(r"engine-airlock\[([\w,]+)\]", TEXT) for one in group.split(",")}
    assert named <= set(project["optional-dependencies"])
    told = named | {one for path in DOCUMENTS for one in spans(path)}
    assert told >= set(project["optional-dependencies"]) - {"dev"}, "each extra is told of"


# --- blocks -----------------------------------------------------------------------


def test_blocks_are_of_known_languages_and_hide_no_command() -> None:
    for block in all_blocks():
        assert block.language in LANGUAGES, f"{block.where}: {block.language}"
        if not block.is_shell and not block.language:
            assert not re.search(r"(?:^|\s)--[a-z]", re.sub("`[^`]*`", "", block.text)), (
                f"{block.where}: a command of an unknown program?"
            )


def alternatives(block: Block) -> list[str]:
    """A block may show a key several times, in several ways: each is a sweep file of its own."""
    found, keys = [""], set[str]()
    for line in block.text.splitlines(keepends=True):
        key = match[1] if (match := re.match(r"(\w+):", line)) else ""
        if key and key in keys:
            found.append("")
            keys = set()
        keys |= {key} - {""}
        found[-1] += line
    return found


YAMLS = [(block.where, one) for block in all_blocks() if block.language == "yaml" for one in alternatives(block)]


@pytest.mark.parametrize(("where", "text"), YAMLS)
def test_a_sweep_file_is_one(where: str, text: str) -> None:
    """With what it lacks put beside it."""
    keys = YAML(typ="safe", pure=True).load(text)
    if not set(keys) & set(SECTIONS):
        assert set(keys) <= OTHER_YAML, f"{where}: whose file is this?"
        return
    whole = text + "".join(f"\n{key}: {value}" for key, value in BASE.items() if key not in keys)
    assert config.parse(f"{whole}\n", where).methods


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.language in ("python", "toml")], ids=lambda b: b.where)
def test_code_can_be_read(block: Block) -> None:
    assert ast.parse(textwrap.dedent(block.text)) if block.language == "python" else tomllib.loads(block.text)


# --- the reference ----------------------------------------------------------------


def test_the_reference_is_what_the_schema_says() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    assert renewed(page) == page, "python -m orchestrator.definition.documented docs/reference.md renews it"


def test_every_key_has_a_type_and_a_meaning() -> None:
    for line in lines():
        if line.startswith("| `"):
            parts = re.split(r"(?<!\\)\|", line)
            assert all(parts[at].strip() for at in (2, -2)), line


def test_a_key_that_is_new_makes_the_reference_stale() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    assert "\n| `warmup` |" in page
    assert renewed(page.replace("| `warmup` | whole number", "| `warmup` | number")) == page


# --- troubleshooting and engines ----------------------------------------------------


def said() -> Iterator[str]:
    """Every text in our sources, pieces between what is filled in apart."""
    for package in ("orchestrator", "protocol", "workers"):
        for path in (REPO / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"\{\}", "\0", node.value)


def quoted() -> list[str]:
    page = REPO / "docs" / "troubleshooting.md"
    return [line for block in blocks(page) if block.language == "text" for line in block.lines]


def test_messages_that_are_quoted_are_said() -> None:
    texts = list(said())
    assert len(quoted()) > 40
    for quote in quoted():
        for piece in filter(None, (part.strip(" ():;,") for part in quote.split("…"))):
            assert any(piece in text for text in texts), f"nothing says {piece!r} of {quote!r}"
        assert len(re.findall(r"\w", quote)) >= 6, f"{quote!r} says nothing"


def test_places_that_must_name_an_engine_are_there() -> None:
    page = (REPO / "docs" / "adding-an-engine.md").read_text(encoding="utf-8")
    places = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(places) > 12
    for file, name in places:
        source = (REPO / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def |class )?{name}\b", source, re.MULTILINE), f"{file} has no {name}"


def test_each_place_that_names_the_engines_is_told_of() -> None:
    """Those that name the one that nobody else would: whoever adds one looks for it."""
    page = (REPO / "docs" / "adding-an-engine.md").read_text(encoding="utf-8")
    keyed = [
        path.relative_to(REPO).as_posix()
        for package in ("orchestrator", "protocol", "workers")
        for path in sorted((REPO / package).rglob("*.py"))
        if re.search(r'^    "sglang": ', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert keyed
    assert not [path for path in keyed if path not in page]


def test_every_package_is_installed() -> None:
    """`pip install .` takes those that are listed, and nothing else."""
    tool = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        path.parent.relative_to(REPO).as_posix().replace("/", ".")
        for package in ("orchestrator", "protocol", "workers")
        for path in (REPO / package).rglob("__init__.py")
        if "plugins" not in path.parts
    }
    assert there == set(tool["packages"])
