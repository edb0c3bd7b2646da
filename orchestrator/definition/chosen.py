"""The methods of a sweep as its file lists them, and whether they go with each other and with the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.definition.ownmethods import resolve
from orchestrator.definition.places import Places, method_keys
from orchestrator.definition.sources import ModelRef
from orchestrator.definition.sweepfile import Node, Problems
from protocol.specs import MethodSpec


@dataclass(frozen=True)
class Chosen:
    """specs  what could be read of the list
    whole  every entry could; else what one of the others would have been is not known
    names  those that no later use of is a mistake: with a list that is not whole any that may be meant by it
    """

    specs: tuple[MethodSpec, ...] = ()
    whole: bool = False
    names: tuple[str, ...] = ()


def read_methods(node: Node | None, registry: Mapping[str, MethodSpec], problems: Problems) -> Chosen:
    """`registry`: the methods there are, by name."""
    entries = [] if node is None else node.value if isinstance(node.value, list) else [node]
    if node is not None and (not entries or not isinstance(node.value, list | str)):
        hint = "for example [hf_sdpa, hf_eager]"
        hint = "begin each with a hyphen: - name: …" if isinstance(node.value, dict) and node.value else hint
        problems.add(node.where, "methods", "must be a list with at least one method", hint)
        entries = []
    first: dict[str, str] = {}
    specs = []
    for n, entry in enumerate(entries):
        spec = resolve(entry, f"methods[{n}]", registry, problems)
        if spec is not None and spec.name in first:
            problems.add(entry.where, f"methods[{n}]", f"{spec.name} is listed twice, first at {first[spec.name]}")
        elif spec is not None:
            first[spec.name] = entry.where
            specs.append(spec)
    whole = len(specs) == len(entries) > 0
    written = () if node is None else (name for name, _ in method_keys(node))
    return Chosen(tuple(specs), whole, tuple(dict.fromkeys([*first, *(() if whole else (*written, *registry))])))


def check_scripted(model: ModelRef | None, chosen: Chosen, places: Places, problems: Problems) -> None:
    """The scripted model is no files, and no figure of the scripted engine is one of a real model."""
    scripted = [m.name for m in chosen.specs if m.engine == "scripted"]
    real = [m.name for m in chosen.specs if m.engine != "scripted"]
    if model is None:
        return
    if model.kind == "scripted":
        if real:
            message = f"the scripted model has no weights, and {', '.join(real)} can't run it"
            problems.add(model.where, "model", message, "use demo, a folder or org/name")
        return
    if scripted and not real and chosen.whole:
        message = "no method of the sweep runs a real model: the scripted engine makes its tokens up"
        problems.add(model.where, model.key, message, "write model: scripted, and scripted methods alone")
        return
    for name in scripted:
        key = places.methods[name]
        message = f"{name}: the scripted engine makes its tokens up, and its figures would stand beside real ones"
        problems.add(places.where(key), key, message, "leave it out, or write model: scripted without the others")
