"""The verb `methods`: what each one is, what it sets in its engine, and whether it can run here."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orchestrator.definition.enginewords import sets
from orchestrator.definition.requirements import lacking
from orchestrator.definition.spelling import nearest
from orchestrator.definition.variables import recorded
from orchestrator.devices import Machine, discover
from orchestrator.envs import EnvStore
from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.methods import misfits, refuse
from orchestrator.stores.entrypoints import Registered, registered
from orchestrator.stores.home import airlock_home
from orchestrator.view.wording import clean
from protocol.specs import BackendConfig, MethodSpec

ENGINES: Final = {"hf": "Transformers (hf)", "vllm": "vLLM (vllm)", "sglang": "SGLang (sglang)"}
WIDEST: Final = 120
LEFT_OPEN: Final = "nothing: all is left to the engine"


def methods(name: str | None, as_json: bool) -> Iterator[str]:
    """All of them, or the one called `name` with all its fields. Raises InputError."""
    found = registered()
    if name is not None and name not in found:
        hint = f"{nearest(name, found)}; methods of your own stand in the sweep file, and `plan FILE` shows them"
        raise InputError([Problem("", name, "no method is called so", hint)])
    machine = discover()
    chosen = [found[name]] if name is not None else list(found.values())
    entries = [_entry(one, machine) for one in chosen]
    if as_json:
        yield json.dumps(entries if name is None else entries[0], indent=2)
        return
    width = min(shutil.get_terminal_size().columns, WIDEST)
    yield from _in_full(entries[0], width) if name is not None else _listed(entries, width)


def _entry(one: Registered, machine: Machine) -> dict[str, Any]:
    spec = one.spec
    return {
        **msgspec.to_builtins(replace(spec, env_vars=recorded(spec.env_vars))),
        "sets": sets(spec),
        "origin": one.origin or "Airlock",
        "refused": refuse(spec, machine.kind, machine.gpus) or _lacks(spec, machine) or _misfits(spec, machine),
    }


def _misfits(method: MethodSpec, machine: Machine) -> str | None:
    """What it can't do whatever the sweep says: with every setting at its default."""
    config = BackendConfig(method=method, model_path="", device=machine.kind, kv_cache_bytes=1)
    return "; ".join(misfits(config)) or None


def _lacks(method: MethodSpec, machine: Machine) -> str | None:
    """In the environment that the engine runs in unless a sweep names another; None where it is not built."""
    store = EnvStore(airlock_home(), Launcher(), lambda _: None, kind=machine.kind)
    with suppress(EnvironmentFailed):
        if env := store.get(store.default_name(method.engine)):
            why = lacking(method, env.fingerprint.packages, env.broken)
            return why and f"{why} in environment {env.name}"
    return None


def _listed(entries: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    column = max(len(entry["name"]) for entry in entries) + 2
    for engine, group in groupby(entries, key=lambda entry: str(entry["engine"])):
        yield ENGINES.get(engine, engine)
        for entry in group:
            yield from _row(f"  {entry['name']}", _told(entry), column + 2, width)
        yield ""


def _told(entry: dict[str, Any]) -> Iterator[str]:
    yield entry["summary"]
    if entry["sets"]:
        yield ", ".join(entry["sets"])
    yield _verdict(entry) + ("" if entry["origin"] == "Airlock" else f"; from {entry['origin']}")


def _verdict(entry: dict[str, Any]) -> str:
    return f"not on this machine: {entry['refused']}" if entry["refused"] else "can run here"


def _in_full(entry: dict[str, Any], width: int) -> Iterator[str]:
    shown = {name: _plain(value) for name, value in entry.items() if name not in ("sets", "refused")}
    rows = {**shown, "sets": "\n".join(entry["sets"]) or LEFT_OPEN, "here": _verdict(entry)}
    column = max(map(len, rows)) + 2
    for name, text in rows.items():
        yield from _row(name, text.splitlines() or [""], column, width)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _row(head: str, parts: Iterator[str] | Sequence[str], column: int, width: int) -> Iterator[str]:
    """`head`, then each part on lines of its own, all in one column; no line wider than `width` where words allow."""
    for part in map(clean, parts):
        for line in textwrap.wrap(part, max(width - column, 20), break_long_words=False, break_on_hyphens=False) or [
            ""
        ]:
            yield f"{head:<{column}}{line}".rstrip()
            head = ""
