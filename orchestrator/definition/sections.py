"""The sections of a sweep file: which there are, where they stand, and which names are probably meant. Pure."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.definition import clusteruse, deviceuse, judging, notifyuse
from orchestrator.definition.fields import SETTABLE, TYPES, missing
from orchestrator.definition.grid import UNSUPPORTED, home
from orchestrator.definition.hints import is_list
from orchestrator.definition.measurement import Measurement
from orchestrator.definition.spelling import likely, nearest
from orchestrator.definition.sweepfile import Node, Problems

SECTIONS: Final = (
    *("name", "model", "prompts", "methods", "sampling", "settings", "matrix", "zip", "repeats", "warmup", "answers"),
    *("measurement", "limits", "policies", "environments", "repairs", "devices", "stop_after", "launcher", "cluster"),
    "notify",
)
#: With an example of each.
REQUIRED: Final = {
    "name": "my_sweep",
    "model": "demo",
    "prompts": "prompts.jsonl",
    "methods": "[hf_sdpa]",
}
_OF_FIELDS = (
    *("sampling", "settings", "matrix", "zip"),
    *("answers", "measurement", "limits", "policies", "environments", "repairs", "devices", "cluster", "notify"),
)


def check_sections(root: Node, source: str, problems: Problems) -> None:
    for name, node in root.value.items():
        if name in SETTABLE:
            place = f"{home(name)}.{name}"
            hint = f"write --set {place}=…" if node.where.startswith("--set ") else f"put it under {home(name)}"
            problems.add(node.where, name, "stands at the wrong place", hint)
        elif name in UNSUPPORTED:
            problems.add(node.where, name, *UNSUPPORTED[name])
        elif name not in SECTIONS:
            problems.add(node.where, name, "a sweep has no such key", _instead(name))
    for name in missing(root.value, REQUIRED, SECTIONS):
        problems.add(source, name, "is missing", f"for example {name}: {REQUIRED[name]}")


def _instead(name: str) -> str:
    """A key of `measurement` that stands beside it is known by its name."""
    known = name in Measurement.__struct_fields__ and likely(name, SECTIONS) is None
    return "put it under measurement" if known else nearest(name, SECTIONS)


def as_meant(root: Node) -> Node:
    """Sections whose names are wrong under what was probably meant, so that what is in them is checked all the same."""
    known = (*SECTIONS, *SETTABLE, *UNSUPPORTED)
    names = [name for name in root.value if name not in known and re.fullmatch(r"[\w-]+", name)]
    meant = {name: likely(name, SECTIONS) for name in names}
    taken = {to: root.value[name] for name, to in meant.items() if to is not None}
    return Node({**taken, **{k: v for k, v in root.value.items() if k not in meant}}, root.where)


def without_empty(root: Node) -> Node:
    """A section whose every line is commented out reads as null: as good as absent."""
    kept = {k: v for k, v in root.value.items() if v.value is not None or k not in _OF_FIELDS}
    return Node(kept, root.where)


def takes_list(steps: list[str], value: str) -> bool:
    """Whether `--set` of this path gives a list, whose commas need no brackets."""
    if steps[0] == "methods":
        return len(steps) == 1
    if steps[0] in ("matrix", "zip"):
        return len(steps) == 2
    of_lists = steps[0] == "settings" and is_list(TYPES.get(steps[-1], str))
    sections = (deviceuse, clusteruse, judging, notifyuse)
    of_sections = steps == ["repairs", "keep"] or any(one.is_listed(steps) for one in sections)
    return (of_lists or of_sections) and value != "null"
